"""The numbers of the night of the design pictures: rollups, queue samples, workers, runs and a deployment.

``seed(now=…)`` comes after ``night.seed``: the deaths in the rollups are those of its letters. Rollups begin on
whole minutes, hours and days, so the rows cannot be moved in time as those of the night are.
"""

from __future__ import annotations

import math
import random
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import NormalDist
from typing import Any

from jobs.core import histograms
from jobs.core.words import RollupLevel, RollupScope, SampleLevel

MINUTES = 25 * 60
DAYS = 31
# The relay fails so many minutes before; the collector stood still in between those.
FAILING = 31
# So many values stand for the attempts of a task in a minute.
STRATA = 25
GAP = range(42, 48)
# Task, queue, attempts that are done a minute, mean runtime in seconds.
TASKS = (
    ("shop.tasks.send_receipt", "critical", 150, 0.18),
    ("shop.tasks.charge_card", "critical", 62, 0.6),
    ("shop.tasks.sync_stock", "default", 200, 0.05),
    ("shop.tasks.update_search", "default", 170, 0.03),
    ("shop.tasks.import_feed", "default", 18, 2.4),
    ("shop.tasks.resize_image", "long", 5, 9.0),
    ("shop.tasks.export_report", "long", 1, 40.0),
    ("shop.tasks.send_newsletter", "low", 20, 0.2),
    ("shop.tasks.clean_carts", "low", 6, 0.4),
)
# Queue: depth an hour ago and now, age of the oldest message, consumers, latency p50 and its spread in the night.
QUEUES = {
    "critical": (150, 1610, 134.0, 4, 0.1, 1.4),
    "default": (40, 152, 6.0, 4, 0.06, 0.9),
    "long": (20, 78, 41.0, 1, 0.5, 1.1),
    "low": (2, 6, 1.0, 2, 0.05, 0.8),
}
# Of so many attempts one has its record, those that died included; the rollups count all of them.
ONE_RECORD_OF = 10
WORKERS = (
    ("celery@web-1", ["critical"], 8),
    ("celery@web-2", ["critical"], 8),
    ("celery@pay-1", ["critical"], 4),
    ("celery@pay-2", ["critical", "low"], 4),
    ("celery@batch-1", ["default", "low"], 8),
    ("celery@batch-2", ["default"], 8),
    ("celery@img-1", ["long"], 2),
    ("celery@img-2", ["long"], 4),
)
LOST = "celery@img-2"
# What each worker of a queue holds for later.
HELD = {"critical": 12}


@dataclass(slots=True)
class _Sum:
    """What becomes one rollup."""

    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    latency: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    runtime: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    latency_sum: float = 0.0
    runtime_sum: float = 0.0

    def add(self, other: _Sum) -> None:
        for mine, theirs in (
            (self.counts, other.counts),
            (self.latency, other.latency),
            (self.runtime, other.runtime),
        ):
            for name, number in theirs.items():
                mine[name] += number  # type: ignore[index]
        self.latency_sum += other.latency_sum
        self.runtime_sum += other.runtime_sum


def seed(*, now: datetime) -> dict[str, int]:
    """Write the rows; the same ``now`` and letters give the same numbers."""
    from jobs.models import Deploy

    chance = random.Random(241)
    Deploy.objects.create(name="5f2c1e9", at=now - timedelta(minutes=34))
    rollups = _rollups(now, chance)
    return {
        "rollups": rollups,
        "samples": _samples(now, chance),
        "runs": _runs(now, chance),
        "workers": _workers(now),
        "states": _states(now),
    }


def _deaths(now: datetime) -> dict[tuple[datetime, str, str], int]:
    from jobs.models import Death

    found: dict[tuple[datetime, str, str], int] = defaultdict(int)
    rows = Death.objects.filter(died_at__gte=now - timedelta(minutes=MINUTES)).values_list(
        "died_at", "letter__task", "letter__queue"
    )
    for died_at, task, queue in rows.iterator():
        found[died_at.replace(second=0, microsecond=0), task, queue] += 1
    return found


def _rollups(now: datetime, chance: random.Random) -> int:
    from jobs.models import Rollup

    this_minute = now.replace(second=0, microsecond=0)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    deaths = _deaths(now)
    sums: dict[tuple[str, str, datetime, str, str], _Sum] = defaultdict(_Sum)
    first_hour = (this_minute - timedelta(minutes=MINUTES - 1)).replace(minute=0) + timedelta(hours=1)
    for ago in range(MINUTES):
        if ago in GAP:
            continue
        minute = this_minute - timedelta(minutes=ago)
        dead = {(task, queue): n for (at, task, queue), n in deaths.items() if at == minute}
        for key, part in _minute(ago, dead, chance):
            _add(sums, RollupLevel.MINUTE, minute, key, part)
            if minute >= first_hour:
                _add(sums, RollupLevel.HOUR, minute.replace(minute=0), key, part)
                _add(sums, RollupLevel.DAY, minute.replace(hour=0, minute=0), key, part)
    hour = first_hour - timedelta(hours=1)
    while hour > midnight - timedelta(days=DAYS):
        # Less at night.
        share = 60 * (0.55 + 0.45 * abs(12 - abs(hour.hour - 14)) / 12)
        for key, part in _minute(900, {}, chance, factor=share):
            _add(sums, RollupLevel.HOUR, hour, key, part)
            _add(sums, RollupLevel.DAY, hour.replace(hour=0), key, part)
        hour -= timedelta(hours=1)
    rows = [
        Rollup(
            level=level,
            scope=scope,
            starts_at=at,
            task=task,
            queue=queue,
            **part.counts,
            latency=histograms.pack(part.latency),
            runtime=histograms.pack(part.runtime),
            latency_sum_seconds=part.latency_sum,
            runtime_sum_seconds=part.runtime_sum,
        )
        for (level, scope, at, task, queue), part in sums.items()
    ]
    Rollup.objects.bulk_create(rows, batch_size=2000)
    return len(rows)


def _add(
    sums: dict[tuple[str, str, datetime, str, str], _Sum],
    level: str,
    at: datetime,
    key: tuple[str, str],
    part: _Sum,
) -> None:
    task, queue = key
    for scope, names in (
        (RollupScope.BOTH, (task, queue)),
        (RollupScope.TASK, (task, "")),
        (RollupScope.QUEUE, ("", queue)),
        (RollupScope.ALL, ("", "")),
    ):
        sums[level, scope, at, *names].add(part)


def _minute(
    ago: int, dead: dict[tuple[str, str], int], chance: random.Random, *, factor: float = 1.0
) -> Iterator[tuple[tuple[str, str], _Sum]]:
    failing = ago <= FAILING
    known = {(task, queue) for task, queue, _, _ in TASKS}
    for (task, queue), number in dead.items():
        if (task, queue) not in known:
            part = _Sum()
            part.counts["dead"] = part.counts["received"] = number
            yield (task, queue), part
    for task, queue, rate, runtime in TASKS:
        part = _Sum()
        died = dead.get((task, queue), 0)
        done = max(0, round(rate * factor * chance.uniform(0.95, 1.05) * (0.93 if failing else 1)))
        retried = 4 * died + round(chance.uniform(0, 2) * factor) if queue != "long" else 0
        part.counts.update(done=done, retried=retried, dead=died, received=done + retried + died)
        _, _, _, _, typical, spread = QUEUES[queue]
        if failing and queue == "critical":
            typical, spread = 0.2, 1.5
        number = done + retried + died
        drawn = min(number, STRATA)
        for stratum in range(drawn):
            weight = max(1, number // STRATA)
            # One value of each part of the distribution: a percentile of a minute is no lottery.
            z = NormalDist().inv_cdf((stratum + chance.uniform(0.3, 0.7)) / drawn)
            seconds = math.exp(z * spread) * typical
            part.latency[histograms.bucket_of(seconds)] += weight
            part.latency_sum += seconds * weight
            seconds = math.exp(z * 0.5) * runtime
            part.runtime[histograms.bucket_of(seconds)] += weight
            part.runtime_sum += seconds * weight
        yield (task, queue), part


def _depth(queue: str, ago: float) -> int:
    before, after, *_ = QUEUES[queue]
    grown = max(0.0, (FAILING - ago) / FAILING)
    return round(before + (after - before) * grown)


def _samples(now: datetime, chance: random.Random) -> int:
    from jobs.models import QueueSample

    rows = []
    this_minute = now.replace(second=0, microsecond=0)
    this_hour = now.replace(minute=0, second=0, microsecond=0)

    def add(level: str, at: datetime, ago: float, samples: int) -> None:
        for queue, (_, _, oldest, consumers, _, _) in QUEUES.items():
            sizes = [size for name, queues, size in WORKERS if queues[0] == queue and name != LOST]
            held = HELD.get(queue, 0) * len(sizes)
            ready = _depth(queue, ago)
            if ago > 1:
                ready = max(0, round(ready * chance.uniform(0.9, 1.1)))
            rows.append(
                QueueSample(
                    level=level,
                    queue=queue,
                    at=at,
                    samples=samples,
                    ready=ready,
                    ready_max=round(ready * (1.0 if samples == 1 else 1.05)),
                    unacknowledged=sum(_running(size) + _reserved(size) for size in sizes) + held,
                    held_by_workers=held,
                    held_in_outbox=0,
                    held_by_broker=None,
                    consumers=consumers if queue != "long" or ago < 21 else 2,
                    oldest_age_seconds=oldest if ago < 1 else oldest * max(0.05, 1 - ago / FAILING),
                )
            )

    for ago in range(MINUTES):
        if ago not in GAP:
            add(SampleLevel.MINUTE, this_minute - timedelta(minutes=ago), ago, 12)
    for ago in range(DAYS * 24):
        add(SampleLevel.HOUR, this_hour - timedelta(hours=ago), ago * 60, 720)
    for ago in range(120):
        add(SampleLevel.SAMPLE, now - timedelta(seconds=2 + 5 * ago), ago / 12, 1)
    QueueSample.objects.bulk_create(rows, batch_size=2000)
    return len(rows)


def _runs(now: datetime, chance: random.Random) -> int:
    from jobs.models import Run

    rows = []
    weights = [rate for _, _, rate, _ in TASKS]
    for number in range(4_000):
        task, queue, _, runtime = chance.choices(TASKS, weights=weights)[0]
        finished_at = now - timedelta(seconds=number * 0.9 + 1)
        took = chance.lognormvariate(0, 0.5) * runtime
        waited = chance.lognormvariate(0, 1) * QUEUES[queue][4]
        is_bad = queue == "critical" and number < 2_000 and chance.random() < 0.3
        started_at = finished_at - timedelta(seconds=took)
        rows.append(
            Run(
                task_id=str(uuid.UUID(int=chance.getrandbits(128), version=4)),
                publication_id=f"{chance.getrandbits(128):032x}",
                task=task,
                queue=queue,
                outcome="retried" if is_bad else "done",
                attempt=chance.randint(0, 3) if is_bad else 0,
                worker=chance.choice([name for name, queues, _ in WORKERS if queue in queues]),
                error_type="smtplib.SMTPServerDisconnected" if is_bad else "",
                published_at=started_at - timedelta(seconds=waited),
                started_at=started_at,
                finished_at=finished_at,
                latency_seconds=waited,
                runtime_seconds=took,
            )
        )
    rows += _dead_runs(now)
    # As they end: a list of what ended at the same time goes by the order in which it was written.
    rows.sort(key=lambda run: run.finished_at)
    Run.objects.bulk_create(rows, batch_size=2000)
    return len(rows)


def _dead_runs(now: datetime) -> list[Any]:
    """Return the attempts that the deaths of the last hour ended."""
    from jobs.models import Death, Run

    chance = random.Random(242)
    deaths = Death.objects.filter(died_at__gt=now - timedelta(hours=1)).select_related("letter")
    return [
        Run(
            task_id=death.task_id,
            publication_id=death.publication_id,
            task=death.letter.task,
            queue=death.letter.queue,
            outcome="dead",
            attempt=death.attempt,
            worker=death.worker,
            error_type=death.error_type,
            published_at=death.published_at,
            started_at=death.started_at,
            finished_at=death.died_at,
            # Of a retry that is since its time had come, not since it was published.
            latency_seconds=chance.lognormvariate(0, 1) * QUEUES[death.letter.queue][4],
            runtime_seconds=(death.died_at - death.started_at).total_seconds(),
        )
        for death in deaths.order_by("-died_at", "pk")[::ONE_RECORD_OF]
    ]


def _running(concurrency: int) -> int:
    """Return how many jobs a worker runs."""
    return concurrency - 1


def _reserved(concurrency: int) -> int:
    """Return how many messages a worker has taken and not begun."""
    return concurrency * 2


def _workers(now: datetime) -> int:
    from jobs.models import Worker, WorkerBoot

    for number, (hostname, queues, concurrency) in enumerate(WORKERS):
        is_lost = hostname == LOST
        seen = now - timedelta(minutes=21) if is_lost else now - timedelta(seconds=1)
        running: list[dict[str, Any]] = [
            {
                "task_id": str(uuid.UUID(int=number * 100 + index, version=4)),
                "task": next(task for task, queue, _, _ in TASKS if queue in queues),
                "queue": queues[0],
                "attempt": 0,
                "publication_id": f"{number * 100 + index:032x}",
                "root_id": "",
                "published_at": (seen - timedelta(seconds=4)).timestamp(),
                "started_at": (seen - timedelta(seconds=1 + index)).timestamp(),
                # What the lost one ran is dead now: its message was gone.
                "is_acknowledged": is_lost,
                "replay_of": "",
                "replay_item": None,
            }
            for index in range(_running(concurrency))
        ]
        boot_id = f"{number + 1:032x}"
        WorkerBoot.objects.create(
            boot_id=boot_id,
            hostname=hostname,
            pool="prefork",
            concurrency=concurrency,
            queues=queues,
            started_at=now - timedelta(hours=30 + number),
            reported_at=seen,
            last_seen_at=seen,
            lost_at=seen + timedelta(seconds=30) if is_lost else None,
            sequence=100_000,
            load=0.4 + number * 0.21,
            memory_bytes=(310 + 22 * number) * 1_000_000,
            running=running,
            held={queue: HELD[queue] for queue in queues if queue in HELD},
            reserved={queues[0]: _reserved(concurrency)},
            attempts=180_000 - 9_000 * number,
            dropped=0,
            jobs_lost=3 if is_lost else 0,
        )
        Worker.objects.update_or_create(
            hostname=hostname,
            defaults={
                "boot_id": boot_id,
                "pool": "prefork",
                "has_agent": True,
                "queues": queues,
                "tasks": {task: None for task, queue, _, _ in TASKS if queue in queues},
                "digest": f"night-{number}",
                "seen_at": seen,
            },
        )
    return len(WORKERS)


def _states(now: datetime) -> int:
    """What stood open in each minute: of the letters that are dead now, those that had died."""
    from bisect import bisect_right

    from jobs.models import DeadLetter, StateSample

    died = sorted(DeadLetter.objects.filter(state="dead").values_list("died_at", flat=True))
    this_minute = now.replace(second=0, microsecond=0)
    this_hour = now.replace(minute=0, second=0, microsecond=0)

    def state(level: str, at: datetime, end: datetime) -> StateSample:
        is_lost = end > now - timedelta(minutes=21)
        return StateSample(
            level=level,
            at=at,
            dead_letters=bisect_right(died, end),
            outbox_lag_seconds=0.4,
            workers_online=len(WORKERS) - is_lost,
        )

    rows = [
        state(RollupLevel.MINUTE, at, at + timedelta(minutes=1))
        for at in (this_minute - timedelta(minutes=ago) for ago in range(MINUTES))
    ]
    rows += [
        state(RollupLevel.HOUR, at, at + timedelta(hours=1))
        for at in (this_hour - timedelta(hours=ago) for ago in range(DAYS * 24))
    ]
    StateSample.objects.bulk_create(rows, batch_size=2000)
    return len(rows)
