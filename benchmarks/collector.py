"""The collector in a storm of failures: from a real Redis into SQLite and PostgreSQL.

Peer: Django's bulk insert of the very rows, already made, in transactions of the same size.
"""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime
from typing import Any

from django.db import transaction

from benchmarks.collecting import envelope, leave_out_what_is_here, measured
from jobs.agent.wire import CONTENT_TYPE, DEAD_QUEUE, Record, WireError, WireMessage, encode
from jobs.broker import connect
from jobs.broker.inbox import Inbox
from jobs.collector import BATCH, Collector
from jobs.models import DeadLetter, Death, FailureGroup, LetterMessage
from tests.servers import RedisServer

TARGET_PER_SECOND = 4_000
NOW = datetime(2026, 11, 12, 3, 12, tzinfo=UTC)
# What a worker sends: 400 bytes of body, 2 KB of traceback.
BODY_BYTES = 400
FRAMES = 12


def run(quick: bool) -> list[dict[str, Any]]:
    """Return one row a database: letters a second, the bare insert's, and their ratio."""
    number = 4_000 if quick else 40_000
    return measured(
        "collector",
        unit="letters/s",
        target_per_second=TARGET_PER_SECOND,
        ours=lambda redis: collected_per_second(redis, number),
        peer=inserted_per_second,
    )


def collected_per_second(redis: RedisServer, number: int) -> float:
    """Fill ``jobs.dead`` with deaths, then time the collector until it is empty."""
    with redis.client() as client:
        client.flushall()
        pipeline = client.pipeline(transaction=False)
        for index in range(number):
            body = encode(record(index))
            pipeline.lpush(
                DEAD_QUEUE, envelope(body, queue=DEAD_QUEUE, content_type=CONTENT_TYPE, encoding="utf-8")
            )
            if index % 1_000 == 999:
                pipeline.execute()
        pipeline.execute()
    collector = Collector(Inbox(connect()))
    collector.collect(limit=1, wait_seconds=0, now=NOW)
    leave_out_what_is_here()
    started = time.perf_counter()
    collected = 0
    while batch := collector.collect(limit=BATCH, wait_seconds=0, now=NOW):
        collected += batch
    seconds = time.perf_counter() - started
    assert DeadLetter.objects.count() == number
    return collected / seconds


def inserted_per_second() -> float:
    """Time a bulk insert of the rows that are there, made anew with other ids."""
    letters = list(DeadLetter.objects.select_related("message").order_by("pk")[:4_000])
    deaths = {death.letter_id: death for death in Death.objects.filter(letter__in=letters)}
    group = FailureGroup.objects.order_by("pk")[0]
    Death.objects.all().delete()
    DeadLetter.objects.all().delete()
    rows = []
    for letter in letters:
        death = deaths[letter.pk]
        letter.pk = death.pk = None
        letter.uuid, letter.group = uuid.uuid4(), group
        rows.append((letter, letter.message, death))
    leave_out_what_is_here()
    started = time.perf_counter()
    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        with transaction.atomic():
            DeadLetter.objects.bulk_create([letter for letter, *_ in batch])
            for letter, message, death in batch:
                message.letter_id = death.letter_id = letter.pk
            LetterMessage.objects.bulk_create([message for _, message, _ in batch])
            Death.objects.bulk_create([death for *_, death in batch])
    return len(rows) / (time.perf_counter() - started)


def record(index: int) -> Record:
    """Return a death: 8 tasks, 40 places in the code, every message with data of its own."""
    task_id = str(uuid.uuid4())
    task = f"shop.tasks.step_{index % 8}"
    place = index % 40
    traceback = "".join(
        [
            "Traceback (most recent call last):\n",
            *(
                f'  File "/usr/lib/python3.11/site-packages/celery/app/part_{n}.py", line {n * 31}, in call_{n}\n'
                f"    result = self.dispatch(request, *arguments, **named_arguments)\n"
                for n in range(FRAMES - 3)
            ),
            *(
                f'  File "/app/shop/step_{place % 8}.py", line {80 + n}, in inner_{n}\n'
                f"    gateway.charge(order.total, token=token_{place}_{n})\n"
                for n in range(3)
            ),
            f"requests.exceptions.HTTPError: 503 Server Error for url: https://pay.example/orders/{index}\n",
        ]
    )
    arguments = {"order_id": index, "amount": {"value": "74.90", "currency": "EUR"}, "note": ""}
    body = [[], arguments, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    arguments["note"] = "x" * (BODY_BYTES - len(json.dumps(body)))
    headers = {
        "lang": "py", "task": task, "id": task_id, "shadow": None, "eta": None, "expires": None,
        "group": None, "group_index": None, "retries": 4, "timelimit": [30, 20], "root_id": task_id,
        "parent_id": None, "argsrepr": "()", "kwargsrepr": repr(arguments)[:200], "origin": "gen7@web-2",
        "ignore_result": False, "replaced_task_nesting": 0, "stamped_headers": None, "stamps": {},
        "jobs-publication": uuid.uuid4().hex, "jobs-published-at": NOW.timestamp(),
    }  # fmt: skip
    return Record(
        kind="death",
        reason="retries_exhausted",
        publication_id=uuid.uuid4().hex,
        attempt=4,
        at=NOW.timestamp() - index / 1_000,
        task=task,
        task_id=task_id,
        worker=f"celery@pay-{index % 4}",
        boot_id="b" * 32,
        root_id=task_id,
        published_at=NOW.timestamp() - 60,
        started_at=NOW.timestamp() - 1,
        message=WireMessage(
            body=json.dumps(body).encode(),
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            properties={
                "correlation_id": task_id,
                "reply_to": str(uuid.uuid4()),
                "delivery_mode": 2,
                "priority": 0,
            },
            exchange="",
            routing_key="critical",
            queue="critical",
        ),
        error=WireError(
            "requests.exceptions.HTTPError",
            f"503 Server Error for url: https://pay.example/orders/{index}",
            traceback,
        ),
        parameters=["order_id", "amount", "note"],
    )
