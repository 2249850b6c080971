"""What a rule would have done in the last day, from the numbers that are kept of each minute.

Of kinds that look at groups, workers, beat, outbox or collector no such numbers are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.alerts.evaluating import limits_of
from jobs.core import histograms
from jobs.core.alert_rehearsals import Firing, rehearse
from jobs.core.windows import Window
from jobs.core.words import AlertKind
from jobs.metrics import reading
from jobs.metrics.figures import Figures
from jobs.models import AlertRule
from jobs.queues.reading import DepthPoint, depth_series

HOURS = 24
MINUTE = timedelta(minutes=1)
_Reader = Callable[[DepthPoint], float | None]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """When a rule would have fired, for any of its subjects; ``known`` is the share of minutes that is known."""

    firings: list[Firing]
    known: float


def rehearse_rule(rule: AlertRule, *, now: datetime) -> Rehearsal | None:
    """Judge the last HOURS by a rule that may not be saved; None for kinds of which nothing is kept. A few queries."""
    kind = AlertKind(rule.kind)
    if kind in _OF_ATTEMPTS:
        minutes = _window(HOURS * 60 + rule.window_minutes, now=now)
        figures = reading.series(minutes, task=rule.task, queue=rule.queue, now=now)
        series = {"": _OF_ATTEMPTS[kind](rule, figures)[rule.window_minutes :]}
    elif kind in _OF_QUEUES:
        window = _window(HOURS * 60, now=now)
        queues = [rule.queue] if rule.queue else ()
        read = _OF_QUEUES[kind]
        series = {
            queue: [None if point is None else read(point) for point in points]
            for queue, points in depth_series(window, queues=queues, now=now).items()
        }
    else:
        return None
    return _judged(rule, series, now=now)


def _judged(rule: AlertRule, series: dict[str, list[float | None]], *, now: datetime) -> Rehearsal:
    start = _window(HOURS * 60, now=now).start + MINUTE
    limits = limits_of(rule)
    firings = [
        firing for values in series.values() for firing in rehearse(limits, values, start=start, step=MINUTE)
    ]
    firings.sort(key=lambda firing: firing.fired_at)
    every = [value for values in series.values() for value in values]
    return Rehearsal(firings, sum(value is not None for value in every) / len(every) if every else 0.0)


def _window(minutes: int, *, now: datetime) -> Window:
    """Return the whole minutes before this one: of the one that runs a rate would mislead."""
    end = now.astimezone(UTC).replace(second=0, microsecond=0)
    return Window(end - MINUTE * minutes, end, 60)


def _growth(rule: AlertRule, figures: Sequence[Figures | None]) -> list[float | None]:
    """Return the deaths a minute over the rule's window, as each minute ends."""
    dead = [None if each is None else each.dead for each in figures]
    sums = _rolled(dead, rule.window_minutes)
    return [None if number is None else number / rule.window_minutes for number in sums]


def _failing(rule: AlertRule, figures: Sequence[Figures | None]) -> list[float | None]:
    dead = _rolled([None if each is None else each.dead for each in figures], rule.window_minutes)
    finished = _rolled([None if each is None else each.finished for each in figures], rule.window_minutes)
    return _shares(rule, dead, finished)


def _retried(rule: AlertRule, figures: Sequence[Figures | None]) -> list[float | None]:
    retried = _rolled([None if each is None else each.retried for each in figures], rule.window_minutes)
    attempts = _rolled([None if each is None else each.attempts for each in figures], rule.window_minutes)
    return _shares(rule, retried, attempts)


def _shares(rule: AlertRule, parts: Sequence[int | None], wholes: Sequence[int | None]) -> list[float | None]:
    """Return the share in per cent as each minute ends; None of what has too few for a verdict."""
    return [
        None if part is None or whole is None or whole < max(1, rule.minimum_attempts) else 100 * part / whole
        for part, whole in zip(parts, wholes, strict=True)
    ]


def _late(rule: AlertRule, figures: Sequence[Figures | None]) -> list[float | None]:
    """Return the percentile over the rule's window, as each minute ends: one minute is added, one taken away."""
    attempts = _rolled([None if each is None else each.attempts for each in figures], rule.window_minutes)
    merged: Counter[int] = Counter()
    values: list[float | None] = []
    for number, ended in enumerate(attempts):
        merged.update(_latency_of(figures, number))
        # Counter.subtract leaves zeros behind, and unary plus takes them away.
        merged.subtract(_latency_of(figures, number - rule.window_minutes))
        merged = +merged
        is_enough = ended is not None and ended >= rule.minimum_attempts and bool(merged)
        values.append(histograms.percentile(merged, rule.percentile) if is_enough else None)
    return values


def _latency_of(figures: Sequence[Figures | None], number: int) -> Mapping[int, int]:
    found = figures[number] if number >= 0 else None
    return {} if found is None else found.latency


def _rolled(values: Sequence[int | None], minutes: int) -> list[int | None]:
    """Return the sum of each value and those before it, ``minutes`` in all; None where the newest is not known."""
    total = 0
    sums: list[int | None] = []
    for number, value in enumerate(values):
        total += value or 0
        if number >= minutes:
            total -= values[number - minutes] or 0
        sums.append(None if value is None else total)
    return sums


def _unconsumed(point: DepthPoint) -> float | None:
    if point.ready is None or point.consumers is None:
        return None
    return 0.0 if point.consumers or point.is_paused else float(point.ready)


_OF_ATTEMPTS: dict[AlertKind, Callable[[AlertRule, Sequence[Figures | None]], list[float | None]]] = {
    AlertKind.LETTERS_GROWING: _growth,
    AlertKind.FAILURE_RATE: _failing,
    AlertKind.RETRY_RATE: _retried,
    AlertKind.LATENCY: _late,
}
_OF_QUEUES: dict[AlertKind, _Reader] = {
    AlertKind.QUEUE_DEPTH: lambda point: point.ready,
    AlertKind.OLDEST_AGE: lambda point: 0.0 if point.ready == 0 else point.oldest_age_seconds,
    AlertKind.NO_CONSUMER: _unconsumed,
}
