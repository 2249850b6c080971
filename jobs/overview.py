"""What needs attention now, in figures: read once a page, a fixed number of queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.db.models import Count, Exists, Max, OuterRef, Q, QuerySet, Value

from jobs import conf, leases, search
from jobs.core import query as core_query
from jobs.core.words import GroupState, LetterState, OperationState
from jobs.models import DeadLetter, FailureGroup, JobProgress, Operation
from jobs.operations import Progress, progress
from jobs.outbox import service as outbox
from jobs.outbox.service import OutboxOverview, relay_duty_name
from jobs.search.timeline import counted_by_bucket

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
# A group whose last death is older than this has stopped failing, as far as one can see.
STILL_FAILING = timedelta(minutes=15)
SPARK_BUCKETS = 30
TABLE_ROWS = 50
SHOWN_GROUPS = 8
SHOWN_OPERATIONS = 5
# A job that has told how far it is within so long is in progress.
IN_PROGRESS = timedelta(minutes=5)
SHOWN_IN_PROGRESS = 10
# Duties of runops without which this page would say less than is true, or nothing that was asked happens.
_DUTIES = ("collector", "operations")
# SQLite joins at most 500 SELECTs with UNION ALL.
_MOST_SELECTS = 400

Column = Literal["queue", "task"]


@dataclass(frozen=True, slots=True)
class FailingGroup:
    """A group that is new or came back and still fails, and since when.

    ``row`` counts the last hour, ``letters`` are all of its dead ones.
    """

    row: search.GroupRow
    letters: int
    since: datetime


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation that has not ended, with its progress."""

    operation: Operation
    progress: Progress


@dataclass(frozen=True, slots=True)
class Tally:
    """Dead letters of one queue or task: now, died in the last hour and in the hour before."""

    name: str
    dead: int
    last_hour: int
    hour_before: int
    last_died_at: datetime | None
    buckets: list[int]


@dataclass(frozen=True, slots=True)
class Overview:
    """The figures. "Before" is the hour, or the day, before the last one."""

    undone: list[leases.Undone]
    groups: list[FailingGroup]
    operations: list[OpenOperation]
    in_progress: list[JobProgress]
    outbox: OutboxOverview
    dead: int
    dead_before: int
    died_last_hour: int
    died_hour_before: int
    died_last_five_minutes: int
    replaying: int
    resolved_last_day: int
    resolved_day_before: int
    groups_by_state: dict[GroupState, int]
    groups_first_seen_last_hour: int
    by_queue: list[Tally]
    by_task: list[Tally]
    last_died_at: datetime | None

    @property
    def attention_count(self) -> int:
        """How many things need attention."""
        return bool(self.undone) + len(self.groups) + len(self.operations) + bool(self.outbox.stuck)

    @property
    def group_count(self) -> int:
        """How many groups have a dead letter."""
        return sum(self.groups_by_state.values())


def overview(*, now: datetime) -> Overview:
    """Read the overview as it is at ``now``."""
    everything = core_query.parse("", now=now)
    operations = _open_operations(now=now)
    letters = DeadLetter.objects.all()
    dead = letters.filter(state=LetterState.DEAD).count()
    # Letters that died again after a replay were dead before it as well.
    newly_dead = letters.filter(
        state=LetterState.DEAD, died_at__gte=now - HOUR, first_died_at__gte=now - HOUR
    )
    left = _left_dead(now - HOUR, now).filter(died_at__lt=now - HOUR)
    by_state = search.group_states(everything)
    by_queue, by_task = _tallies("queue", now=now), _tallies("task", now=now)
    failing = _failing_groups(now=now)
    relays = [relay_duty_name(using) for using in conf.current().outbox_databases]
    return Overview(
        undone=leases.undone([*_DUTIES, *relays]),
        groups=failing,
        operations=operations,
        in_progress=_in_progress(now=now),
        outbox=outbox.overview(now=now),
        dead=dead,
        dead_before=max(0, dead - newly_dead.count() + left.count()),
        died_last_hour=_died(now - HOUR, now),
        died_hour_before=_died(now - 2 * HOUR, now - HOUR),
        died_last_five_minutes=_died(now - timedelta(minutes=5), now),
        replaying=letters.filter(state=LetterState.REPLAYING).count(),
        resolved_last_day=_left_dead(now - DAY, now).filter(state=LetterState.RESOLVED).count(),
        resolved_day_before=_left_dead(now - 2 * DAY, now - DAY).filter(state=LetterState.RESOLVED).count(),
        groups_by_state=by_state,
        groups_first_seen_last_hour=FailureGroup.objects.filter(first_seen_at__gte=now - HOUR)
        .filter(Exists(search.letters(everything).order_by().filter(group=OuterRef("pk"))))
        .count(),
        by_queue=by_queue,
        by_task=by_task,
        last_died_at=letters.filter(state=LetterState.DEAD).values_list("died_at", flat=True).first(),
    )


def _died(since: datetime, until: datetime) -> int:
    """Count the letters whose newest death lies in a span, whatever became of them since."""
    # All states by name, so that the index that begins with the state is used.
    states = [state.value for state in LetterState]
    return DeadLetter.objects.filter(state__in=states, died_at__gte=since, died_at__lt=until).count()


def _left_dead(since: datetime, until: datetime) -> QuerySet[DeadLetter]:
    """Return the letters that are not dead and came into their state in a span."""
    # Written as the condition of the index is, so that both databases use it.
    return DeadLetter.objects.filter(
        ~Q(state=LetterState.DEAD.value), state_changed_at__gte=since, state_changed_at__lt=until
    )


def _failing_groups(*, now: datetime) -> list[FailingGroup]:
    states = (GroupState.NEW, GroupState.REGRESSED)
    # Their dead letters, whenever they died; and the last hour for the bars and the order.
    recent = search.groups(
        core_query.parse(f"since:{core_query.iso(now - HOUR)}", now=now),
        states=states,
        spark_buckets=SPARK_BUCKETS,
    )
    failing = [row for row in recent if now - row.last_died_at <= STILL_FAILING][:SHOWN_GROUPS]
    if not failing:
        return []
    whole = search.groups(core_query.parse("", now=now), states=states, spark_buckets=0)
    totals = {row.group.pk: row.letters for row in whole}
    return [
        FailingGroup(
            row=row,
            letters=totals.get(row.group.pk, row.letters),
            since=row.group.regressed_at or row.group.first_seen_at,
        )
        for row in failing
    ]


def _open_operations(*, now: datetime) -> list[OpenOperation]:
    states = (OperationState.RUNNING, OperationState.PAUSED, OperationState.STOPPED)
    found = Operation.objects.filter(state__in=states).order_by("-id")[:SHOWN_OPERATIONS]
    return [OpenOperation(operation=each, progress=progress(each, now=now)) for each in found]


def _in_progress(*, now: datetime) -> list[JobProgress]:
    """Return the jobs that have told of their progress lately, the longest running first, so that none moves.

    What a job told that died is kept with its dead letter, and is no progress.
    """
    dead = DeadLetter.objects.filter(task_id=OuterRef("task_id"), state=LetterState.DEAD)
    told = JobProgress.objects.filter(updated_at__gte=now - IN_PROGRESS).exclude(Exists(dead))
    newest = list(told.order_by("-updated_at", "-pk")[:SHOWN_IN_PROGRESS])
    return sorted(newest, key=lambda row: (row.started_at, row.pk))


def _tallies(column: Column, *, now: datetime) -> list[Tally]:
    """Count the dead letters of each queue or task: one index range each, a GROUP BY takes ten times as long."""
    rows = sorted(_counts(column), key=lambda row: (-row[1], row[0]))[:TABLE_ROWS]
    step = HOUR / SPARK_BUCKETS
    # The first bucket is the hour before.
    bounds = [now - 2 * HOUR, *(now - HOUR + step * number for number in range(SPARK_BUCKETS + 1))]
    # A job may have died this instant.
    bounds[-1] += timedelta(microseconds=1)
    series: dict[str, list[int]] = {row[0]: [0] * (SPARK_BUCKETS + 1) for row in rows}
    dead = DeadLetter.objects.filter(state=LetterState.DEAD).order_by()
    for bucket, name, number in counted_by_bucket(
        dead.values_list(column).annotate(number=Count("pk")), bounds
    ):
        if name in series:
            series[name][bucket] = number
    return [
        Tally(
            name=name,
            dead=number,
            last_hour=sum(series[name][1:]),
            hour_before=series[name][0],
            last_died_at=newest,
            buckets=series[name][1:],
        )
        for name, number, newest in rows
    ]


def _counts(column: Column) -> list[tuple[str, int, datetime]]:
    """Return (name, dead letters, newest death) of every queue or task that has a dead letter."""
    dead = DeadLetter.objects.filter(state=LetterState.DEAD).order_by()
    known = search.names(column)
    if known is None or len(known) > _MOST_SELECTS:
        return list(dead.values_list(column).annotate(number=Count("pk"), newest=Max("died_at")))
    counted = [
        dead.filter(**{column: name})
        .values(name=Value(name))
        .annotate(number=Count("pk"), newest=Max("died_at"))
        .values_list("name", "number", "newest")
        for name in known
    ]
    if not counted:
        return []
    # A constant is no group, so a queue without a dead letter gives a row of zero.
    return [row for row in counted[0].union(*counted[1:], all=True) if row[1]]
