"""The numbers of the overview: a time window beside the one before it, its charts, its table of tasks.

Each is read with a fixed number of queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Min, Value

from jobs import search
from jobs.core.windows import Window
from jobs.core.words import AlertKind, LetterState
from jobs.metrics import deploys, reading, states
from jobs.metrics.reading import Figures
from jobs.metrics.states import State
from jobs.models import AlertRule, DeadLetter, Deploy
from jobs.queues import reading as queues
from jobs.queues.reading import DepthPoint
from jobs.search.timeline import counted_by_bucket

SPARK_BUCKETS = 30
# SQLite joins at most 500 SELECTs with UNION ALL.
_MOST_SELECTS = 400
# Limits that a chart draws: of rules about everything.
_LIMITS = (AlertKind.LETTERS_GROWING, AlertKind.FAILURE_RATE, AlertKind.QUEUE_DEPTH, AlertKind.OLDEST_AGE)


@dataclass(frozen=True, slots=True)
class Numbers:
    """What happened in a window, and in the one before; None of what nobody reported.

    ``backlog_before`` and ``state_before`` are as it was when the window began.
    """

    window: Window
    figures: Figures | None
    before: Figures | None
    newest_report: datetime | None
    backlog_before: int | None
    state_before: State | None


@dataclass(frozen=True, slots=True)
class Charts:
    """What the charts of a window draw; ``limits`` are the thresholds of enabled alert rules about everything."""

    steps: list[Figures | None]
    depths: dict[str, list[DepthPoint | None]]
    states: list[State | None]
    deploys: list[Deploy]
    limits: dict[AlertKind, float]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task in the window: ``deaths`` in buckets, ``dead`` letters now."""

    name: str
    figures: Figures
    before: Figures
    dead: int
    deaths: list[int]


def numbers(window: Window, *, now: datetime) -> Numbers:
    """Read the figures of a window and of the one before. Six queries."""
    newest = reading.newest_report(now=now)
    is_known = newest is not None and newest + timedelta(minutes=1) > window.start
    before = reading.totals(window.before().start, window.start, now=now)
    return Numbers(
        window=window,
        figures=reading.totals(window.start, window.end, now=now) if is_known else None,
        before=before if before.received or before.attempts else None,
        newest_report=newest,
        backlog_before=_backlog_at(window, now=now),
        state_before=states.state_at(window.start, now=now),
    )


def charts(window: Window, *, now: datetime) -> Charts:
    """Read what the charts draw. Five queries."""
    rules = AlertRule.objects.filter(
        is_enabled=True, task="", queue="", kind__in=[kind.value for kind in _LIMITS]
    )
    # Where several rules watch the same, the lowest limit is passed first.
    limits = rules.order_by().values_list("kind").annotate(limit=Min("threshold"))
    return Charts(
        steps=reading.series(window, now=now),
        depths=queues.depth_series(window, now=now),
        states=states.series(window, now=now),
        deploys=deploys.deploys_in(window),
        limits={AlertKind(kind): limit for kind, limit in limits},
    )


def by_task(window: Window, *, limit: int, now: datetime) -> tuple[list[TaskRow], int]:
    """Return the tasks that ran or have dead letters, those with most letters first, and how many there are."""
    ran = reading.by_task(window, now=now)
    dead = _dead_by_task()
    names = sorted(
        {*dead, *(name for name, each in ran.items() if each.received or each.attempts)},
        key=lambda name: (-dead.get(name, 0), -(ran[name].attempts if name in ran else 0), name),
    )
    before = reading.by_task(window.before(), now=now)
    deaths = _deaths_by_task(window, now=now)
    rows = [
        TaskRow(
            name=name,
            figures=ran.get(name) or Figures(),
            before=before.get(name) or Figures(),
            dead=dead.get(name, 0),
            deaths=deaths.get(name) or [0] * SPARK_BUCKETS,
        )
        for name in names[:limit]
    ]
    return rows, len(names)


def _backlog_at(window: Window, *, now: datetime) -> int | None:
    """Return how many messages waited on all queues when a window began."""
    step = window.step_seconds
    begin = Window(
        window.start - timedelta(seconds=step), window.start + timedelta(seconds=step), step, window.name
    )
    found = queues.depth_series(begin, now=now)
    levels = [
        next((point.ready for point in points if point is not None and point.ready is not None), None)
        for points in found.values()
    ]
    known = [level for level in levels if level is not None]
    return sum(known) if known else None


def _deaths_by_task(window: Window, *, now: datetime) -> dict[str, list[int]]:
    end = min(window.end, now)
    step = (end - window.start) / SPARK_BUCKETS
    bounds = [window.start + step * number for number in range(SPARK_BUCKETS + 1)]
    # A job may have died this instant.
    bounds[-1] += timedelta(microseconds=1)
    dead = DeadLetter.objects.filter(state=LetterState.DEAD).order_by()
    series: dict[str, list[int]] = {}
    counted = dead.values_list("task").annotate(number=Count("pk"))
    for bucket, name, number in counted_by_bucket(counted, bounds):
        series.setdefault(name, [0] * SPARK_BUCKETS)[bucket] = number
    return series


def _dead_by_task() -> dict[str, int]:
    """Count the dead letters of every task that has one: an index range each, a GROUP BY takes ten times as long."""
    dead = DeadLetter.objects.filter(state=LetterState.DEAD).order_by()
    known = search.names("task")
    if known is None or len(known) > _MOST_SELECTS:
        return dict(dead.values_list("task").annotate(number=Count("pk")))
    counted = [
        dead.filter(task=name)
        .values(name=Value(name))
        .annotate(number=Count("pk"))
        .values_list("name", "number")
        for name in known
    ]
    if not counted:
        return {}
    # A constant is no group, so a task without a dead letter gives a row of zero.
    return {name: number for name, number in counted[0].union(*counted[1:], all=True) if number}
