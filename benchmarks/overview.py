"""What the overview costs: a page of 30 days with 100 tasks on 10 queues, and five open tabs of a page that poll.

Server time is that of Django's whole answer, middleware, session and templates included. The tabs' share of a
core is the processor time of five minutes of their polls, over five minutes: each polls its figures every
5 s and its charts every 60 s, as the page does. There is no peer: Flower has no such page.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from benchmarks.place import Place
from console import recent
from jobs import roles
from jobs.core import histograms
from jobs.core.words import RollupLevel, RollupScope, SampleLevel
from jobs.models import QueueSample, Rollup, StateSample, WorkerBoot

TASKS, QUEUES, WORKERS, TABS = 100, 10, 20, 5
TARGET_MILLISECONDS = 200.0
TARGET_SHARE = 0.02
# As the page does; with as many tabs as seconds between their polls one of them polls each second.
CHART_SECONDS = 60
_POLL = {"HTTP_HX_REQUEST": "true"}
_COLUMNS = (
    *("level", "scope", "starts_at", "task", "queue", "received", "done", "retried", "dead", "revoked"),
    *("ignored", "dropped", "latency_sum_seconds", "runtime_sum_seconds", "latency", "runtime"),
)


def run(quick: bool) -> list[dict[str, Any]]:
    """Fill a database and ask for the page; return the figures with their targets."""
    now = timezone.now()
    with Place():
        _fill(now, minutes=60 if quick else 180)
        client = _client()
        # As the web server's entry point does once all is loaded, see console/wsgi.py.
        gc.freeze()
        rows = [
            _page(client, f"/?window={window}{by}", words, count=5 if quick else 30)
            for window, by, words in (
                ("30d", "", "30 days by queue"),
                ("30d", "&by=task", "30 days by task"),
                ("1h", "", "1 hour by queue"),
            )
        ]
        rows += [
            _tabs(client, address, words, seconds=60 if quick else 300)
            for address, words in (
                ("/?window=30d", "the overview of 30 days"),
                ("/?window=1h", "the overview of 1 hour"),
                ("/queues/", "the list of queues"),
                ("/queues/one/?name=queue_3", "a queue"),
            )
        ]
    return rows


def _page(client: Client, address: str, words: str, *, count: int) -> dict[str, Any]:
    _get(client, address)
    taken = sorted(_get(client, address) for _ in range(count))
    p95 = taken[min(len(taken) - 1, round(0.95 * len(taken)))] * 1000
    return {
        "name": f"overview of {words}, {TASKS} tasks on {QUEUES} queues, p95 (p50 {taken[len(taken) // 2] * 1000:.0f})",
        "ours": p95,
        "peer": None,
        "ratio": None,
        "target": f"<= {TARGET_MILLISECONDS:.0f} ms",
        "unit": "ms",
        "is_met": p95 <= TARGET_MILLISECONDS,
    }


def _tabs(client: Client, address: str, words: str, *, seconds: int) -> dict[str, Any]:
    """Poll as TABS tabs do that were opened a second apart, without waiting for the seconds to pass."""
    # The list of queues has no charts.
    has_charts = "?" in address
    _get(client, address, **_POLL)
    recent.forget()
    second, taken, real = 0, 0.0, recent.clock
    recent.clock = lambda: float(second)
    try:
        for second in range(seconds):
            taken += _get(client, address, **_POLL)
            if has_charts and second % (CHART_SECONDS // TABS) == 0:
                taken += _get(client, f"{address}&part=charts", **_POLL)
    finally:
        recent.clock = real
    share = taken / seconds
    return {
        "name": f"{TABS} tabs of {words}, share of a core",
        "ours": share * 100,
        "peer": None,
        "ratio": None,
        "target": f"<= {TARGET_SHARE * 100:.0f} %",
        "unit": "%",
        "is_met": share <= TARGET_SHARE,
    }


def _get(client: Client, address: str, **headers: Any) -> float:
    """Return the seconds of processor time of an answer."""
    begin = time.process_time()
    response = client.get(address, **headers)
    seconds = time.process_time() - begin
    if response.status_code != 200:
        raise RuntimeError(f"{address} answered {response.status_code}")
    return seconds


def _client() -> Client:
    user = get_user_model().objects.create_user("bench", password="not used")  # noqa: S106
    user.groups.add(Group.objects.get(name=roles.ADMIN))
    client = Client(SERVER_NAME="127.0.0.1")
    client.force_login(user)
    return client


def _fill(now: datetime, *, minutes: int) -> None:
    chance = random.Random(30)
    packed = [
        histograms.pack(
            {histograms.bucket_of(chance.lognormvariate(-2, 1.2)): chance.randint(1, 400) for _ in range(40)}
        )
        for _ in range(200)
    ]
    minute = now.replace(second=0, microsecond=0)
    hour, day = minute.replace(minute=0), minute.replace(hour=0, minute=0)
    spans = [
        *((RollupLevel.DAY, day - timedelta(days=number)) for number in range(61)),
        # Of the window before only the edges are read in hours.
        *((RollupLevel.HOUR, hour - timedelta(hours=number)) for number in range(32 * 24)),
        *((RollupLevel.HOUR, hour - timedelta(hours=number)) for number in range(59 * 24, 61 * 24)),
        *((RollupLevel.MINUTE, minute - timedelta(minutes=number)) for number in range(minutes)),
    ]
    names = ", ".join(_COLUMNS)
    places = ", ".join("%s" for _ in _COLUMNS)
    sql = f"INSERT INTO {Rollup._meta.db_table} ({names}) VALUES ({places})"  # noqa: S608 - our own names
    with transaction.atomic(), connection.cursor() as cursor:
        # An iterator does, whatever its type says; a list of all would take a gigabyte.
        cursor.executemany(sql, cast(Any, _rows(spans, packed, chance)))
    _fill_rest(now, minute, hour, chance)


def _rows(
    spans: list[tuple[RollupLevel, datetime]], packed: list[bytes], chance: random.Random
) -> Iterator[tuple[Any, ...]]:
    adapt = connection.ops.adapt_datetimefield_value
    pairs = [(f"shop.tasks.task_{number}", f"queue_{number % QUEUES}") for number in range(TASKS)]
    scopes = [
        (RollupScope.ALL, "", ""),
        *((RollupScope.TASK, task, "") for task, _ in pairs),
        *((RollupScope.QUEUE, "", f"queue_{number}") for number in range(QUEUES)),
        *((RollupScope.BOTH, task, queue) for task, queue in pairs),
    ]
    for level, at in spans:
        moment = adapt(at)
        for scope, task, queue in scopes:
            done, dead = chance.randint(100, 10_000), chance.randint(0, 40)
            yield (
                *(level.value, scope.value, moment, task, queue),
                *(done + dead, done, dead // 2, dead, 0, 0, 0, 1.0, 1.0),
                *(chance.choice(packed), chance.choice(packed)),
            )


def _fill_rest(now: datetime, minute: datetime, hour: datetime, chance: random.Random) -> None:
    moments = [
        *((SampleLevel.SAMPLE, now - timedelta(seconds=5 * number)) for number in range(100)),
        *((SampleLevel.MINUTE, minute - timedelta(minutes=number)) for number in range(7 * 1440)),
        *((SampleLevel.HOUR, hour - timedelta(hours=number)) for number in range(31 * 24)),
    ]
    QueueSample.objects.bulk_create(
        [
            QueueSample(
                level=level,
                queue=f"queue_{number}",
                at=at,
                ready=chance.randint(0, 900),
                ready_max=900,
                consumers=4,
                oldest_age_seconds=chance.uniform(0, 60),
            )
            for level, at in moments
            for number in range(QUEUES)
        ],
        batch_size=2000,
    )
    StateSample.objects.bulk_create(
        [
            StateSample(
                level=level.value, at=at, dead_letters=chance.randint(500, 900), workers_online=WORKERS
            )
            for level, at in moments
            if level != SampleLevel.SAMPLE
        ],
        batch_size=2000,
    )
    WorkerBoot.objects.bulk_create(
        WorkerBoot(
            boot_id=f"boot-{number}",
            hostname=f"celery@web-{number}",
            started_at=now - timedelta(days=1),
            reported_at=now,
            last_seen_at=now,
        )
        for number in range(WORKERS)
    )
