"""What waits on the queues: now, and over a window. Reads samples; nobody asks the broker here.

Every function does a fixed number of queries. A count that nobody can know is None, never zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import BigIntegerField, Func, Max, QuerySet

from jobs import conf, leases
from jobs.agent.wire import DEAD_QUEUE, RUNS_QUEUE
from jobs.broker.queues import on_redis
from jobs.core.windows import Window
from jobs.core.words import RollupLevel, SampleLevel
from jobs.models import Lease, QueuePause, QueueSample

DUTY = "queues"
# The product's own queues, which no page lists and nobody may pause or purge.
OWN_QUEUES = (DEAD_QUEUE, RUNS_QUEUE)
# And lists of the product's on Redis, which somebody could name as if they were queues.
_OWN_LISTS = (f"{DEAD_QUEUE}.", f"{RUNS_QUEUE}.", "jobs.purge.", "jobs.sent.")
# What RabbitMQ itself holds for later, of all queues together: it does not tell of which.
DELAYED = "celery_delayed"
SAMPLE_EVERY = timedelta(seconds=5)
# A sample that is older is shown as such: three were missed.
STALE_AFTER = timedelta(seconds=15)
# One that is further ahead was taken while a clock was wrong, and would be the newest for long.
_AHEAD = timedelta(seconds=60)
# Values of one statement; SQLite of old takes 999.
_MOST_MOMENTS = 900
_AWAY = "Queues have not been counted lately: no runops carries it out."
_SLOW = (
    "Queues have not been counted lately: a runops is at it, but the broker or the database answers slowly."
)
_LEFT_OUT = (
    "It is not counted now. Counted are queues that workers named within 24 hours, and others in which"
    " messages were found, 500 at most."
)


@dataclass(frozen=True, slots=True)
class QueueNow:
    """A queue as it was counted last, at ``at``. Counts that nobody can know are None.

    ``ready`` wait on the broker. ``unacknowledged`` were delivered to workers and are not done with;
    ``held_by_workers``, those which wait there for their time, are among them. Where the broker does not
    tell, ``is_told_by_workers`` and they are what workers with the agent say they have.
    ``trouble`` is a sentence about the queue or about the counting, "" when all is well.
    """

    queue: str
    at: datetime
    ready: int | None = None
    unacknowledged: int | None = None
    held_by_workers: int | None = None
    held_in_outbox: int | None = None
    held_by_broker: int | None = None
    consumers: int | None = None
    oldest_age_seconds: float | None = None
    is_paused: bool = False
    paused_by: str = ""
    paused_at: datetime | None = None
    is_stale: bool = False
    trouble: str = ""
    is_told_by_workers: bool = False

    @property
    def is_unconsumed(self) -> bool:
        """Say whether messages wait and nobody consumes, by nobody's wish."""
        return bool(self.ready) and self.consumers == 0 and not self.is_paused

    @property
    def held(self) -> int | None:
        """Return what is held for later wherever that is known; None when it is known nowhere."""
        known = [
            each
            for each in (self.held_by_workers, self.held_in_outbox, self.held_by_broker)
            if each is not None
        ]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """A queue over one step of a window: at its end, and the most within it."""

    ready: int | None
    ready_max: int | None
    oldest_age_seconds: float | None
    consumers: int | None
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the collector has not read: dead letters, and batches of what workers report."""

    at: datetime
    dead: int | None
    runs: int | None
    is_stale: bool


def is_own(queue: str) -> bool:
    """Say whether a name is one of the product's own queues or lists."""
    return queue in OWN_QUEUES or queue.startswith(_OWN_LISTS)


def now_of_all(*, now: datetime) -> list[QueueNow]:
    """Return all queues as they were counted last, by name, the product's own left out. Six queries at most."""
    newest = _newest_at(now=now)
    if newest is None:
        return []
    samples = (
        QueueSample.objects.filter(level=SampleLevel.SAMPLE.value, at=newest)
        .exclude(queue__in=OWN_QUEUES)
        .order_by("queue")
    )
    pauses = {pause.queue: pause for pause in QueuePause.objects.all()}
    return list(_present(samples, pauses, newest=newest, now=now))


def now_of(queue: str, *, now: datetime) -> QueueNow | None:
    """Return a queue as it was counted last, or None when it never was. Six queries at most."""
    samples = QueueSample.objects.filter(level=SampleLevel.SAMPLE.value, queue=queue, at__lte=now + _AHEAD)
    sample = samples.order_by("-at").first()
    if sample is None:
        return None
    newest = sample.at
    if now - newest > STALE_AFTER:
        # Others may be counted all the same.
        newest = _newest_at(now=now) or newest
    pauses = {pause.queue: pause for pause in QueuePause.objects.filter(queue=queue)}
    return next(iter(_present([sample], pauses, newest=newest, now=now)))


def depth_series(
    window: Window, *, queues: Sequence[str] = (), now: datetime
) -> dict[str, list[DepthPoint | None]]:
    """Return for each queue what it held in each step; None for a step in which it was not counted.

    Without ``queues`` all that were counted in the window, the product's own left out. Two queries at most.
    """
    level = SampleLevel.MINUTE if window.level(now=now) == RollupLevel.MINUTE else SampleLevel.HOUR
    found = QueueSample.objects.filter(level=level.value, at__gte=window.start, at__lt=window.end)
    found = found.filter(queue__in=queues) if queues else found.exclude(queue__in=OWN_QUEUES)
    steps = round(window.length.total_seconds() / window.step_seconds)
    series: dict[str, list[DepthPoint | None]] = {queue: [None] * steps for queue in queues}
    is_each = window.step_seconds == (60 if level == SampleLevel.MINUTE else 3_600)
    for queue, at, point in _each_point(found) if is_each else _merged_points(found, window.step_seconds):
        series.setdefault(queue, [None] * steps)[window.index(at)] = point
    return series


def _each_point(found: QuerySet[QueueSample]) -> Iterator[tuple[str, datetime, DepthPoint]]:
    rows = found.values_list(
        "queue", "at", "ready", "ready_max", "oldest_age_seconds", "consumers", "is_paused"
    )
    for queue, at, ready, highest, oldest, consumers, is_paused in rows.order_by().iterator():
        yield queue, at, DepthPoint(ready, highest, oldest, consumers, is_paused)


def _merged_points(
    found: QuerySet[QueueSample], step_seconds: int
) -> Iterator[tuple[str, datetime, DepthPoint]]:
    """Merge the rows of each step in the database: of a day of 200 queues there are 288,000."""
    merged = {
        (queue, newest): (highest, oldest)
        for queue, _, newest, highest, oldest in found.annotate(step=_Step("at", seconds=step_seconds))
        .values_list("queue", "step")
        .annotate(Max("at"), Max("ready_max"), Max("oldest_age_seconds"))
        .order_by()
    }
    # Queues are counted together, so few moments are the newest of a step.
    moments = {newest for _, newest in merged}
    newest_rows = found.filter(at__in=moments) if len(moments) <= _MOST_MOMENTS else found
    for queue, at, ready, consumers, is_paused in newest_rows.order_by().values_list(
        "queue", "at", "ready", "consumers", "is_paused"
    ):
        if (queue, at) in merged:
            highest, oldest = merged[queue, at]
            yield queue, at, DepthPoint(ready, highest, oldest, consumers, is_paused)


class _Step(Func):
    """The number of the step that a moment lies in, counted from the epoch."""

    output_field = BigIntegerField()

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template="CAST(strftime('%%%%s', %(expressions)s) AS INTEGER) / %(seconds)s",
            **context,
        )

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template="CAST(FLOOR(EXTRACT(EPOCH FROM %(expressions)s) / %(seconds)s) AS bigint)",
            **context,
        )


def collector_backlog(*, now: datetime) -> Backlog | None:
    """Return what waits for the collector, or None when it was never counted. Two queries."""
    newest = _newest_at(now=now)
    if newest is None:
        return None
    found = QueueSample.objects.filter(level=SampleLevel.SAMPLE.value, at=newest, queue__in=OWN_QUEUES)
    depths = dict(found.values_list("queue", "ready"))
    return Backlog(
        at=newest,
        dead=depths.get(DEAD_QUEUE),
        runs=depths.get(RUNS_QUEUE),
        is_stale=now - newest > STALE_AFTER,
    )


def most(one: float | None, other: float | None) -> Any:
    """Return the higher of two numbers of which either may be unknown."""
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)


def _newest_at(*, now: datetime) -> datetime | None:
    # Of the index of level and time: MAX over a level would read all of it on SQLite.
    samples = QueueSample.objects.filter(level=SampleLevel.SAMPLE.value, at__lte=now + _AHEAD)
    return samples.order_by("-at").values_list("at", flat=True).first()


def _present(
    samples: Iterable[QueueSample], pauses: dict[str, QueuePause], *, newest: datetime, now: datetime
) -> Iterator[QueueNow]:
    """Present samples of one moment; ``newest`` is when any queue was counted last."""
    samples = list(samples)
    is_stale = any(now - sample.at > STALE_AFTER for sample in samples)
    why_stale = ""
    if is_stale:
        why_stale = _why_stale() if now - newest > STALE_AFTER else _LEFT_OUT
    is_told_by_workers = not on_redis(conf.current().broker_url)
    for sample in samples:
        pause = pauses.get(sample.queue)
        yield QueueNow(
            queue=sample.queue,
            at=sample.at,
            ready=sample.ready,
            unacknowledged=sample.unacknowledged,
            held_by_workers=sample.held_by_workers,
            held_in_outbox=sample.held_in_outbox,
            held_by_broker=sample.held_by_broker,
            consumers=sample.consumers,
            oldest_age_seconds=sample.oldest_age_seconds,
            is_paused=pause is not None,
            paused_by="" if pause is None else pause.actor,
            paused_at=None if pause is None else pause.paused_at,
            is_stale=is_stale,
            trouble=why_stale or sample.trouble,
            is_told_by_workers=is_told_by_workers,
        )


def _why_stale() -> str:
    """Say why nothing was counted lately: what hinders the duty, that it takes long, or that nobody does it."""
    lease = Lease.objects.filter(duty=DUTY).first()
    if lease is not None and lease.trouble:
        return lease.trouble
    return _AWAY if leases.undone([DUTY]) else _SLOW
