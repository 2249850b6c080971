"""What the charts of numbers are made of: scales, lines named at their end, gaps, tables. Pure."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from console import times
from console.charts import Figure, plot_time
from console.presenters.plain import visible
from jobs.core.windows import Window
from jobs.metrics.reading import Figures

_T = TypeVar("_T")

HEIGHT = 200
# A limit that is further above the numbers is not drawn.
_NEAR = 2.5
# Letters of a name at the end of a line, on a phone.
_SHORT_NAME = 9
# Of text of 11 px.
_LABEL_HEIGHT = 13.0
# How far above the plot the middle of a name can be without being cut.
_LABEL_ROOM = 2.0
# In a narrower band, as a share of the axis, the words would stand beside it.
_BAND_SHARE = 0.07


@dataclass(frozen=True, slots=True)
class Marker:
    """Something that happened at a moment and is drawn as a dotted line: a deployment."""

    at: datetime
    words: str


@dataclass(frozen=True, slots=True)
class NumberChart:
    """A figure and everything that says the same without it. ``name`` is its id on the page."""

    name: str
    title: str
    unit: str
    sentence: str
    figure: Figure
    columns: list[str]
    rows: list[tuple[str, list[str]]]
    step_seconds: int
    legend: list[tuple[str, str]] = field(default_factory=list)
    is_known: bool = True

    @property
    def json(self) -> str:
        """The figure as charts.js reads it."""
        return json.dumps(self.figure, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its name, token and dash; ``say`` writes one of its values with the unit."""

    name: str
    colour: str
    dash: str
    values: Sequence[float | None]
    say: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from zero to ``top``: values are drawn in ``factor`` of their own unit."""

    top: float
    suffix: str = ""
    factor: float = 1.0
    words: str = ""
    least_ticks: int = 4

    @classmethod
    def of_durations(cls, values: Sequence[float | None]) -> Scale:
        """Return the scale for seconds, in the unit that the highest of them is told in."""
        top = max((value for value in values if value is not None), default=0.0)
        for least, seconds, suffix, words in (
            (2 * 86_400, 86_400.0, " d", "days"),
            (2 * 3_600, 3_600.0, " h", "hours"),
            (300, 60.0, " min", "minutes"),
            (1.0, 1.0, " s", "seconds"),
        ):
            if top >= least:
                return cls(top_of([top / seconds], least=0.01), suffix, factor=1 / seconds, words=words)
        return cls(top_of([top * 1000], least=10), " ms", factor=1000.0, words="milliseconds")


def near_limit(limit: float | None, values: Sequence[float | None]) -> float | None:
    """Return a limit that can be drawn without flattening what it is the limit of, else None."""
    top = max((value for value in values if value is not None), default=0.0)
    return limit if limit is not None and limit <= max(top, 1e-9) * _NEAR else None


def top_of(values: Sequence[float | None], *, least: float) -> float:
    """Return a round number above all of them."""
    top = max([least, *(value for value in values if value is not None)])
    scale = 10.0 ** math.floor(math.log10(top))
    for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10):
        if step * scale >= top * 1.02:
            return step * scale
    return 10 * scale * 1.5


def x_of(window: Window, number: int) -> str:
    """Return where a step begins on the axis."""
    return plot_time(window.start + timedelta(seconds=window.step_seconds * number))


def runs(values: Sequence[float | None]) -> list[tuple[int, int]]:
    """Return [begin, end) of each run of known values."""
    found, begin = [], None
    for number, value in enumerate([*values, None]):
        if value is not None and begin is None:
            begin = number
        elif value is None and begin is not None:
            found.append((begin, number))
            begin = None
    return found


def plot_text(text: str, limit: int, *, escape: bool = True) -> str:
    """Make a name from a message safe for plotly, which reads some tags and templates in text."""
    shown = visible(text, keep="")
    shown = shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
    if not escape:
        return shown
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")


def line_traces(window: Window, line: Line, scale: Scale, *, fill: int = 0) -> list[Figure]:
    """Draw a line that breaks where nothing is known; a lone point is a dot.

    With ``fill``, in per cent of its colour, each piece is a trace of its own: plotly fills across gaps.
    """
    pieces = runs(line.values)
    if not fill:
        return [
            _line(
                window,
                line,
                scale,
                (0, len(line.values)),
                {begin for begin, end in pieces if end - begin == 1},
            )
        ]
    return [
        _line(window, line, scale, (begin, end), {begin} if end - begin == 1 else set())
        | {"fill": "tozeroy", "fillcolor": f"{line.colour}/{fill}"}
        for begin, end in pieces
    ]


def _line(window: Window, line: Line, scale: Scale, piece: tuple[int, int], lone: set[int]) -> Figure:
    numbers = range(*piece)
    values = line.values[piece[0] : piece[1]]
    trace: Figure = {
        "type": "scatter",
        "mode": "lines+markers" if lone else "lines",
        "name": line.name,
        "x": [x_of(window, number) for number in numbers],
        "y": [None if value is None else float(f"{value * scale.factor:.4g}") for value in values],
        "text": ["" if value is None else line.say(value) for value in values],
        "connectgaps": False,
        "line": {"width": 1.75, "color": line.colour, "dash": line.dash},
        "hovertemplate": "%{text}",
    }
    if lone:
        trace["marker"] = {
            "color": line.colour,
            "size": [4 if number in lone else 0 for number in numbers],
            "line": {"width": 0},
        }
    return trace


def gap_traces(
    window: Window,
    known: Sequence[float | None],
    scale: Scale,
    *,
    now: datetime,
    axis: str = "y",
    has_words: bool = True,
) -> list[Figure]:
    """Draw a hatched band over each run of steps that are not known."""
    traces = []
    for begin, end in runs([1.0 if value is None else None for value in known]):
        # From the last point that is known to the next one, or the lines would float beside it.
        left, right = x_of(window, max(0, begin - 1)), x_of(window, min(end, len(known) - 1))
        if left == right:
            continue
        trace: Figure = {
            "type": "scatter",
            "mode": "lines",
            "x": [left, right, right, left, left],
            "y": [0, 0, scale.top, scale.top, 0],
            "fill": "toself",
            "fillcolor": "@gap",
            "fillpattern": {
                "shape": "/",
                "fgcolor": "@line-strong",
                "bgcolor": "@gap",
                "size": 7,
                "solidity": 0.15,
            },
            "line": {"width": 0, "color": "@gap"},
            "hoverinfo": "skip",
            "yaxis": axis,
        }
        if has_words and (min(end, len(known) - 1) - max(0, begin - 1)) >= _BAND_SHARE * len(window.steps):
            middle = (max(0, begin - 1) + min(end, len(known) - 1)) / 2
            traces.append(
                {
                    "type": "scatter",
                    "mode": "text",
                    "x": [plot_time(window.start + timedelta(seconds=window.step_seconds * middle))],
                    "y": [scale.top * 0.8],
                    "text": ["no data"],
                    "textfont": {"size": 11, "color": "@ink-3"},
                    "hoverinfo": "skip",
                    "yaxis": axis,
                    # For charts.js, which leaves these words out where there is no room.
                    "meta": "last gap" if end == len(known) else "gap",
                }
            )
        traces.insert(0, trace)
    return traces


def end_labels(
    window: Window, lines: Sequence[Line], scale: Scale, *, height: int = HEIGHT - 28
) -> list[Figure]:
    """Name lines at their right end with their last value; names that would stand on each other move apart."""
    ends = []
    for line in lines:
        last = next(
            (
                (number, value)
                for number, value in reversed(list(enumerate(line.values)))
                if value is not None
            ),
            None,
        )
        if last is None:
            continue
        ends.append((last[1] * scale.factor / scale.top * height, last, line))
    # Of the same height the first line stands above.
    ends.reverse()
    ends.sort(key=lambda each: each[0])
    placed: list[Figure] = []
    for (wanted, (number, value), line), at in zip(
        ends, _apart([wanted for wanted, *_ in ends], most=height + _LABEL_ROOM), strict=True
    ):
        placed.append(
            {
                "x": x_of(window, number),
                "y": value * scale.factor,
                "xref": "x",
                "yref": "y",
                "xanchor": "left",
                "yanchor": "middle",
                "xshift": 4,
                "yshift": round(at - wanted, 1),
                "showarrow": False,
                "text": f"{line.name} {line.say(value)}".strip(),
                # Of a phone's width a long name would take the half; charts.js reads this, plotly does not.
                "short": f"{_short_name(line.name)} {line.say(value)}".strip(),
                # Not a tag: plotly would write it as an inline style, which the policy forbids.
                "font": {"size": 11, "color": "@ink", "weight": 600},
            }
        )
    return placed


def _short_name(name: str) -> str:
    return plot_text(html.unescape(name), _SHORT_NAME)


def _apart(wanted: Sequence[float], *, most: float) -> list[float]:
    """Return where names stand, from below: a line apart, and none above ``most`` while there is room below."""
    placed: list[float] = []
    for at in wanted:
        placed.append(max(at, placed[-1] + _LABEL_HEIGHT) if placed else max(at, 0.0))
    for index in reversed(range(len(placed))):
        most_here = most - (len(placed) - 1 - index) * _LABEL_HEIGHT
        placed[index] = min(placed[index], most_here)
    return placed


def table(
    window: Window,
    series: Sequence[Sequence[float | None]],
    say: Callable[[float], str],
    *,
    now: datetime,
) -> list[tuple[str, list[str]]]:
    """Return the steps in which something is known, the newest first."""
    found = []
    for number in reversed(range(min((len(values) for values in series), default=0))):
        row = [values[number] for values in series]
        if any(value is not None for value in row):
            begin = window.start + timedelta(seconds=window.step_seconds * number)
            found.append(
                (times.clock(begin, now=now), ["–" if value is None else say(value) for value in row])
            )
    return found


def span_words(window: Window) -> str:
    """Say how long a window is, before "ago": "an hour", "7 days"."""
    names: dict[str, str] = {
        "1h": "an hour",
        "6h": "6 hours",
        "24h": "24 hours",
        "7d": "7 days",
        "30d": "30 days",
    }
    return names.get(window.name) or times.span(window.length.total_seconds())


# Which steps, and how long they are ------------------------------------------------------------


def past_steps(window: Window, *, now: datetime) -> int:
    """Return how many steps have begun."""
    return max(0, min(len(window.steps), window.index(now) + 1))


def past_levels(window: Window, values: Sequence[_T | None], *, now: datetime) -> list[_T | None]:
    """Return the steps that have begun; the newest is left out while nobody has counted in it yet."""
    past = list(values[: past_steps(window, now=now)])
    return past[:-1] if past and past[-1] is None else past


def shown_steps(window: Window, steps: Sequence[Figures | None], *, now: datetime) -> list[Figures | None]:
    """Return the steps whose figures mean something: of the one that has just begun a rate would mislead."""
    past = past_steps(window, now=now)
    if past and minutes_of(window, past - 1, now=now) * 60 < min(window.step_seconds, 120):
        past -= 1
    return list(steps[:past])


def minutes_of(window: Window, number: int, *, now: datetime) -> float:
    begin = window.start + timedelta(seconds=window.step_seconds * number)
    return max(1.0, min(float(window.step_seconds), (now - begin).total_seconds())) / 60
