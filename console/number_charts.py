"""Charts of the numbers over a time window: what happened in each step in, a figure with its words out. Pure.

Of each chart the page shows title, unit, a sentence of what changed, the plot, and the same as a table.
A step that is not known is a gap under a hatched band, never a zero. The parts are in chart_parts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from console import chart_sentences as sentences
from console import times
from console.chart_layout import figure_of
from console.chart_parts import (
    Line,
    Marker,
    NumberChart,
    Scale,
    end_labels,
    gap_traces,
    line_traces,
    minutes_of,
    near_limit,
    past_levels,
    runs,
    shown_steps,
    table,
    top_of,
    x_of,
)
from console.presenters import figures as words
from console.queue_charts import depth, oldest_age
from jobs.core import histograms
from jobs.core.alert_words import exact
from jobs.core.windows import Window
from jobs.metrics.reading import Figures

__all__ = [
    "Marker",
    "NumberChart",
    "dead_letters",
    "depth",
    "failure_rate",
    "latency",
    "measure",
    "oldest_age",
]

_PERCENTILES = ((99, "p99", "@c-p99", "solid"), (95, "p95", "@c-p95", "dash"), (50, "p50", "@c-p50", "dot"))
_OUTCOMES: tuple[tuple[str, str, str, Callable[[Figures], int]], ...] = (
    ("Done", "@c-done", "20", lambda each: each.done),
    ("Retried", "@c-retried", "20", lambda each: each.retried),
    ("Died", "@c-dead", "85", lambda each: each.dead),
    ("Revoked or ignored", "@c-rest", "20", lambda each: each.revoked + each.ignored),
)


def throughput(
    window: Window, steps: Sequence[Figures | None], *, markers: Sequence[Marker] = (), now: datetime
) -> NumberChart:
    """Draw the attempts a minute by how they ended, stacked."""
    shown = shown_steps(window, steps, now=now)
    minutes = [minutes_of(window, number, now=now) for number in range(len(shown))]
    rows: list[tuple[str, str, str, list[float | None]]] = []
    for name, colour, opacity, count_of in _OUTCOMES:
        values = [
            None if each is None else count_of(each) / span for each, span in zip(shown, minutes, strict=True)
        ]
        if name != _OUTCOMES[-1][0] or any(values):
            rows.append((name, colour, opacity, values))
    totals = [
        None if each is None else each.attempts / span for each, span in zip(shown, minutes, strict=True)
    ]
    traces = []
    for number, (begin, end) in enumerate(runs(totals)):
        traces += [
            {
                "type": "scatter",
                "mode": "lines" if end - begin > 1 else "markers",
                "name": name,
                "x": [x_of(window, step) for step in range(begin, end)],
                "y": [_short(value) for value in values[begin:end]],
                "stackgroup": f"s{number}",
                # Of what did not happen nothing is drawn: its line would lie on that of the next, in its colour.
                "line": {"width": 1.75 if any(values[begin:end]) else 0, "color": colour},
                "marker": {"size": 4, "color": colour},
                "fillcolor": f"{colour}/{opacity}",
                "hovertemplate": "%{y:,.3~g} /min",
            }
            for name, colour, opacity, values in rows
        ]
    scale = Scale(top_of(totals, least=4))
    return NumberChart(
        name="throughput",
        title="Throughput",
        unit="attempts /min by outcome",
        sentence=sentences.of_throughput(window, rows, totals, now=now),
        figure=figure_of(
            window, [*traces, *gap_traces(window, totals, scale, now=now)], scale, markers, now=now
        ),
        legend=[(name, colour[1:]) for name, colour, _, _ in reversed(rows)],
        columns=[f"{name} /min" for name, *_ in reversed(rows)],
        rows=table(window, [values for *_, values in reversed(rows)], words.a_minute, now=now),
        step_seconds=window.step_seconds,
        is_known=any(each is not None for each in totals),
    )


def latency(
    window: Window, steps: Sequence[Figures | None], *, markers: Sequence[Marker] = (), now: datetime
) -> NumberChart:
    """Draw the percentiles of the seconds from publish to start."""
    return _percentiles(
        window,
        [None if each is None else each.latency for each in shown_steps(window, steps, now=now)],
        name="latency",
        title="Latency",
        unit="from publish to start",
        markers=markers,
        now=now,
    )


def runtime(
    window: Window, steps: Sequence[Figures | None], *, markers: Sequence[Marker] = (), now: datetime
) -> NumberChart:
    """Draw the percentiles of the seconds that an attempt ran."""
    return _percentiles(
        window,
        [None if each is None else each.runtime for each in shown_steps(window, steps, now=now)],
        name="runtime",
        title="Runtime",
        unit="of an attempt",
        markers=markers,
        now=now,
    )


def _percentiles(
    window: Window,
    found: Sequence[histograms.Histogram | None],
    *,
    name: str,
    title: str,
    unit: str,
    markers: Sequence[Marker],
    now: datetime,
) -> NumberChart:
    known = [None if each is None else histograms.total(each) for each in found]
    series = [
        [None if not each else histograms.percentile(each, percent) for each in found]
        for percent, *_ in _PERCENTILES
    ]
    scale = Scale.of_durations([value for values in series for value in values])
    lines = [
        Line(word, colour, dash, values, words.seconds)
        for (_, word, colour, dash), values in zip(_PERCENTILES, series, strict=True)
    ]
    return NumberChart(
        name=name,
        title=title,
        unit=f"{scale.words} {unit}",
        sentence=sentences.of_percentile(window, series[0], known, now=now),
        figure=figure_of(
            window,
            [
                *(trace for line in reversed(lines) for trace in line_traces(window, line, scale)),
                *gap_traces(window, known, scale, now=now),
            ],
            scale,
            markers,
            labels=end_labels(window, lines, scale),
            now=now,
        ),
        columns=[word for _, word, *_ in _PERCENTILES],
        rows=table(window, series, words.seconds, now=now),
        step_seconds=window.step_seconds,
        is_known=any(known),
    )


def failure_rate(
    window: Window,
    steps: Sequence[Figures | None],
    *,
    markers: Sequence[Marker] = (),
    limit: float | None = None,
    now: datetime,
) -> NumberChart:
    """Draw the share of the finished jobs that died; ``limit`` is an alert's, 0 to 1."""
    shown = shown_steps(window, steps, now=now)
    values = [None if each is None else each.failure_rate for each in shown]
    # Where workers reported and nothing finished there is a gap in the line, and no band.
    known = [None if each is None else each.attempts for each in shown]
    hundredths = [None if value is None else value * 100 for value in values]
    limit = near_limit(limit, values)
    scale = Scale(min(100.0, top_of([*hundredths, (limit or 0) * 100], least=1)), " %")
    line = Line("died", "@c-dead", "solid", hundredths, lambda value: words.share(value / 100))
    return NumberChart(
        name="failure-rate",
        title="Failure rate",
        unit="% of finished jobs that died",
        sentence=sentences.of_rate(window, shown, values, now=now),
        figure=figure_of(
            window,
            [*line_traces(window, line, scale, fill=20), *gap_traces(window, known, scale, now=now)],
            scale,
            markers,
            labels=end_labels(window, [replace(line, name="")], scale),
            limit=None if limit is None else (limit * 100, f"alert limit {exact(limit * 100)} %"),
            now=now,
        ),
        columns=["Failure rate", "Died", "Finished"],
        rows=[
            (
                label,
                [
                    words.optional(each.failure_rate, words.share),
                    words.count(each.dead),
                    words.count(each.finished),
                ],
            )
            for label, each in _labelled(window, shown, now=now)
        ],
        step_seconds=window.step_seconds,
        is_known=any(each is not None for each in shown),
    )


def dead_letters(
    window: Window,
    levels: Sequence[int | None],
    steps: Sequence[Figures | None],
    *,
    markers: Sequence[Marker] = (),
    limit: float | None = None,
    now: datetime,
) -> NumberChart:
    """Draw how many dead letters there are, and below how many jobs died a minute; ``limit`` is an alert's."""
    past = past_levels(window, levels, now=now)
    shown = shown_steps(window, steps, now=now)
    died = [
        None if each is None else each.dead / minutes_of(window, number, now=now)
        for number, each in enumerate(shown)
    ]
    drawn = near_limit(limit, died)
    upper = Scale(top_of(past, least=10), least_ticks=3)
    lower = Scale(top_of([*died, drawn], least=4), least_ticks=3)
    level_line = Line("dead letters", "@c-dead", "solid", past, words.count)
    bars = {
        "type": "bar",
        "name": "died",
        "x": [x_of(window, number) for number in range(len(died))],
        "y": [_short(value) or None for value in died],
        "offset": 0,
        "width": window.step_seconds * 1000 * 0.86,
        "marker": {"color": "@c-dead", "line": {"width": 0}},
        "hovertemplate": "%{y:,.3~g} /min",
        "yaxis": "y2",
    }
    return NumberChart(
        name="dead-letters",
        title="Dead letters",
        unit="count, and died /min below",
        sentence=sentences.of_dead(window, past, died, limit, now=now),
        figure=figure_of(
            window,
            [
                *line_traces(window, level_line, upper, fill=20),
                bars,
                *gap_traces(window, past, upper, now=now),
                *gap_traces(window, died, lower, now=now, axis="y2", has_words=False),
            ],
            upper,
            markers,
            labels=end_labels(window, [replace(level_line, name="")], upper, height=95),
            lower=lower,
            limit=None if drawn is None else (drawn, f"alert limit {exact(drawn)} /min"),
            now=now,
        ),
        columns=["Dead letters", "Died /min"],
        rows=[
            (label, [words.optional(level, words.count), words.optional(rate, words.a_minute)])
            for label, level, rate in _both(window, past, died, now=now)
        ],
        step_seconds=window.step_seconds,
        is_known=any(each is not None for each in (*past, *died)),
    )


def measure(
    window: Window,
    values: Sequence[float | None],
    *,
    title: str,
    unit: str,
    sentence: str,
    say: Callable[[float], str],
    is_duration: bool = False,
    limit: tuple[float, str] | None = None,
    colour: str = "@c-4",
    markers: Sequence[Marker] = (),
    now: datetime,
) -> NumberChart:
    """Draw any one measure with its limit, as an alert's page does; durations in seconds, shares in per cent.

    ``limit`` is the value and its words.
    """
    shown = past_levels(window, values, now=now)
    drawn = [*shown, *(limit or ())[:1]]
    scale = Scale.of_durations(drawn) if is_duration else Scale(top_of(drawn, least=1))
    line = Line("now", colour, "solid", shown, say)
    return NumberChart(
        name="measure",
        title=title,
        unit=unit,
        sentence=sentence,
        figure=figure_of(
            window,
            [*line_traces(window, line, scale, fill=20), *gap_traces(window, shown, scale, now=now)],
            scale,
            markers,
            labels=end_labels(window, [replace(line, name="")], scale),
            limit=None if limit is None else (limit[0], f"alert limit {limit[1]}"),
            now=now,
        ),
        columns=[title],
        rows=table(window, [shown], say, now=now),
        step_seconds=window.step_seconds,
        is_known=any(each is not None for each in shown),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _both(
    window: Window, levels: Sequence[int | None], died: Sequence[float | None], *, now: datetime
) -> list[tuple[str, int | None, float | None]]:
    found = []
    for number in reversed(range(max(len(levels), len(died)))):
        level = levels[number] if number < len(levels) else None
        rate = died[number] if number < len(died) else None
        if level is not None or rate is not None:
            begin = window.start + timedelta(seconds=window.step_seconds * number)
            found.append((times.clock(begin, now=now), level, rate))
    return found


def _labelled(window: Window, shown: Sequence[Figures | None], *, now: datetime) -> list[tuple[str, Figures]]:
    """Return the steps that are known with their times, the newest first."""
    found = [
        (times.clock(begin, now=now), each)
        for begin, each in zip(window.steps, shown, strict=False)
        if each is not None
    ]
    return found[::-1]
