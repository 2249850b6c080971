"""The chart of a replay: letters sent a second, by what has become of them. Rows in, figure out."""

from __future__ import annotations

from datetime import datetime, timedelta

from console import times
from console.charts import Figure, base_layout, plot_time
from jobs.operations import Progress, StageRow

_ALREADY = "Already done"
_PARTS = (
    ("Done", "@c-done"),
    (_ALREADY, "@c-5"),
    ("Died again", "@c-dead"),
    ("Waiting or unknown", "@c-4"),
)
# A replay of a few seconds would otherwise be a wall of two bars.
_LEAST_BUCKETS = 30
# Two labels closer than this share of the axis would stand on each other.
_LABEL_SHARE = 0.05


def sent(progress: Progress, *, now: datetime) -> Figure:
    """Build the figure; bars stacked by outcome, dotted lines where a stage began."""
    series = progress.sent_series
    width = timedelta(seconds=progress.bucket_seconds)
    centres = [plot_time_of(bucket.start + width / 2) for bucket in series]
    rows = (
        [bucket.done for bucket in series],
        [bucket.already_done for bucket in series],
        [bucket.died for bucket in series],
        [bucket.waiting for bucket in series],
    )
    layout = base_layout(height=170)
    layout["barmode"] = "stack"
    layout["bargap"] = 0.06
    layout["dragmode"] = False
    layout["yaxis"]["tickformat"] = "~g"
    layout["xaxis"] |= {"type": "date", "nticks": 5, "hoverformat": "%H:%M:%S"}
    begin = series[0].start if series else now
    end = max(series[-1].start + width if series else now, begin + width * _LEAST_BUCKETS)
    layout["xaxis"]["range"] = [plot_time(begin), plot_time(end)]
    tops = [sum(numbers) for numbers in zip(*rows, strict=True)] or [progress.bucket_seconds]
    # Room above the bars for the names of the stages.
    layout["yaxis"]["range"] = [0, max(tops) / progress.bucket_seconds * 1.25]
    layout |= _stages(progress.stages, least_apart=(end - begin) * _LABEL_SHARE)
    return {
        "data": [
            {
                "type": "bar",
                "name": name,
                "x": centres,
                "y": [_rate(number, progress.bucket_seconds) for number in numbers],
                "customdata": list(numbers),
                "width": progress.bucket_seconds * 1000 * 0.92,
                "marker": {"color": colour, "line": {"width": 0}},
                "hovertemplate": "%{customdata:,d}<extra>" + name + "</extra>",
            }
            for (name, colour), numbers in zip(_PARTS, rows, strict=True)
            # Rare, so that it has its bars, and the legend its colour, only where there are some.
            if name != _ALREADY or any(numbers)
        ],
        "layout": layout,
    }


def table(progress: Progress, *, now: datetime) -> list[tuple[str, int, int, int, int]]:
    """Return the bars as rows: time, done, already done, died again, waiting or unknown."""
    return [
        (
            times.clock(bucket.start, now=now, seconds=True),
            bucket.done,
            bucket.already_done,
            bucket.died,
            bucket.waiting,
        )
        for bucket in progress.sent_series
    ]


def plot_time_of(moment: datetime) -> str:
    """Write the middle of a bucket, which may be half a second."""
    return f"{plot_time(moment)}.{moment.microsecond // 1000:03d}"


def _rate(number: int, seconds: int) -> float | None:
    # A bucket without any has no bar and no line in the hover box.
    return round(number / seconds, 3) if number else None


def _stages(stages: list[StageRow], *, least_apart: timedelta) -> Figure:
    """Mark where each stage began, with its size; stages that began together share one label."""
    begun = [stage for stage in stages if stage.started_at is not None] if len(stages) > 1 else []
    lines = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": x,
            "x1": x,
            "y0": 0,
            "y1": 1,
            "line": {"width": 1, "color": "@ink-3", "dash": "dot"},
        }
        for stage in begun
        if stage.started_at is not None and (x := plot_time_of(stage.started_at))
    ]
    marks: list[tuple[datetime, list[str]]] = []
    for stage in begun:
        assert stage.started_at is not None  # noqa: S101 - only those are in the list
        size = "all" if stage.size is None else f"{stage.size:,}"
        if marks and stage.started_at - marks[-1][0] < least_apart:
            # The label stands behind the last of their lines.
            marks[-1] = (stage.started_at, [*marks[-1][1], size])
        else:
            marks.append((stage.started_at, [size]))
    labels = [
        {
            "x": plot_time_of(at),
            "y": 1,
            "xref": "x",
            "yref": "paper",
            "text": ", ".join(sizes),
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "top",
            "xshift": 3,
            "font": {"size": 11, "color": "@ink-3"},
        }
        for at, sizes in marks
    ]
    return {"shapes": lines, "annotations": labels}
