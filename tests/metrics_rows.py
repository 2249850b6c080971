"""Rows of what workers report: rollups, samples of queues, lives of workers, finished attempts.

Times default to ``factories.NOW``; every argument has a believable default.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.core import histograms
from jobs.core.words import RollupLevel, RollupScope, RunOutcome, SampleLevel
from jobs.models import QueueSample, Rollup, Run, WorkerBoot
from tests.factories import NOW

TASK = "shop.tasks.send_receipt"
QUEUE = "critical"

_numbers = itertools.count(1)
_STEPS = {
    RollupLevel.MINUTE: timedelta(minutes=1),
    RollupLevel.HOUR: timedelta(hours=1),
    RollupLevel.DAY: timedelta(days=1),
}


def histogram_of(seconds: Iterable[float]) -> histograms.Histogram:
    """Count durations by bucket."""
    counted: histograms.Histogram = {}
    for each in seconds:
        bucket = histograms.bucket_of(each)
        counted[bucket] = counted.get(bucket, 0) + 1
    return counted


def make_rollup(
    *,
    at: datetime = NOW,
    task: str = TASK,
    queue: str = QUEUE,
    latency: Iterable[float] = (),
    runtime: Iterable[float] = (),
    **counts: int,
) -> None:
    """Add what happened to a task on a queue in the minute of ``at``: all scopes, all levels.

    ``counts`` are received, done, retried, dead, revoked, ignored, dropped; durations in seconds.
    """
    latencies, runtimes = list(latency), list(runtime)
    for level in RollupLevel:
        for scope in RollupScope:
            row, _ = Rollup.objects.get_or_create(
                level=level,
                scope=scope,
                starts_at=_start(at, level),
                task=task if scope in {RollupScope.BOTH, RollupScope.TASK} else "",
                queue=queue if scope in {RollupScope.BOTH, RollupScope.QUEUE} else "",
            )
            for name, number in counts.items():
                setattr(row, name, getattr(row, name) + number)
            row.latency_sum_seconds += sum(latencies)
            row.runtime_sum_seconds += sum(runtimes)
            row.latency = _add(row.latency, latencies)
            row.runtime = _add(row.runtime, runtimes)
            row.save()


def make_heartbeat(*, at: datetime = NOW) -> None:
    """Say that a worker reported in the minute of ``at``, and nothing ran."""
    for level in RollupLevel:
        Rollup.objects.get_or_create(
            level=level, scope=RollupScope.ALL, starts_at=_start(at, level), task="", queue=""
        )


def make_sample(
    *, queue: str = QUEUE, at: datetime = NOW, level: SampleLevel | None = None, **columns: Any
) -> QueueSample:
    """Sample a queue: on all levels, or on one. Return the row of the finest."""
    values = {
        "ready": 0,
        "unacknowledged": 0,
        "held_by_workers": 0,
        "held_in_outbox": 0,
        "consumers": 1,
        **columns,
    }
    values.setdefault("ready_max", values["ready"])
    rows = []
    for each in SampleLevel if level is None else (level,):
        start = at if each == SampleLevel.SAMPLE else _start(at, RollupLevel(each.value))
        row, _ = QueueSample.objects.update_or_create(level=each, queue=queue, at=start, defaults=values)
        rows.append(row)
    return rows[0]


def make_boot(hostname: str = "celery@web-1", **columns: Any) -> WorkerBoot:
    """Insert a worker that lives and is idle."""
    values: dict[str, Any] = {
        "boot_id": uuid.uuid4().hex,
        "hostname": hostname,
        "pool": "prefork",
        "concurrency": 4,
        "queues": [QUEUE],
        "started_at": NOW - timedelta(hours=9),
        "reported_at": NOW,
        "last_seen_at": NOW,
        "sequence": next(_numbers),
        "load": 0.62,
        "memory_bytes": 412_000_000,
        "attempts": 18_204,
    }
    return WorkerBoot.objects.create(**{**values, **columns})


def running_job(**fields: Any) -> dict[str, Any]:
    """Return a job as a boot's ``running`` holds it."""
    task_id = fields.pop("task_id", str(uuid.uuid4()))
    return {
        "task_id": task_id,
        "task": TASK,
        "queue": QUEUE,
        "attempt": 0,
        "publication_id": uuid.uuid4().hex,
        "root_id": task_id,
        "published_at": NOW.timestamp() - 20,
        "started_at": NOW.timestamp() - 12,
        "is_acknowledged": False,
        "replay_of": "",
        "replay_item": None,
        **fields,
    }


def make_run(**columns: Any) -> Run:
    """Insert an attempt that was done."""
    task_id = columns.get("task_id") or str(uuid.uuid4())
    finished_at = columns.get("finished_at", NOW)
    values: dict[str, Any] = {
        "task_id": task_id,
        "publication_id": uuid.uuid4().hex,
        "root_id": task_id,
        "task": TASK,
        "queue": QUEUE,
        "outcome": RunOutcome.DONE,
        "worker": "celery@web-1",
        "published_at": finished_at - timedelta(seconds=2),
        "started_at": finished_at - timedelta(seconds=1),
        "finished_at": finished_at,
        "latency_seconds": 1.0,
        "runtime_seconds": 1.0,
    }
    return Run.objects.create(**{**values, **columns})


def _start(at: datetime, level: RollupLevel) -> datetime:
    seconds = _STEPS[level].total_seconds()
    return datetime.fromtimestamp(at.timestamp() // seconds * seconds, UTC)


def _add(packed: bytes, seconds: list[float]) -> bytes:
    return histograms.pack(histograms.merge([histograms.unpack(packed), histogram_of(seconds)]))
