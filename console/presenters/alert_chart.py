"""The measure of an alert around its time, with the limit: the same numbers as those of the other pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from console import number_charts, times
from console.chart_parts import minutes_of, shown_steps
from console.number_charts import Marker, NumberChart
from console.presenters import alert_words
from jobs.alerts import reading
from jobs.core import alert_words as words
from jobs.core import histograms, windows
from jobs.core.windows import Window
from jobs.core.words import AlertKind
from jobs.metrics import reading as metrics
from jobs.metrics.deploys import deploys_in
from jobs.metrics.reading import Figures
from jobs.models import Alert
from jobs.queues import reading as queues

# What is shown before it began and after it was over.
_LEAST_BEFORE = timedelta(minutes=30)
_AFTER = timedelta(minutes=15)
_OF_QUEUES = frozenset(
    {AlertKind.QUEUE_DEPTH, AlertKind.OLDEST_AGE, AlertKind.NO_CONSUMER, AlertKind.NOTHING_RECEIVED}
)
_OF_ATTEMPTS: dict[AlertKind, tuple[str, str]] = {
    AlertKind.LETTERS_GROWING: ("Jobs that died", "a minute"),
    AlertKind.LATENCY: ("Latency", "from publish to start"),
    AlertKind.FAILURE_RATE: ("Failure rate", "% of finished jobs that died"),
    AlertKind.RETRY_RATE: ("Retries", "% of attempts that are to be tried again"),
}
_COLOURS = {AlertKind.LATENCY: "@c-p95", AlertKind.RETRY_RATE: "@c-retried"}


def chart(alert: Alert, *, window: Window | None = None, now: datetime) -> NumberChart | None:
    """Draw what an alert measures; None where no numbers of the past are kept of it. Three queries at most.

    ``window`` is a range of one's own; without it the chart shows the alert's time.
    """
    kind = AlertKind(alert.rule.kind)
    shown = window_of(alert, now=now) if window is None else window
    if kind in _OF_QUEUES:
        return _of_queue(alert, kind, shown, now=now)
    if kind in _OF_ATTEMPTS:
        return _of_attempts(alert, kind, shown, now=now)
    return None


def window_of(alert: Alert, *, now: datetime) -> Window:
    """Return the time to show: as long before it began as it lasts, half an hour at least."""
    since = reading.since_of(alert)
    until = now if alert.resolved_at is None else min(now, alert.resolved_at + _AFTER)
    before = max(_LEAST_BEFORE, min(until - since, timedelta(hours=6)))
    begin = max(since - before, until - windows.MOST)
    return windows.between(begin, until, now=now)


def _of_queue(alert: Alert, kind: AlertKind, window: Window, *, now: datetime) -> NumberChart | None:
    queue = alert.subject or alert.rule.queue
    if not queue:
        return None
    series = queues.depth_series(window, queues=[queue], now=now)
    limit = alert.rule.threshold if alert_words.kind_of(alert.rule).has_threshold else None
    draw = number_charts.oldest_age if kind is AlertKind.OLDEST_AGE else number_charts.depth
    return draw(window, series, limit=limit, markers=_markers(window), now=now)


def _of_attempts(alert: Alert, kind: AlertKind, window: Window, *, now: datetime) -> NumberChart:
    rule = alert.rule
    figures = shown_steps(window, metrics.series(window, task=rule.task, queue=rule.queue, now=now), now=now)
    minutes = [minutes_of(window, number, now=now) for number in range(len(figures))]
    values = _values(figures, kind, percentile=rule.percentile, minutes=minutes)
    title, unit = _OF_ATTEMPTS[kind]
    return number_charts.measure(
        window,
        values,
        title=f"p{rule.percentile} of latency" if kind is AlertKind.LATENCY else title,
        unit=unit,
        sentence=_sentence(alert, now=now),
        say=_say(alert),
        is_duration=kind is AlertKind.LATENCY,
        limit=(rule.threshold, alert_words.limit(rule, rule.threshold)),
        colour=_COLOURS.get(kind, "@c-dead"),
        markers=_markers(window),
        now=now,
    )


def _markers(window: Window) -> list[Marker]:
    """Return the deployments of the window: what changed is often what broke."""
    return [Marker(each.at, f"deploy {each.name}") for each in deploys_in(window)]


def _values(
    figures: Sequence[Figures | None], kind: AlertKind, *, percentile: int, minutes: Sequence[float]
) -> list[float | None]:
    if kind is AlertKind.LETTERS_GROWING:
        return [
            None if each is None else each.dead / span for each, span in zip(figures, minutes, strict=True)
        ]
    if kind is AlertKind.LATENCY:
        return [
            histograms.percentile(each.latency, percentile) if each is not None and each.latency else None
            for each in figures
        ]
    is_retries = kind is AlertKind.RETRY_RATE
    rates = [
        None if each is None else each.retry_rate if is_retries else each.failure_rate for each in figures
    ]
    return [None if rate is None else rate * 100 for rate in rates]


def _say(alert: Alert) -> Callable[[float], str]:
    unit = alert_words.kind_of(alert.rule).unit
    return lambda value: words.said(unit, value)


def _sentence(alert: Alert, *, now: datetime) -> str:
    since = times.clock(reading.since_of(alert), now=now)
    peak = alert_words.with_unit(alert.rule, alert.peak)
    end = f"until {times.clock(alert.resolved_at, now=now)}" if alert.resolved_at else "and still is"
    return (
        f"Above the limit since {since} UTC {end}; the highest was {peak}."
        if peak
        else f"Since {since} UTC {end}."
    )
