"""Counts all queues each 5 s, and keeps it: each moment for an hour, minutes for 7 days, hours for 2 years."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, Q

from jobs import conf
from jobs.broker.queues import Measured, Meter
from jobs.core.cleaning import NAME_LENGTH, clean_name
from jobs.core.words import LetterState, OutboxState, RollupLevel, RollupScope, SampleLevel
from jobs.models import DeadLetter, OutboxMessage, QueuePause, QueueSample, Rollup, Worker
from jobs.queues.consumers import Consumer, consumers_now, held_of, of_queue, unacknowledged_of
from jobs.queues.reading import DELAYED, OWN_QUEUES, is_own, most, now_of_all

# What anybody can name may be any number; those that workers consume come first, and of the others those
# which workers named and those in which messages were counted last.
MOST_QUEUES = 500
# How often queues are looked for beyond those that workers consume: with several queries, and keys of Redis.
LOOK_EVERY = timedelta(seconds=60)
_TOLD_WITHIN = timedelta(hours=24)
_DIED_WITHIN = timedelta(hours=1)
KEPT = {
    SampleLevel.SAMPLE: timedelta(hours=1),
    SampleLevel.MINUTE: timedelta(days=7),
    SampleLevel.HOUR: timedelta(days=730),
}
PRUNE_EVERY = timedelta(seconds=60)
_COUNTS = (
    *("ready", "unacknowledged", "held_by_workers", "held_in_outbox", "held_by_broker", "consumers"),
    *("oldest_age_seconds", "is_paused", "trouble"),
)


class Sampler:
    """Takes samples over one connection; remembers which queues there are."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._told: frozenset[str] = frozenset()
        self._declared: frozenset[str] = frozenset()
        # Those in which messages lay when they were counted last. A look finds only a part of what is
        # declared: without this one that nobody consumes would be counted until the next look, and its alert
        # would be over. None before the first round.
        self._waiting: frozenset[str] | None = None
        self._found_at: datetime | None = None
        self._pruned_at: datetime | None = None

    def sample(self, *, now: datetime) -> int:
        """Count every queue once and write it down, in one transaction; return how many there are.

        Raises:
            BrokerUnavailable: when the broker does not answer; then nothing is written, which is a gap.
        """
        consumers = consumers_now(now=now)
        paused = set(QueuePause.objects.values_list("queue", flat=True))
        held = held_in_outbox(now=now)
        queues = self._queues(consumers, {*paused, *held}, now=now)
        measured = self._meter.measure([*queues, *OWN_QUEUES])
        self._waiting = frozenset(
            queue for queue in queues if measured[queue].ready or measured[queue].unacknowledged
        )
        delayed = self._meter.delayed()
        rows = [
            _row(
                queue,
                measured[queue],
                consumers,
                held_in_outbox=held[queue],
                held_by_broker=None if delayed else 0,
                is_paused=queue in paused,
                now=now,
            )
            for queue in measured
        ]
        if delayed:
            rows.append(QueueSample(queue=DELAYED, ready=0, held_by_broker=delayed))
        write(rows, now=now)
        if self._pruned_at is None or now - self._pruned_at >= PRUNE_EVERY:
            prune(now=now)
            self._pruned_at = now
        return len(queues)

    def _queues(self, consumers: Iterable[Consumer], others: Collection[str], *, now: datetime) -> list[str]:
        if self._waiting is None:
            # What the runops before this one counted.
            self._waiting = frozenset(each.queue for each in now_of_all(now=now) if each.ready)
        if self._found_at is None or now - self._found_at >= LOOK_EVERY:
            self._told = frozenset(told_queues(now=now))
            self._declared = frozenset(self._meter.declared_waiting())
            self._found_at = now
        consumed = {queue for consumer in consumers for queue in consumer.queues}
        # One whose last worker goes is counted on, and not only after the next look.
        self._told |= consumed
        in_order = (consumed, others, self._told, self._waiting, self._declared)
        names = dict.fromkeys(queue for found in in_order for queue in sorted(found))
        # A name that a column does not hold as it is cannot be told from another.
        fit = [name for name in names if name and not is_own(name) and clean_name(name) == name]
        return fit[:MOST_QUEUES]


def told_queues(*, now: datetime) -> set[str]:
    """Return the queues that workers named, jobs ran on or letters died on lately. Three queries."""
    since = now - _TOLD_WITHIN
    names: set[str] = set()
    for queues in Worker.objects.filter(seen_at__gte=since).values_list("queues", flat=True):
        names.update(queues)
    ran = Rollup.objects.filter(level=RollupLevel.HOUR, scope=RollupScope.QUEUE, starts_at__gte=since)
    names.update(ran.values_list("queue", flat=True).distinct())
    died = DeadLetter.objects.filter(state=LetterState.DEAD, died_at__gte=now - _DIED_WITHIN)
    names.update(died.order_by().values_list("queue", flat=True).distinct())
    return {name for name in names if isinstance(name, str)}


def held_in_outbox(*, now: datetime) -> Counter[str]:
    """Count by queue what the outbox holds until its time. A query a database with an outbox."""
    held: Counter[str] = Counter()
    for using in conf.current().outbox_databases:
        rows = OutboxMessage.objects.using(using).filter(
            Q(eta__gt=now), state=OutboxState.PENDING, available_at__gt=now
        )
        for queue, routing_key, number in rows.values_list("queue", "routing_key").annotate(
            number=Count("pk")
        ):
            held[queue or routing_key] += number
    return held


def write(rows: list[QueueSample], *, now: datetime) -> None:
    """Write a sample of each queue, and add it to its minute and its hour, in one transaction.

    One process at a time does: it holds the duty.
    """
    for row in rows:
        row.level, row.at, row.samples, row.ready_max = SampleLevel.SAMPLE.value, now, 1, row.ready
    with transaction.atomic():
        QueueSample.objects.bulk_create(rows, ignore_conflicts=True)
        _add(rows, SampleLevel.MINUTE, now.replace(second=0, microsecond=0))
        _add(rows, SampleLevel.HOUR, now.replace(minute=0, second=0, microsecond=0))


def prune(*, now: datetime) -> None:
    """Delete what is past its time."""
    for level, kept in KEPT.items():
        QueueSample.objects.filter(level=level.value, at__lt=now - kept).delete()


def _add(rows: Iterable[QueueSample], level: SampleLevel, starts_at: datetime) -> None:
    known = {row.queue: row for row in QueueSample.objects.filter(level=level.value, at=starts_at)}
    changed = []
    for row in rows:
        before = known.get(row.queue)
        sums = QueueSample(level=level.value, queue=row.queue, at=starts_at)
        for name in _COUNTS:
            setattr(sums, name, getattr(row, name))
        sums.ready_max = row.ready
        if before is not None:
            sums.samples = before.samples + 1
            sums.ready_max = most(before.ready_max, row.ready)
            sums.oldest_age_seconds = most(before.oldest_age_seconds, row.oldest_age_seconds)
        changed.append(sums)
    QueueSample.objects.bulk_create(
        changed,
        update_conflicts=True,
        unique_fields=["level", "queue", "at"],
        update_fields=["samples", "ready_max", *_COUNTS],
    )


def _row(
    queue: str,
    measured: Measured,
    consumers: list[Consumer],
    *,
    now: datetime,
    **columns: Any,
) -> QueueSample:
    unacknowledged = measured.unacknowledged
    if unacknowledged is None:
        unacknowledged = unacknowledged_of(consumers, queue)
    number = measured.consumers
    age = None
    if measured.waiting_since is not None:
        # A clock that is ahead makes no age below zero; one that says 1970 is taken at its word.
        age = max(0.0, now.astimezone(UTC).timestamp() - measured.waiting_since)
    return QueueSample(
        queue=queue,
        ready=measured.ready,
        unacknowledged=unacknowledged,
        held_by_workers=held_of(consumers, queue),
        consumers=len(of_queue(consumers, queue)) if number is None else number,
        oldest_age_seconds=age,
        trouble=(measured.trouble or _orphans(queue, measured, consumers))[:NAME_LENGTH],
        **columns,
    )


def _orphans(queue: str, measured: Measured, consumers: list[Consumer]) -> str:
    """Say how many messages were delivered to workers that are not there any more, and when they come back."""
    known = unacknowledged_of(consumers, queue)
    if known is None or measured.returns_at is None or measured.delivered_long_ago <= known:
        return ""
    number = measured.delivered_long_ago - known
    at = datetime.fromtimestamp(measured.returns_at, UTC)
    return (
        f"{number:,} delivered message{'s belong' if number > 1 else ' belongs'} to no worker that is there."
        f" Redis delivers them again from {at:%Y-%m-%d %H:%M} UTC on, when their visibility timeout is over."
    )
