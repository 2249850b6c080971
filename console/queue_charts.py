"""Charts of what waits on the queues: depth and age, a line for each of the fullest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from console import chart_sentences as sentences
from console.chart_layout import figure_of
from console.chart_parts import (
    Line,
    Marker,
    NumberChart,
    Scale,
    end_labels,
    gap_traces,
    line_traces,
    near_limit,
    past_steps,
    plot_text,
    table,
    top_of,
)
from console.presenters import figures as words
from jobs.core import lengths
from jobs.core.alert_words import exact
from jobs.core.windows import Window
from jobs.queues.reading import DepthPoint

# Lines that a chart draws; the rest is named in its sentence.
MOST_QUEUES = 5
_QUEUE_COLOURS = ("@c-4", "@c-5", "@c-2", "@c-3", "@c-rest")


def depth(
    window: Window,
    series: Mapping[str, Sequence[DepthPoint | None]],
    *,
    markers: Sequence[Marker] = (),
    limit: float | None = None,
    now: datetime,
) -> NumberChart:
    """Draw how many messages wait on the fullest queues."""
    return _queues(
        window,
        {queue: [*depths(points)] for queue, points in series.items()},
        name="depth",
        title="Queue depth",
        markers=markers,
        limit=limit,
        is_duration=False,
        now=now,
    )


def oldest_age(
    window: Window,
    series: Mapping[str, Sequence[DepthPoint | None]],
    *,
    markers: Sequence[Marker] = (),
    limit: float | None = None,
    now: datetime,
) -> NumberChart:
    """Draw how long the oldest message has waited, of the queues where it is longest."""
    return _queues(
        window,
        {queue: _ages(points) for queue, points in series.items()},
        name="oldest",
        title="Oldest message",
        markers=markers,
        limit=limit,
        is_duration=True,
        now=now,
    )


def depths(points: Sequence[DepthPoint | None]) -> list[int | None]:
    """Return the most that waited in each step, so that no peak is lost in a long one; in the newest what waits at its end."""
    newest = _newest(points)
    return [
        None
        if point is None
        else point.ready
        if number == newest or point.ready is None or point.ready_max is None
        else max(point.ready, point.ready_max)
        for number, point in enumerate(points)
    ]


def _ages(points: Sequence[DepthPoint | None]) -> list[float | None]:
    """Return the greatest age in each step. Where nothing waits, the oldest has waited for no time."""
    newest = _newest(points)
    return [
        None
        if point is None
        else 0.0
        if point.ready == 0 and (number == newest or point.oldest_age_seconds is None)
        else point.oldest_age_seconds
        for number, point in enumerate(points)
    ]


def _newest(points: Sequence[DepthPoint | None]) -> int:
    return max((number for number, point in enumerate(points) if point is not None), default=-1)


def _queues(
    window: Window,
    series: dict[str, list[float | None]],
    *,
    name: str,
    title: str,
    markers: Sequence[Marker],
    limit: float | None,
    is_duration: bool,
    now: datetime,
) -> NumberChart:
    steps = past_steps(window, now=now)
    # The newest step is left out while nobody has counted in it yet.
    if steps and all(values[steps - 1] is None for values in series.values()):
        steps -= 1
    values_by_queue = {queue: list(values[:steps]) for queue, values in series.items()}
    ranked = sorted(values_by_queue, key=lambda queue: (-_weight(values_by_queue[queue]), queue))
    drawn, rest = ranked[:MOST_QUEUES], ranked[MOST_QUEUES:]
    known = _known(list(values_by_queue.values()), steps)
    everything = [value for queue in drawn for value in values_by_queue[queue]]
    limit = near_limit(limit, everything)
    say: Callable[[float], str] = words.seconds if is_duration else words.count
    say_limit: Callable[[float], str] = lengths.written if is_duration else exact
    if is_duration:
        scale = Scale.of_durations([*everything, limit])
    else:
        scale = Scale(top_of([*everything, limit], least=10))
    lines = [
        Line(plot_text(queue or "no queue", 16), colour, "solid", values_by_queue[queue], say)
        for queue, colour in zip(drawn, _QUEUE_COLOURS, strict=False)
    ]
    return NumberChart(
        name=name,
        title=title,
        unit=f"{scale.words} since it was published" if is_duration else "messages waiting",
        sentence=(sentences.of_oldest if is_duration else sentences.of_depth)(
            window, {queue: values_by_queue[queue] for queue in ranked}, rest, now=now
        ),
        figure=figure_of(
            window,
            [
                *(trace for line in reversed(lines) for trace in line_traces(window, line, scale)),
                *gap_traces(window, known, scale, now=now),
            ],
            scale,
            markers,
            # One line alone is what the page is about.
            labels=end_labels(
                window, lines if len(series) > 1 else [replace(each, name="") for each in lines], scale
            ),
            limit=None if limit is None else (limit, f"alert limit {say_limit(limit)}"),
            now=now,
        ),
        columns=[queue or "no queue" for queue in drawn],
        rows=table(window, [values_by_queue[queue] for queue in drawn], say, now=now),
        step_seconds=window.step_seconds,
        is_known=any(each is not None for each in known),
    )


def _known(series: Sequence[Sequence[float | None]], steps: int) -> list[float | None]:
    """Return a value for each step in which any of the series is known."""
    return [
        next((values[number] for values in series if values[number] is not None), None)
        for number in range(steps)
    ]


def _weight(values: Sequence[float | None]) -> float:
    """Rank a queue by what waits now, and by its most where that is the same."""
    known = [value for value in values if value is not None]
    return (known[-1] + max(known) / 1e6) if known else -1.0
