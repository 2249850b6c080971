"""The tables of the overview: queues and tasks in the window, with what waits and what died."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from console import addresses, queue_charts
from console.presenters import figures as words
from console.presenters.queue_list import is_worse, state_of, why_unknown
from jobs.core.query import quote
from jobs.metrics.reading import Figures
from jobs.overview_numbers import SPARK_BUCKETS, Table
from jobs.queues.reading import DepthPoint, QueueNow

SHOWN = 50


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue: figures are written, unknown ones as a dash.

    ``most_consumers`` took from it within the window, when those are more than now.
    """

    name: str
    now: QueueNow | None
    state: str
    why_unknown: str
    change: str
    depths: list[int | None]
    oldest: str
    most_consumers: int | None
    received: str
    done: str
    failure_rate: str
    is_failing_more: bool
    latency: str
    dead: int

    @property
    def letters_href(self) -> str:
        """Where its dead letters are listed."""
        return addresses.letters_of(f"queue:{quote(self.name)}" if self.name else "")


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task: figures are written, unknown ones as a dash."""

    name: str
    attempts: str
    done: str
    failure_rate: str
    is_failing_more: bool
    latency: str
    runtime: str
    dead: int
    deaths: list[int]

    @property
    def letters_href(self) -> str:
        """Where its dead letters are listed."""
        return addresses.letters_of(f"task:{quote(self.name)}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of one table; ``total`` counts them, SHOWN of them at most are here."""

    by: str
    queues: list[QueueLine]
    tasks: list[TaskLine]
    total: int

    @property
    def shown(self) -> int:
        """How many rows the table has."""
        return len(self.queues) + len(self.tasks)


def present(table: Table, queues: Sequence[QueueNow]) -> Lines:
    """Present a table; ``queues`` are all of them as they are now. The fullest, or deadliest, come first."""
    ran = {name for name, each in table.figures.items() if each.received or each.attempts}
    if table.column == "task":
        names = sorted(
            {*table.dead, *ran},
            key=lambda name: (
                -table.dead.get(name, 0),
                -(table.figures[name].attempts if name in table.figures else 0),
                name,
            ),
        )
        return Lines("task", [], [_task(table, name) for name in names[:SHOWN]], len(names))
    states = {each.queue: each for each in queues}
    names = sorted(
        {*table.dead, *ran, *states},
        key=lambda name: (
            -((states[name].ready or 0) if name in states else 0),
            -table.dead.get(name, 0),
            name,
        ),
    )
    return Lines("queue", [_queue(table, name, states.get(name)) for name in names[:SHOWN]], [], len(names))


def _queue(table: Table, name: str, now: QueueNow | None) -> QueueLine:
    figures = table.figures.get(name)
    before = table.before.get(name)
    points = table.depths.get(name, [])
    depths = [None if point is None else point.ready for point in points]
    is_known = now is not None and not now.is_stale
    rate = None if figures is None else figures.failure_rate
    return QueueLine(
        name=name,
        now=now if is_known else None,
        state=state_of(now),
        why_unknown=why_unknown(now),
        change=_change(now if is_known else None, depths),
        depths=queue_charts.depths(points),
        oldest=words.optional(now.oldest_age_seconds if is_known and now else None, words.seconds),
        most_consumers=_more_consumers(now if is_known else None, points),
        received=_a_minute(figures, "received", table.minutes),
        done=_a_minute(figures, "done", table.minutes),
        failure_rate=words.optional(rate, words.share),
        is_failing_more=is_worse(rate, None if before is None else before.failure_rate),
        latency=_percentile(figures, "latency", 99),
        dead=table.dead.get(name, 0),
    )


def _task(table: Table, name: str) -> TaskLine:
    figures = table.figures.get(name)
    before = table.before.get(name)
    rate = None if figures is None else figures.failure_rate
    return TaskLine(
        name=name,
        attempts=_a_minute(figures, "attempts", table.minutes),
        done=_a_minute(figures, "done", table.minutes),
        failure_rate=words.optional(rate, words.share),
        is_failing_more=is_worse(rate, None if before is None else before.failure_rate),
        latency=_percentile(figures, "latency", 99),
        runtime=_percentile(figures, "runtime", 95),
        dead=table.dead.get(name, 0),
        deaths=table.deaths.get(name) or [0] * SPARK_BUCKETS,
    )


def _change(now: QueueNow | None, depths: Sequence[int | None]) -> str:
    first = next((level for level in depths if level is not None), None)
    if now is None or now.ready is None or first is None:
        return words.UNKNOWN
    apart = now.ready - first
    return f"{apart:+,}".replace("-", "−") if apart else "0"


def _more_consumers(now: QueueNow | None, points: Sequence[DepthPoint | None]) -> int | None:
    known = [point.consumers for point in points if point is not None and point.consumers is not None]
    if now is None or now.consumers is None or now.is_paused or not known:
        return None
    return max(known) if max(known) > now.consumers else None


def _percentile(figures: Figures | None, name: str, percent: float) -> str:
    if figures is None:
        return words.UNKNOWN
    return words.optional(getattr(figures, f"{name}_percentile")(percent), words.seconds)


def _a_minute(figures: Figures | None, name: str, minutes: float) -> str:
    value = None if figures is None else words.rate(getattr(figures, name), minutes)
    # Six attempts in a month are few, and not none.
    return "< 0.1" if value is not None and 0 < value < 0.05 else words.optional(value, words.a_minute)
