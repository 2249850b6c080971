"""The rows of the workers that report, and who may change them and the rollups: one at a time."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import connection

from jobs.agent.batches import OUTCOMES, Batch, RunningJob
from jobs.collector.rows import moment
from jobs.collector.writing import insert, update
from jobs.core import sequences
from jobs.core.cleaning import clean_name
from jobs.core.sequences import Counted
from jobs.models import WorkerBoot

BOOT_LENGTH = 64
# Of what a batch lists. A worker has a slot for each of its jobs, and a few queues; with gevent it may have
# thousands, and those that are acknowledged already are what a lost worker takes with it.
MOST_QUEUES, MOST_RUNNING = 1_000, 5_000
_TURN = int.from_bytes(hashlib.blake2b(b"jobs.runs", digest_size=8).digest(), "big", signed=True)
_COLUMNS = tuple(field.attname for field in WorkerBoot._meta.concrete_fields if not field.primary_key)


def take_turn() -> None:
    """Wait until no other transaction counts batches or declares workers lost; let go with the transaction.

    One process has the duty, but one that lost its lease may still be at it. On SQLite a transaction that
    writes is alone anyway.
    """
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_TURN])


def load(batches: Iterable[Batch], *, now: datetime) -> dict[str, WorkerBoot]:
    """Return the rows of the batches' workers by boot id, new ones not saved yet. One query."""
    first: dict[str, Batch] = {}
    for batch in batches:
        first.setdefault(boot_id_of(batch), batch)
    found = {row.boot_id: row for row in WorkerBoot.objects.filter(boot_id__in=first)}
    for boot_id, batch in first.items():
        if boot_id not in found:
            found[boot_id] = WorkerBoot(
                boot_id=boot_id,
                started_at=moment(batch.started_at, now=now) or now,
                reported_at=min(moment(batch.at, now=now) or now, now),
                last_seen_at=now,
            )
    return found


def boot_id_of(batch: Batch) -> str:
    """Return the boot id as its row has it."""
    return clean_name(batch.boot_id, limit=BOOT_LENGTH)


def count(boot: WorkerBoot, batch: Batch, *, now: datetime) -> bool:
    """Note a batch in its worker's row, which is not saved; return whether it is counted for the first time.

    What the worker is doing now is taken from its newest batch only.
    """
    counted = sequences.count(Counted(boot.sequence, boot.missing), batch.sequence)
    if counted is None:
        return False
    describes = is_newest(boot, batch)
    boot.sequence, boot.missing = counted.newest, counted.gaps
    boot.attempts += sum(getattr(cell, outcome) for cell in batch.cells for outcome in OUTCOMES)
    boot.dropped += batch.dropped
    if describes:
        _describe(boot, batch, now=now)
    return True


def is_newest(boot: WorkerBoot, batch: Batch) -> bool:
    """Say whether a batch tells more lately of its worker than all before it.

    By its number, or by its time: after one with a number that somebody made up, all that the worker tells
    would look old, and it would be given up for lost.
    """
    return batch.sequence > boot.sequence or batch.at > boot.reported_at.timestamp()


def save(boots: Iterable[WorkerBoot]) -> None:
    """Write the rows, in two statements."""
    rows = list(boots)
    insert(WorkerBoot, [_columns(boot) for boot in rows if boot.pk is None])
    update(WorkerBoot, [{"id": boot.pk, **_columns(boot)} for boot in rows if boot.pk is not None])


def _columns(boot: WorkerBoot, names: Sequence[str] = _COLUMNS) -> dict[str, object]:
    return {name: getattr(boot, name) for name in names}


def _describe(boot: WorkerBoot, batch: Batch, *, now: datetime) -> None:
    boot.hostname = clean_name(batch.hostname)
    boot.pool = clean_name(batch.pool, limit=64)
    boot.concurrency = batch.concurrency
    boot.queues = [clean_name(queue) for queue in batch.queues[:MOST_QUEUES]]
    boot.reported_at = min(moment(batch.at, now=now) or now, now)
    boot.last_seen_at = now
    boot.goodbye_at = boot.reported_at if batch.is_goodbye else None
    boot.load = batch.load
    boot.memory_bytes = batch.memory_bytes
    running = sorted(batch.running, key=lambda job: not job.is_acknowledged)[:MOST_RUNNING]
    boot.running = [_cleaned(job) for job in running]
    boot.held, boot.reserved = _by_queue(batch.held), _by_queue(batch.reserved)


def _cleaned(job: RunningJob) -> dict[str, Any]:
    return {
        name: clean_name(value) if isinstance(value, str) else value
        for name, value in dataclasses.asdict(job).items()
    }


def _by_queue(counts: dict[str, int]) -> dict[str, int]:
    return {clean_name(queue): number for queue, number in list(counts.items())[:MOST_QUEUES]}
