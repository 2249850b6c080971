"""Batches → rows, in one transaction: workers, finished runs, rollups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from jobs.agent.batches import Batch
from jobs.collector.rows import moment
from jobs.collector.writing import insert
from jobs.core.cleaning import clean_name
from jobs.metrics import boots, lost, rollups
from jobs.models import Run, WorkerBoot

# A worker that was cut off tells of that time in one batch: so many minutes of it are known, if nothing else
# happened in them, to be zero. Beyond, minutes without cells stay unknown.
MOST_QUIET_MINUTES = 360


@dataclass(frozen=True, slots=True)
class Stored:
    """What batches added. A batch that was counted already adds nothing."""

    batches: int = 0
    runs: int = 0
    # Workers that had been given up for lost and are back.
    returned: int = 0


def store(batches: Sequence[Batch], *, now: datetime) -> Stored:
    """Count batches in one transaction; storing one again adds nothing.

    Whoever else counts is waited for, see ``boots.take_turn``.
    """
    with transaction.atomic():
        boots.take_turn()
        known = boots.load(batches, now=now)
        fresh: list[Batch] = []
        alive: set[int] = set()
        returned: dict[str, WorkerBoot] = {}
        for batch in sorted(batches, key=lambda each: each.sequence):
            boot = known[boots.boot_id_of(batch)]
            newest, reported_at = boot.sequence, boot.reported_at
            if not boots.count(boot, batch, now=now):
                continue
            fresh.append(batch)
            is_next = batch.sequence == newest + 1 and newest > 0
            alive.update(_minutes(batch, reported_at if is_next else None, now=now))
            if boot.lost_at is not None and boot.sequence > newest:
                returned[boot.boot_id] = boot
        for boot in returned.values():
            lost.take_back(boot, now=now)
        boots.save(known[boot_id] for boot_id in {boots.boot_id_of(batch) for batch in fresh})
        cells = (cell for batch in fresh for cell in batch.cells)
        rollups.write(rollups.add_up(cells, alive, now=now))
        runs = list(_runs(fresh, now=now))
        insert(Run, runs)
    return Stored(batches=len(fresh), runs=len(runs), returned=len(returned))


def _minutes(batch: Batch, reported_at: datetime | None, *, now: datetime) -> Iterator[int]:
    """Return the minutes in which the worker is known to have been there: back to its batch before, if that is here."""
    last = rollups.minute_of(batch.at, now=now)
    yield last
    if reported_at is not None:
        first = rollups.minute_of(reported_at.timestamp(), now=now)
        first = max(first, last - int(timedelta(minutes=MOST_QUIET_MINUTES).total_seconds()))
        yield from range(first, last, 60)


def _runs(batches: Iterable[Batch], *, now: datetime) -> Iterator[dict[str, Any]]:
    # Tasks, queues and errors repeat.
    names: dict[str, str] = {}

    def name(text: str) -> str:
        cleaned = names.get(text)
        if cleaned is None:
            cleaned = names[text] = clean_name(text)
        return cleaned

    for batch in batches:
        worker = clean_name(batch.hostname)
        for run in batch.runs:
            yield {
                "task_id": clean_name(run.task_id),
                "publication_id": clean_name(run.publication_id),
                "root_id": clean_name(run.root_id),
                "task": name(run.task),
                "queue": name(run.queue),
                "outcome": run.outcome,
                "attempt": run.attempt,
                "worker": worker,
                "error_type": name(run.error_type),
                "published_at": moment(run.published_at, now=now),
                "started_at": moment(run.started_at, now=now),
                "finished_at": moment(run.finished_at, now=now) or now,
                "latency_seconds": run.latency,
                "runtime_seconds": run.runtime,
            }
