"""Figures for plotly, pure: rows in, JSON out. "@token" stands for a colour; charts.js resolves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from console import times
from console.states import REASON_MARKS
from jobs.core.words import Reason

Figure = dict[str, Any]
_WIDTH_WORDS = (
    (31_536_000, "year"),
    (86_400, "day"),
    (3_600, "hour"),
    (60, "minute"),
    (1, "second"),
)


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One colour of a chart, its word and its count."""

    name: str
    word: str
    colour: str
    count: int


@dataclass(frozen=True, slots=True)
class TableRow:
    """One bucket in which something died, for the table behind the chart."""

    start: datetime
    label: str
    counts: list[int]
    total: int


@dataclass(frozen=True, slots=True)
class TimelineChart:
    """The figure and everything that says the same without it."""

    figure: Figure
    title: str
    summary: str
    legend: list[LegendEntry]
    columns: list[str]
    rows: list[TableRow]
    has_gone: bool
    step_seconds: int


def width_words(seconds: int) -> str:
    """Say a bucket's width: "5 minutes", "hour", "2 days"."""
    for unit, word in _WIDTH_WORDS:
        if seconds % unit == 0 and seconds >= unit:
            number = seconds // unit
            return word if number == 1 else f"{number} {word}s"
    return f"{seconds} seconds"


def base_layout(*, height: int) -> Figure:
    """Return what all charts share: no frame, a quiet grid, tokens for colours."""
    axis = {
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "tickfont": {"size": 11, "color": "@ink-3"},
    }
    return {
        "template": "none",
        "height": height,
        "autosize": True,
        "margin": {"l": 40, "r": 12, "t": 8, "b": 20},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "x unified",
        "hoverlabel": {
            "bgcolor": "@raised",
            "bordercolor": "@line-strong",
            "font": {"size": 12, "color": "@ink"},
        },
        "font": {
            "family": "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, Arial, sans-serif",
            "size": 11,
        },
        "xaxis": {**axis, "linecolor": "@line-strong", "showline": True},
        "yaxis": {
            **axis,
            "showgrid": True,
            "gridcolor": "@chart-line",
            "rangemode": "tozero",
            "nticks": 4,
            "tickformat": ",d",
        },
    }


def plot_time(moment: datetime) -> str:
    """Write a moment as plotly's axis reads it: UTC, without a zone."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def timeline_chart(
    *,
    start: datetime,
    width_seconds: int,
    reasons: Mapping[Reason, Sequence[int]],
    gone: Sequence[int],
    counts: Mapping[Reason, int],
    selected: tuple[datetime | None, datetime | None],
    now: datetime,
) -> TimelineChart:
    """Build the timeline of deaths: bars stacked by reason, what is gone in grey, the selected range.

    ``counts`` are the letters that match, by reason, for the legend.
    """
    width = timedelta(seconds=width_seconds)
    buckets = len(gone)
    centres = [plot_time(start + width * number + width / 2) for number in range(buckets)]
    order = [Reason(name) for name in REASON_MARKS]
    known = [reason for reason in order if reason in reasons]
    layout = base_layout(height=96)
    margin = width * buckets * 0.01
    layout["barmode"] = "stack"
    layout["bargap"] = 0.08
    layout["dragmode"] = "select"
    layout["selectdirection"] = "h"
    layout["xaxis"] |= {
        "type": "date",
        # A little more than the bars, so that a handle at the end is whole.
        "range": [plot_time(start - margin), plot_time(start + width * buckets + margin)],
        "nticks": 9,
        "hoverformat": "%d %b %H:%M:%S" if width_seconds < 60 else "%d %b %H:%M",
    }
    totals = [sum(reasons[reason][n] for reason in known) + gone[n] for n in range(buckets)]
    layout["yaxis"] |= _count_axis(max(totals, default=0))
    layout["newselection"] = {"line": {"color": "@accent", "width": 1, "dash": "solid"}}
    layout |= _selection(selected, start, start + width * buckets, now=now)
    traces = [
        _bars(
            REASON_MARKS[reason].word,
            f"@{REASON_MARKS[reason].colour}",
            centres,
            reasons[reason],
            width_seconds,
        )
        for reason in known
    ]
    if any(gone):
        traces.append(_bars("Replayed or purged since", "@c-rest", centres, gone, width_seconds))
    title = f"Died per {width_words(width_seconds)}"
    return TimelineChart(
        figure={"data": traces, "layout": layout},
        title=title,
        summary=_summary(totals, start, width, now),
        legend=[
            LegendEntry(reason.value, REASON_MARKS[reason].word, REASON_MARKS[reason].colour, counts[reason])
            for reason in order
            if counts.get(reason)
        ],
        columns=[
            *(REASON_MARKS[reason].word for reason in known),
            *(["Replayed or purged since"] if any(gone) else []),
        ],
        rows=[
            TableRow(
                start=start + width * number,
                label=times.clock(start + width * number, now=now, seconds=width_seconds < 60),
                counts=[
                    *(reasons[reason][number] for reason in known),
                    *([gone[number]] if any(gone) else []),
                ],
                total=totals[number],
            )
            for number in range(buckets)
            if totals[number]
        ],
        has_gone=any(gone),
        step_seconds=width_seconds,
    )


def _bars(name: str, colour: str, x: Sequence[str], y: Sequence[int], width_seconds: int) -> Figure:
    return {
        "type": "bar",
        "name": name,
        "x": list(x),
        # A bucket in which nothing died has no bar and no line in the hover box.
        "y": [number or None for number in y],
        "width": width_seconds * 1000 * 0.92,
        "marker": {"color": colour, "line": {"width": 0}},
        "hovertemplate": "%{y:,d}<extra>" + name + "</extra>",
    }


def _count_axis(top: int) -> Figure:
    """Return the range and at most three ticks, at 0 and two whole numbers."""
    top = max(top, 4)
    scale = 10 ** (len(str(top)) - 1)
    steps = (factor * scale / ten for ten in (1, 10) for factor in (5, 3, 2, 1))
    step = next(int(each) for each in steps if each >= 1 and 2 * each <= top)
    return {"range": [0, top * 1.04], "tickmode": "array", "tickvals": [0, step, 2 * step]}


def _selection(
    selected: tuple[datetime | None, datetime | None], begin: datetime, end: datetime, *, now: datetime
) -> Figure:
    """Return the shapes of the selected range: tinted, with a handle at each end; it can be dragged."""
    since, until = selected
    if since is None and until is None:
        return {"shapes": []}
    low, high = max(since or begin, begin), min(until or end, end)
    if low >= high:
        return {"shapes": []}
    x0, x1 = plot_time(low), plot_time(high)
    area = {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": x0,
        "x1": x1,
        "y0": 0,
        "y1": 1,
        "fillcolor": "@accent/8",
        "line": {"width": 0},
        "layer": "below",
        "name": "selected",
    }
    edges = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": x,
            "x1": x,
            "y0": 0,
            "y1": 1,
            "line": {"width": 1.5, "color": "@accent-ink"},
        }
        for x in (x0, x1)
    ]
    handles = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "xsizemode": "pixel",
            "xanchor": x,
            "x0": -3.5,
            "x1": 3.5,
            "y0": 0.36,
            "y1": 0.64,
            "fillcolor": "@surface",
            "line": {"width": 1.5, "color": "@accent-ink"},
        }
        for x in (x0, x1)
    ]
    if since and until:
        words = "–".join(times.clock_range(since, until, now=now))
    else:
        words = f"{times.clock(since, now=now) if since else 'start'}–{times.clock(until, now=now) if until else 'now'}"
    label = {
        "xref": "x",
        "yref": "paper",
        "x": x0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "top",
        "xshift": 5,
        "yshift": 3,
        "showarrow": False,
        "text": f"{words} selected",
        "font": {"size": 11, "color": "@ink-2"},
    }
    # In a narrow selection the words would stand over its bars.
    is_wide = (high - low) > (end - begin) * 0.2
    return {"shapes": [area, *edges, *handles], "annotations": [label] if is_wide else []}


def _summary(totals: Sequence[int], start: datetime, width: timedelta, now: datetime) -> str:
    total = sum(totals)
    if not total:
        return "Nothing died in this time."
    top = max(totals)
    number = totals.index(top)
    begin = start + width * number
    first, last = times.clock_range(start, start + width * len(totals), now=now)
    top_first, top_last = times.clock_range(begin, begin + width, now=now)
    return f"{total:,} died between {first} and {last} UTC; most from {top_first} to {top_last}: {top:,}."
