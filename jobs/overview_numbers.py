"""The numbers of the overview: a time window beside the one before it, its charts, its tables.

Each is read with a fixed number of queries, whatever the window holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from django.db.models import Count, Min

from jobs import search
from jobs.core.windows import Window
from jobs.core.words import AlertKind, LetterState
from jobs.metrics import deploys, letters, reading, states
from jobs.metrics.reading import Figures
from jobs.metrics.states import State
from jobs.models import AlertRule, DeadLetter, Deploy
from jobs.queues import reading as queues
from jobs.queues.reading import DepthPoint
from jobs.search.timeline import counted_by_bucket

SPARK_BUCKETS = 30
# Of more names all letters are counted at once.
_MOST_SELECTS = 400
# Limits that a chart draws: of rules about everything.
_LIMITS = (AlertKind.LETTERS_GROWING, AlertKind.FAILURE_RATE, AlertKind.QUEUE_DEPTH, AlertKind.OLDEST_AGE)

Column = Literal["queue", "task"]
Depths = dict[str, list[DepthPoint | None]]


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
    depths: Depths
    states: list[State | None]
    deploys: list[Deploy]
    limits: dict[AlertKind, float]


@dataclass(frozen=True, slots=True)
class Table:
    """What a table by queue or by task says of a window.

    ``figures`` are of all names that a worker told of, ``dead`` counts the letters of all that have some.
    ``minutes`` of the window are known. ``depths`` are of queues, ``deaths`` of tasks, in SPARK_BUCKETS.
    """

    column: Column
    minutes: float
    figures: Mapping[str, Figures]
    before: Mapping[str, Figures]
    dead: Mapping[str, int]
    depths: Depths
    deaths: Mapping[str, list[int]]


def numbers(window: Window, *, now: datetime) -> Numbers:
    """Read the figures of a window and of the one before. Five queries."""
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


def table(window: Window, *, column: Column, depths: Depths | None = None, now: datetime) -> Table:
    """Read the table by queue or by task. Six queries; ``depths`` that were read already spare one."""
    is_queue = column == "queue"
    if depths is None and is_queue:
        depths = queues.depth_series(window, now=now)
    return Table(
        column=column,
        minutes=reading.known_minutes(window, now=now),
        figures=(reading.by_queue if is_queue else reading.by_task)(window, now=now),
        before=reading.finished_by(column, window.before(), now=now),
        dead=_dead_by(column),
        depths=depths if is_queue and depths is not None else {},
        deaths={} if is_queue else _deaths_by_task(window, now=now),
    )


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


def _dead_by(column: Column) -> dict[str, int]:
    """Count the dead letters of every name that has one: an index range each, a GROUP BY takes ten times as long."""
    dead = DeadLetter.objects.filter(state=LetterState.DEAD).order_by()
    known = search.names(column)
    if known is None or len(known) > _MOST_SELECTS:
        return dict(dead.values_list(column).annotate(number=Count("pk")))
    return {name: number for name, number in letters.dead_by(column, known).items() if number}
