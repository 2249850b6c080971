"""Reads from the database what runs and how long jobs take."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from jobs.broker.workers import describe_workers
from jobs.models import BeatProcess, IdempotencyRecord, Worker
from jobs.preflight.facts import BeatFacts, Runtime, WorkerFacts
from jobs.preflight.gather_application import OWN_TASKS
from jobs.preflight.runtimes import longest

# Three sightings.
BEAT_ALIVE = timedelta(seconds=30)
WORKER_ALIVE = timedelta(seconds=60)
MEASURED_FOR = timedelta(days=1)
# The newest of the day: a worker that starts must not sort a million rows.
MEASURED_RUNS = 10_000


def measured_runtime(*, now: datetime) -> Runtime | None:
    """Return the longest p99 of a task's runs in the ledger, the newest of the last day. One query."""
    rows = (
        IdempotencyRecord.objects.filter(
            updated_at__gte=now - MEASURED_FOR,
            state=IdempotencyRecord.State.DONE,
            completed_at__isnull=False,
        )
        .order_by("-updated_at")
        .values_list("task", "started_at", "completed_at")[:MEASURED_RUNS]
    )
    return longest(
        (task, (ended - began).total_seconds()) for task, began, ended in rows if ended is not None
    )


def living_beats(*, now: datetime) -> tuple[BeatFacts, ...]:
    """Return the beats seen within the last 30 s, the oldest first."""
    return tuple(
        BeatFacts(name=str(beat), started_at=beat.started_at, seen_at=beat.seen_at)
        for beat in BeatProcess.objects.filter(seen_at__gte=now - BEAT_ALIVE).order_by("started_at", "pk")
    )


def living_workers(connection: Any, *, now: datetime) -> tuple[WorkerFacts, ...]:
    """Return the workers that answer now, and those that runops saw in the last minute.

    The second, because a worker of the pool ``solo`` does not answer while it runs a job.
    """
    seen = {
        worker.hostname: WorkerFacts(
            worker.hostname, worker.pool, frozenset(worker.queues), _tasks(worker.tasks)
        )
        for worker in Worker.objects.filter(seen_at__gte=now - WORKER_ALIVE)
    }
    for answer in describe_workers(connection):
        seen[answer.hostname] = WorkerFacts(
            answer.hostname, answer.pool, frozenset(answer.queues), _tasks(answer.tasks or {})
        )
    return tuple(seen[name] for name in sorted(seen))


def _tasks(names: Any) -> frozenset[str]:
    return frozenset(name for name in names if not name.startswith(OWN_TASKS))
