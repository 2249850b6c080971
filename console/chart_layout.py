"""The frame of the charts of numbers: axes, hovering, brushing, limits, the lines of deployments. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from console.chart_parts import HEIGHT, Marker, Scale, plot_text
from console.charts import Figure, base_layout, plot_time
from jobs.core.windows import Window

# About how wide a letter of 11 px is.
_LETTER_WIDTH = 6.6
_MOST_MARKERS = 20
# Two names of deploys closer than this share of the axis would stand on each other.
_LABEL_SHARE = 0.18


def figure_of(
    window: Window,
    traces: list[Figure],
    scale: Scale,
    markers: Sequence[Marker],
    *,
    labels: Sequence[Figure] = (),
    limit: tuple[float, str] | None = None,
    lower: Scale | None = None,
    now: datetime,
) -> Figure:
    """Put a figure together; with ``lower`` the traces on y2 stand below, on the same time axis."""
    layout = base_layout(height=HEIGHT)
    end = min(window.end, now)
    # Names of lines that ended long ago stand within the plot.
    late = plot_time(window.start + (end - window.start) * 0.85)
    width = max((len(html.unescape(label["text"])) for label in labels if label["x"] > late), default=0)
    is_long = window.length > timedelta(days=2)
    layout["margin"] |= {"r": max(12, round(width * _LETTER_WIDTH + 12)) if width else 12, "l": 46}
    layout["dragmode"] = "select"
    layout["selectdirection"] = "h"
    layout["newselection"] = {"line": {"color": "@accent", "width": 1, "dash": "solid"}}
    layout["hoverlabel"] |= {"namelength": 24}
    layout["xaxis"] |= {
        "type": "date",
        "range": [plot_time(window.start), plot_time(end)],
        "nticks": 7,
        "hoverformat": "%d %b %H:%M UTC" if window.length > timedelta(hours=12) else "%H:%M UTC",
        "tickformat": "%-d %b" if is_long else "%H:%M",
        "tickangle": 0,
        "showspikes": True,
        "spikemode": "across",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": "@ink-3",
    }
    layout["yaxis"] |= _axis(scale)
    if lower is not None:
        layout["yaxis"] |= {"domain": [0.42, 1]}
        layout["yaxis2"] = {**layout["yaxis"], **_axis(lower), "domain": [0, 0.28], "anchor": "x"}
        layout["xaxis"] |= {"anchor": "y2"}
        layout["hoversubplots"] = "axis"
    shapes, annotations = marks(window, markers, end=end)
    if limit is not None:
        axis = "y" if lower is None else "y2"
        shapes.append(_limit_line(limit[0] * (scale.factor if lower is None else 1), axis))
        annotations.append(_limit_words(limit[0] * (scale.factor if lower is None else 1), limit[1], axis))
    layout["shapes"] = shapes
    layout["annotations"] = [*annotations, *labels]
    return {"data": traces, "layout": layout}


def _axis(scale: Scale) -> Figure:
    ticks = ticks_of(scale)
    return {
        "range": [0, scale.top],
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [f"{tick:,.6g}{scale.suffix}" for tick in ticks],
        "zeroline": True,
        "zerolinecolor": "@line-strong",
    }


def marks(window: Window, markers: Sequence[Marker], *, end: datetime) -> tuple[list[Figure], list[Figure]]:
    """Return the dotted lines of what happened, and the names of those that have room for one."""
    inside = [each for each in markers if window.start < each.at < end][-_MOST_MARKERS:]
    lines = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": plot_time(each.at),
            "x1": plot_time(each.at),
            "y0": 0,
            "y1": 1,
            "line": {"width": 1, "color": "@ink-3", "dash": "dot"},
        }
        for each in inside
    ]
    labels: list[Figure] = []
    length = (end - window.start).total_seconds()
    taken = -1.0
    for each in inside:
        share = (each.at - window.start).total_seconds() / length
        is_left = share > _LABEL_SHARE * 2
        if (share - _LABEL_SHARE if is_left else share) < taken:
            continue
        taken = share if is_left else share + _LABEL_SHARE
        labels.append(
            {
                "x": plot_time(each.at),
                "y": 1,
                "xref": "x",
                "yref": "paper",
                "xanchor": "right" if is_left else "left",
                "yanchor": "top",
                "xshift": -4 if is_left else 4,
                "showarrow": False,
                "text": plot_text(each.words, 22),
                "bgcolor": "@surface",
                "font": {"size": 11, "color": "@ink-2"},
            }
        )
    return lines, labels


def _limit_line(value: float, axis: str) -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "yref": axis,
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"width": 1.25, "color": "@amber", "dash": "dash"},
    }


def _limit_words(value: float, text: str, axis: str) -> Figure:
    return {
        "xref": "paper",
        "yref": axis,
        "x": 0,
        "y": value,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
        "text": plot_text(text, 40),
        "bgcolor": "@surface",
        "borderpad": 0,
        "font": {"size": 11, "color": "@ink-2"},
    }


def ticks_of(scale: Scale) -> list[float]:
    """Return the places of the grid's lines: zero and two or three round numbers."""
    scaled = scale.top
    parts = 3 if scale.least_ticks > 3 else 2
    power = 10.0 ** math.floor(math.log10(scaled))
    lead = round(scaled / power, 6)
    # 3 and 1.5 and 6 divide by three, the others by two or four.
    if lead in {3, 1.5, 6} and parts == 3:
        return [0, scaled / 3, scaled * 2 / 3, scaled]
    return [0, scaled / 2, scaled]
