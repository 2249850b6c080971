"""What the rollups say of a window: totals, series by step, tables by queue and task.

Every function does a fixed number of queries. A step in which no worker reported is not known, and never zero.
A span is put together of the longest rollups that lie in it: days, hours at their edges, minutes at theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from django.db.models import Count, Max, Q, Sum

from jobs.core.windows import KEPT, LENGTHS, Window
from jobs.core.words import RollupLevel, RollupScope
from jobs.metrics.figures import COUNTS, Figures, summed
from jobs.models import Rollup

__all__ = [
    "Figures",
    "by_queue",
    "by_task",
    "finished_by",
    "known_minutes",
    "newest_report",
    "series",
    "summed",
    "totals",
]

_COLUMNS = (*COUNTS, "latency_sum_seconds", "runtime_sum_seconds", "latency", "runtime")


@dataclass(frozen=True, slots=True)
class _Part:
    level: RollupLevel
    start: datetime
    end: datetime


def totals(start: datetime, end: datetime, *, task: str = "", queue: str = "", now: datetime) -> Figures:
    """Add up a span of whole minutes, of a task, a queue, both or all; one query.

    Exact within the last 7 days. Of a span that begins before, the part whose minutes are not kept any more is
    taken in whole hours, or days.
    """
    whole = Figures()
    for row in _rows(_parts(start, end, now=now), task=task, queue=queue):
        _add(whole, row)
    return whole


def series(window: Window, *, task: str = "", queue: str = "", now: datetime) -> list[Figures | None]:
    """Return the figures of each step of a window; None for a step in which no worker reported.

    One query; two of a task or a queue, since that something ran elsewhere is known of all together.
    """
    part = [_Part(window.level(now=now), window.start, window.end)]
    found: list[Figures | None] = [None] * len(window.steps)
    if task or queue:
        known = Rollup.objects.filter(_where(part, RollupScope.ALL)).values_list("starts_at", flat=True)
        for starts_at in known:
            number = window.index(starts_at)
            if found[number] is None:
                found[number] = Figures()
    for row in _rows(part, "starts_at", task=task, queue=queue):
        number = window.index(row[0])
        figures = found[number]
        if figures is None:
            figures = found[number] = Figures()
        _add(figures, row[1:])
    return found


def by_queue(window: Window, *, task: str = "", now: datetime) -> dict[str, Figures]:
    """Return the figures of the window for each queue that a worker told of, of one task or of all."""
    parts = _parts(window.start, window.end, now=now)
    scope = RollupScope.BOTH if task else RollupScope.QUEUE
    where = _where(parts, scope, **({"task": task} if task else {}))
    return _grouped(Rollup.objects.filter(where).values_list("queue", *_COLUMNS))


def by_task(window: Window, *, queue: str = "", now: datetime) -> dict[str, Figures]:
    """Return the figures of the window for each task, on one queue or on all."""
    parts = _parts(window.start, window.end, now=now)
    scope = RollupScope.BOTH if queue else RollupScope.TASK
    where = _where(parts, scope, **({"queue": queue} if queue else {}))
    return _grouped(Rollup.objects.filter(where).values_list("task", *_COLUMNS))


def finished_by(column: Literal["queue", "task"], window: Window, *, now: datetime) -> dict[str, Figures]:
    """Return how many jobs were done and died, by queue or task, without histograms. One query, a row each."""
    scope = RollupScope.QUEUE if column == "queue" else RollupScope.TASK
    parts = _parts(window.start, window.end, now=now)
    found = Rollup.objects.filter(_where(parts, scope)).order_by().values_list(column)
    counted = found.annotate(all_done=Sum("done"), all_dead=Sum("dead"))
    return {name: Figures(done=done, dead=dead) for name, done, dead in counted}


def known_minutes(window: Window, *, now: datetime) -> float:
    """Return for how many minutes of a window some worker reported; of the last span what has passed. One query."""
    level = window.level(now=now)
    length = LENGTHS[level]
    everything = _where([_Part(level, window.start, window.end)], RollupScope.ALL)
    spans = (
        Rollup.objects.filter(everything).order_by().aggregate(number=Count("pk"), newest=Max("starts_at"))
    )
    if not spans["number"]:
        return 0.0
    passed = min(length, max(timedelta(minutes=1), now - spans["newest"]))
    known: timedelta = (spans["number"] - 1) * length + passed
    return known / timedelta(minutes=1)


def newest_report(*, now: datetime) -> datetime | None:
    """Return the newest minute of which a worker told, None when there was none; one query."""
    minutes = Rollup.objects.filter(
        level=RollupLevel.MINUTE, scope=RollupScope.ALL, task="", queue="", starts_at__lte=now
    )
    return minutes.order_by("-starts_at").values_list("starts_at", flat=True).first()


def _rows(parts: list[_Part], *before: str, task: str, queue: str) -> Iterable[tuple[Any, ...]]:
    named = {key: value for key, value in (("task", task), ("queue", queue)) if value}
    scope = {
        (False, False): RollupScope.ALL,
        (True, False): RollupScope.TASK,
        (False, True): RollupScope.QUEUE,
        (True, True): RollupScope.BOTH,
    }[bool(task), bool(queue)]
    rows: Iterable[tuple[Any, ...]] = Rollup.objects.filter(_where(parts, scope, **named)).values_list(
        *before, *_COLUMNS
    )
    return rows


def _where(parts: list[_Part], scope: RollupScope, **named: str) -> Q:
    """Return the condition of the parts, each whole in itself, so that both databases use an index for each."""
    where = Q(pk__in=())
    for part in parts:
        where |= Q(
            level=part.level.value,
            scope=scope.value,
            starts_at__gte=part.start,
            starts_at__lt=part.end,
            **named,
        )
    return where


def _grouped(rows: Iterable[tuple[Any, ...]]) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for name, *row in rows:
        figures = found.get(name)
        if figures is None:
            figures = found[name] = Figures()
        _add(figures, row)
    return found


def _add(figures: Figures, row: Any) -> None:
    figures.received += row[0]
    figures.done += row[1]
    figures.retried += row[2]
    figures.dead += row[3]
    figures.revoked += row[4]
    figures.ignored += row[5]
    figures.dropped += row[6]
    figures.latency_sum_seconds += row[7]
    figures.runtime_sum_seconds += row[8]
    figures.add_packed(row[9], row[10])


def _parts(start: datetime, end: datetime, *, now: datetime) -> list[_Part]:
    """Cut a span into days, and hours and minutes at its edges.

    Nothing lies ahead of now, so a span that includes it may end with its whole day.
    """
    minute, hour, day = LENGTHS.values()
    # Where the smaller rollups are not kept any more the span grows to the larger ones.
    for kept, coarser in ((KEPT[RollupLevel.MINUTE], hour), (KEPT[RollupLevel.HOUR], day)):
        oldest = now - kept
        start = _floor(start, coarser) if start < oldest else start
        end = _ceil(end, coarser) if end < oldest else end
    start = _floor(start, minute)
    end = _ceil(end, day) if end > now else _ceil(end, minute)
    if start >= end:
        return []
    first_hour, last_hour = _ceil(start, hour), _floor(end, hour)
    if first_hour >= last_hour:
        return _kept([_Part(RollupLevel.MINUTE, start, end)])
    first_day, last_day = _ceil(first_hour, day), _floor(last_hour, day)
    if first_day >= last_day:
        middle = [_Part(RollupLevel.HOUR, first_hour, last_hour)]
    else:
        middle = [
            _Part(RollupLevel.HOUR, first_hour, first_day),
            _Part(RollupLevel.DAY, first_day, last_day),
            _Part(RollupLevel.HOUR, last_day, last_hour),
        ]
    return _kept(
        [
            _Part(RollupLevel.MINUTE, start, first_hour),
            *middle,
            _Part(RollupLevel.MINUTE, last_hour, end),
        ]
    )


def _kept(parts: list[_Part]) -> list[_Part]:
    return [part for part in parts if part.start < part.end]


def _floor(moment: datetime, length: timedelta) -> datetime:
    seconds = length.total_seconds()
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, UTC)


def _ceil(moment: datetime, length: timedelta) -> datetime:
    floor = _floor(moment, length)
    return floor if floor == moment else floor + length
