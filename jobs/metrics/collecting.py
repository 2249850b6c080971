"""Batches on ``jobs.runs`` → rows, before they are acknowledged.

A crash between the commit and the acknowledgement delivers them again, and adds nothing: a batch is known by
its worker's boot and its number.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Protocol

from django.db import InterfaceError, OperationalError

from jobs.agent import batches
from jobs.agent.batches import OUTCOMES, Batch, BatchError
from jobs.broker import probing
from jobs.broker.inbox import BATCH_BYTES, Taken
from jobs.errors import BrokerUnavailable
from jobs.metrics.storing import store

logger = logging.getLogger(__name__)

# Batches a round. With 500 records in each, a transaction of half a second.
LIMIT = 64
# A transaction ends at so many records and cells: a batch may be anybody's, and larger than an agent's.
MOST_ROWS = 40_000
# Longer ago than this it says nothing that all was read which waited. A full round in between is no break: some
# hundred workers fill one in half a second, and the next reads the rest.
LONGEST_BREAK = timedelta(seconds=10)
# How long all that waited must have been read before a worker's silence says something. After an outage of the
# broker Celery waits up to 30 s before it tries to connect again, and the worker's first words come then.
LEVEL_FOR = timedelta(seconds=60)
# When nothing has come for so long, the collector sends itself a message: workers tell something each 5 s.
PROBE_AFTER = timedelta(seconds=6)
# So many that were sent and did not come back are a trouble.
MOST_UNANSWERED = 2
# One line in so long about batches that cannot be read.
TELL_EVERY = timedelta(seconds=60)
# What a column takes, and what no worker counts within a minute.
_MOST_COUNT = 10**9
_MOST_INTEGER = 2**31 - 1
_MOST_BIG = 2**63 - 1
_MOST_SECONDS = 1e15
# The year 2100: pages make a date of when a job began.
_LAST_MOMENT = 4_102_444_800.0


class _Inbox(Protocol):
    def take(self, limit: int, wait_seconds: float) -> list[Taken]: ...
    def ack(self, taken: list[Taken]) -> None: ...
    def probe(self) -> None: ...


@dataclass(slots=True)
class Unreadable:
    """Batches that could not be counted since somebody was told."""

    number: int = 0
    reason: str = ""
    told_at: datetime | None = None


class RunsCollector:
    """Moves batches from an inbox into the tables."""

    def __init__(self, inbox: _Inbox) -> None:
        self._inbox = inbox
        self._unreadable = Unreadable()
        # Whether the last round left something behind that waited before it.
        self.is_behind = False
        # When a round last read all that waited, and since when one has done so again and again.
        self._level_at: datetime | None = None
        self.level_since: datetime | None = None
        # When anything came last, and what is known of messages that were sent to see whether they come.
        self._arrived_at: datetime | None = None
        self._probed_at: datetime | None = None
        self._unanswered = 0
        self._refusal = ""
        self._unread = ""

    def collect(self, *, limit: int = LIMIT, wait_seconds: float = 1.0, now: datetime) -> int:
        """Take what waits, count it, acknowledge it; return how many batches that were.

        Where nothing comes it is tried whether anything would.

        Raises:
            BrokerUnavailable: when the broker is away; nothing is lost.
            OperationalError: when the database is away or busy; the batches are delivered again.
        """
        try:
            taken = self._inbox.take(limit, wait_seconds)
            if not taken and self._probe(now):
                taken = self._inbox.take(limit, wait_seconds)
            for together in self._read(taken):
                self._write(together, now=now)
            self._inbox.ack(taken)
        except Exception:
            self.level_since = self._level_at = None
            raise
        self._note_level(taken, limit, now)
        self._tell_unreadable(now)
        return sum(not _is_probe(one) for one in taken)

    @property
    def hindrance(self) -> str:
        """Why nothing that workers tell arrives; empty while it does."""
        deaf = self._refusal
        if not deaf and self._unanswered >= MOST_UNANSWERED:
            deaf = f"{self._unanswered:,} messages that were sent to jobs.runs did not come back."
        return f"Workers cannot tell that they live, so none is given up for lost: {deaf}" if deaf else ""

    @property
    def remark(self) -> str:
        """What could not be read lately, without a full stop; empty when all could."""
        return self._unread

    def has_heard_all(self, *, now: datetime) -> bool:
        """Say whether every living worker must have been heard of by now: all was read for LEVEL_FOR.

        And all the while messages came, if only our own: else the workers may be there, and the queue takes none.
        """
        if self.level_since is None or self._level_at is None:
            return False
        return _is_soon(self._level_at, now) and now - self.level_since >= LEVEL_FOR

    def _read(self, taken: Sequence[Taken]) -> Iterator[list[Batch]]:
        """Return the batches that can be read, in the order they came, at most MOST_ROWS at a time."""
        together: list[Batch] = []
        rows = 0
        for one in taken:
            if _is_probe(one):
                continue
            try:
                batch = read(one)
            except (BatchError, RecursionError) as error:
                self._unreadable.number += 1
                self._unreadable.reason = str(error)
                continue
            together.append(batch)
            rows += _size(batch)
            if rows >= MOST_ROWS:
                yield together
                together, rows = [], 0
        if together:
            yield together

    def _write(self, together: Sequence[Batch], *, now: datetime) -> None:
        try:
            store(together, now=now)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            logger.warning(
                "%s batches were refused; each is counted by itself.", len(together), exc_info=True
            )
            for batch in together:
                self._write_alone(batch, now=now)

    def _write_alone(self, batch: Batch, *, now: datetime) -> None:
        try:
            store([batch], now=now)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            # What is refused would be refused for ever, and nothing behind it would be counted.
            logger.exception("A batch of %s was refused by the database.", batch.hostname[:80])
            self._unreadable.number += 1
            self._unreadable.reason = f"the database refused it ({type(error).__name__})"

    def _probe(self, now: datetime) -> bool:
        """Send a message if nothing has come for a while; return whether one may be on its way."""
        for at in (self._arrived_at, self._probed_at):
            if at is not None and timedelta(0) <= now - at < PROBE_AFTER:
                return False
        self._probed_at = now
        try:
            self._inbox.probe()
        except BrokerUnavailable as error:
            if not self._refusal:
                logger.error("Nobody is given up for lost: %s", error)
            self._refusal = str(error)
            self.level_since = self._level_at = None
            return False
        self._refusal = ""
        self._unanswered += 1
        return True

    def _note_level(self, taken: Sequence[Taken], limit: int, now: datetime) -> None:
        if any(_is_proof(one) for one in taken):
            self._arrived_at = now
            self._unanswered, self._refusal = 0, ""
        elif self._arrived_at is None or not _is_soon(self._arrived_at, now):
            # Nobody speaks, or nobody is let speak.
            self.is_behind = False
            self.level_since = self._level_at = None
            return
        self.is_behind = len(taken) >= limit or sum(len(one.body) for one in taken) > BATCH_BYTES // 2
        if self.is_behind:
            return
        if self._level_at is None or not _is_soon(self._level_at, now):
            self.level_since = now
        self._level_at = now

    def _tell_unreadable(self, now: datetime) -> None:
        """Log what was thrown away once in TELL_EVERY, and keep it as a remark for as long."""
        found = self._unreadable
        # A clock that was ahead keeps nobody silent.
        if found.told_at is not None and timedelta(0) <= now - found.told_at < TELL_EVERY:
            return
        self._unread = ""
        if found.number:
            which = "1 batch" if found.number == 1 else f"{found.number:,} batches"
            self._unread = f"{which} on jobs.runs could not be read or counted: {found.reason[:200]}"
            logger.error("%s", self._unread)
            self._unreadable = Unreadable(told_at=now)


def _is_probe(taken: Taken) -> bool:
    return taken.content_type == probing.CONTENT_TYPE


def _is_proof(taken: Taken) -> bool:
    """Say whether what was taken shows that the queue takes messages."""
    return not _is_probe(taken) or taken.body == probing.PROOF


def _is_soon(before: datetime, now: datetime) -> bool:
    return timedelta(0) <= now - before < LONGEST_BREAK


def read(taken: Taken) -> Batch:
    """Return the batch in a message, with numbers that the columns take.

    Raises:
        BatchError: when it is none; says what is wrong.
    """
    if taken.problem:
        raise BatchError(taken.problem)
    if taken.content_type != batches.CONTENT_TYPE:
        raise BatchError(f"its content type is {taken.content_type[:80] or 'not given'}")
    batch = batches.decode(taken.body)
    _check_numbers(batch)
    return batch


def _size(batch: Batch) -> int:
    """Count what a batch lists: a few kilobytes unpack to hundreds of thousands of entries."""
    rows = len(batch.runs) + len(batch.cells) + len(batch.running)
    return rows + len(batch.held) + len(batch.reserved) + len(batch.queues)


def _check_numbers(batch: Batch) -> None:
    """Refuse what no agent tells; leave out what is only a detail."""
    counts = [batch.dropped, *batch.held.values(), *batch.reserved.values()]
    for name in ("received", "dropped", *OUTCOMES):
        counts += map(attrgetter(name), batch.cells)
    for cell in batch.cells:
        counts += cell.latency.values()
        counts += cell.runtime.values()
        cell.latency_sum = _seconds(cell.latency_sum)
        cell.runtime_sum = _seconds(cell.runtime_sum)
    if not 0 <= min(counts) <= max(counts) <= _MOST_COUNT:
        raise BatchError(f"a count is not within 0 and {_MOST_COUNT:,}")
    if batch.sequence > _MOST_BIG:
        raise BatchError("its sequence is too large")
    if not all(isinstance(queue, str) for queue in batch.queues):
        raise BatchError("a queue's name is not text")
    batch.concurrency = _within(batch.concurrency, _MOST_INTEGER)
    batch.memory_bytes = _within(batch.memory_bytes, _MOST_BIG)
    if batch.load is not None:
        batch.load = _seconds(batch.load)
    for job in batch.running:
        job.attempt = _within(job.attempt, _MOST_INTEGER) or 0
        job.replay_item = _within(job.replay_item, _MOST_BIG)
        job.started_at = min(_seconds(job.started_at), _LAST_MOMENT)
        if job.published_at is not None:
            job.published_at = min(_seconds(job.published_at), _LAST_MOMENT)
    for run in batch.runs:
        run.attempt = _within(run.attempt, _MOST_INTEGER) or 0
        if run.latency is not None:
            run.latency = _seconds(run.latency)
        if run.runtime is not None:
            run.runtime = _seconds(run.runtime)


def _within(number: int | None, most: int) -> int | None:
    return number if number is not None and 0 <= number <= most else None


def _seconds(value: float) -> float:
    # Compared before it is converted: JSON has whole numbers that no float holds.
    return float(value) if 0 <= value <= _MOST_SECONDS else 0.0 if value < 0 else _MOST_SECONDS
