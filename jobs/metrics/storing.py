"""Batches → rows, in one transaction: workers, finished runs, rollups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection, transaction

from jobs.agent.batches import Batch
from jobs.collector.rows import CLOCK_TOLERANCE
from jobs.collector.writing import insert_prepared
from jobs.core.cleaning import clean_name
from jobs.metrics import boots, lost, rollups
from jobs.metrics.run_names import fit
from jobs.models import Run, WorkerBoot

# A worker that was cut off tells of that time in one batch: so many minutes of it are known, if nothing else
# happened in them, to be zero. Beyond, minutes without cells stay unknown.
MOST_QUIET_MINUTES = 360
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC).timestamp()
_RUN_COLUMNS = (
    *("task_id", "publication_id", "root_id"),
    *("task", "queue", "outcome", "attempt", "worker", "error_type"),
    *("published_at", "started_at", "finished_at", "latency_seconds", "runtime_seconds"),
)


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
            is_newest = boots.is_newest(boot, batch)
            if not boots.count(boot, batch, now=now):
                continue
            fresh.append(batch)
            is_next = batch.sequence == newest + 1 and newest > 0
            alive.update(_minutes(batch, reported_at if is_next else None, now=now))
            if boot.lost_at is not None and is_newest:
                returned[boot.boot_id] = boot
        for boot in returned.values():
            lost.take_back(boot, now=now)
        boots.save(known[boot_id] for boot_id in {boots.boot_id_of(batch) for batch in fresh})
        cells = (cell for batch in fresh for cell in batch.cells)
        named = rollups.named_today(now=now)
        rollups.write(rollups.add_up(cells, alive, now=now, named=named))
        # Made while they are written: PostgreSQL works on what it has got meanwhile.
        insert_prepared(Run, _RUN_COLUMNS, _runs(fresh, now=now))
    runs = sum(len(batch.runs) for batch in fresh)
    return Stored(batches=len(fresh), runs=runs, returned=len(returned))


def _minutes(batch: Batch, reported_at: datetime | None, *, now: datetime) -> Iterator[int]:
    """Return the minutes in which the worker is known to have been there: back to its batch before, if that is here."""
    last = rollups.minute_of(batch.at, now=now)
    yield last
    if reported_at is not None:
        first = rollups.minute_of(reported_at.timestamp(), now=now)
        first = max(first, last - int(timedelta(minutes=MOST_QUIET_MINUTES).total_seconds()))
        yield from range(first, last, 60)


def _runs(batches: Iterable[Batch], *, now: datetime) -> Iterator[tuple[Any, ...]]:
    """Return the rows of the finished attempts, in the order of _RUN_COLUMNS."""
    # Tasks, queues and errors repeat.
    names: dict[str, str] = {}

    def name(text: str) -> str:
        cleaned = names.get(text)
        if cleaned is None:
            cleaned = names[text] = fit(clean_name(text))
        return cleaned

    moments = Moments(now)
    for batch in batches:
        worker = fit(clean_name(batch.hostname))
        for run in batch.runs:
            task_id = clean_name(run.task_id)
            # Most jobs follow no other: their own root.
            root_id = task_id if run.root_id == run.task_id else clean_name(run.root_id)
            yield (
                *(task_id, clean_name(run.publication_id), root_id),
                *(name(run.task), name(run.queue), run.outcome, run.attempt, worker, name(run.error_type)),
                *(moments.text(run.published_at), moments.text(run.started_at)),
                *(moments.text(run.finished_at) or moments.now, run.latency, run.runtime),
            )


class Moments:
    """Times that an agent tells → what the database takes, as ``collector.rows.moment`` judges them.

    Most of a batch lie in the same few seconds; a datetime and its text for each would cost a fifth of the
    collector's time.
    """

    def __init__(self, now: datetime) -> None:
        self._last = (now + CLOCK_TOLERANCE).timestamp()
        self._zone = "+00:00" if connection.vendor == "postgresql" else ""
        self._seconds: dict[int, str] = {}
        self.now = str(self.text(now.timestamp()))

    def text(self, seconds: float | None) -> str | None:
        """Return the moment; None when there is none or the clock that wrote it is wrong."""
        if seconds is None or not _EARLIEST <= seconds <= self._last:
            return None
        whole = int(seconds)
        text = self._seconds.get(whole)
        if text is None:
            text = self._seconds[whole] = str(datetime.fromtimestamp(whole, UTC).replace(tzinfo=None))
        micro = round((seconds - whole) * 1_000_000)
        if micro > 999_999:
            micro = 999_999
        return f"{text}.{micro:06d}{self._zone}" if micro else f"{text}{self._zone}"
