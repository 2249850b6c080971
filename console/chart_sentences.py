"""What changed in a chart, in one sentence, so that a reader need not look for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from console import times
from console.chart_parts import plot_text, span_words
from console.presenters import figures as words
from jobs.core.changes import LEAST_SHARE, find_change
from jobs.core.windows import Window
from jobs.metrics.reading import Figures

# Four of five numbers of a steady series lie within this share of their median, and none above so many of it.
_STEADY_SHARE = 0.5
_FARTHEST = 3.0


def of_throughput(
    window: Window,
    rows: Sequence[tuple[str, str, str, list[float | None]]],
    totals: Sequence[float | None],
    *,
    now: datetime,
) -> str:
    known = [value for value in totals if value is not None]
    if not known:
        return ""
    if not any(known):
        return f"Workers reported, and no job ran{_missing(window, totals, now=now)}"
    by_name = {name: values for name, _, _, values in rows}
    told = []
    # What goes wrong is told before what goes well.
    for name in ("Retried", "Died"):
        if change := find_change(by_name[name], least=1.0):
            noun = "Retries" if name == "Retried" else "Deaths"
            told.append((abs(change.after - change.before), noun, change))
    # What else changed makes a smaller change worth telling.
    done = find_change(by_name["Done"], least=1.0, least_share=0.05 if told else LEAST_SHARE)
    parts = []
    if told:
        _, noun, change = max(told, key=lambda each: each[0])
        parts.append(
            f"{noun} {_moved(change.is_rise)} from {_a_minute(change.before)} to "
            f"{_a_minute(change.after)} a minute {_at(window, change.index, now=now)}"
        )
    if done is not None and done.share is not None:
        way = "rose" if done.is_rise else "fell"
        when = "" if parts else f" {_at(window, done.index, now=now)}"
        parts.append(f"{'done' if parts else 'Done'} {way} {abs(done.share) * 100:,.0f} %{when}")
    if not parts:
        parts.append(_level(known))
    return "; ".join(parts) + _missing(window, totals, now=now)


def _level(known: Sequence[float]) -> str:
    """Say how high numbers are that did not change from one level to another."""
    mean = sum(known) / len(known)
    if len(known) == 1:
        return f"{_a_minute(mean)} attempts a minute"
    if _is_steady(known):
        return f"Steady: {_a_minute(mean)} attempts a minute"
    return f"Between {_a_minute(min(known))} and {_a_minute(max(known))} attempts a minute, {_a_minute(mean)} on average"


def _is_steady(known: Sequence[float]) -> bool:
    """Say whether there are several numbers, all but a few lie around their median, and none far from it."""
    if len(known) < 2:
        return False
    ordered = sorted(known)
    low, middle, high = (ordered[len(ordered) * tenths // 10] for tenths in (1, 5, 9))
    return high - low <= _STEADY_SHARE * middle and ordered[-1] <= _FARTHEST * middle


def of_percentile(
    window: Window, values: Sequence[float | None], known: Sequence[float | None], *, now: datetime
) -> str:
    told = [value for value in values if value is not None]
    if not told:
        return ""
    change = find_change(values, least=0.005)
    if change is not None:
        text = (
            f"p99 {_moved(change.is_rise)} from {words.seconds(change.before)} to {words.seconds(change.after)} "
            f"{_at(window, change.index, now=now)}"
        )
    else:
        low, high = words.seconds(min(told)), words.seconds(max(told))
        if _is_steady(told):
            text = f"p99 stayed about {words.seconds(sorted(told)[len(told) // 2])}"
        else:
            text = f"p99 between {low} and {high}" if low != high else f"p99 {high}"
    return text + _missing(window, known, now=now)


def of_rate(
    window: Window, shown: Sequence[Figures | None], values: Sequence[float | None], *, now: datetime
) -> str:
    finished = sum(each.finished for each in shown if each is not None)
    if not finished:
        return "No job finished in this time." if any(each is not None for each in shown) else ""
    died = sum(each.dead for each in shown if each is not None)
    change = find_change(values, least=0.002)
    if change is None:
        return f"{died:,} of {finished:,} finished jobs died: {words.share(died / finished)}."
    return (
        f"It {_moved(change.is_rise)} from {words.share(change.before)} to {words.share(change.after)} "
        f"{_at(window, change.index, now=now)}."
    )


def of_depth(
    window: Window, series: Mapping[str, Sequence[float | None]], rest: Sequence[str], *, now: datetime
) -> str:
    columns = _sums(series)
    if not columns:
        return ""
    (first_step, first), (last_step, last) = columns[0], columns[-1]
    text = f"{last:,.0f} waiting {'now' if _is_now(window, series, now=now) else 'at last'}"
    if first_step < last_step:
        # Of the time before the first count nothing is known.
        begins = first_step <= 1
        ago = f"{span_words(window)} ago" if begins else _at(window, first_step, now=now)
        text += f", {first:,.0f} {ago if window.name else 'at first'}"
    if len(rest) == 1:
        newest = next((value for value in reversed(series[rest[0]]) if value is not None), 0)
        return f"{text}. {plot_text(rest[0], 40, escape=False)} holds {newest:,.0f} and is not drawn."
    if rest:
        return f"{text}. {len(rest)} queues that hold less are not drawn."
    return f"{text}."


def of_oldest(
    window: Window, series: Mapping[str, Sequence[float | None]], rest: Sequence[str], *, now: datetime
) -> str:
    newest = {
        queue: value
        for queue, values in series.items()
        if (value := next((v for v in reversed(values) if v is not None), None)) is not None
    }
    if not newest:
        return ""
    is_now = _is_now(window, series, now=now)
    queue = max(newest, key=lambda each: newest[each])
    if not newest[queue]:
        return "Nothing waits." if is_now else "At last nothing waited."
    if is_now and window.step_seconds > 300:
        # The greatest age of the step, which may be over.
        when = f"In the last {times.span(window.step_seconds)} the oldest waited"
    else:
        when = "The oldest now waits" if is_now else "At last the oldest waited"
    return f"{when} on {plot_text(queue, 40, escape=False)}, for {words.seconds(newest[queue])}."


def _is_now(window: Window, series: Mapping[str, Sequence[float | None]], *, now: datetime) -> bool:
    """Say whether what was counted last is about what is so now."""
    newest = max(
        (number for values in series.values() for number, value in enumerate(values) if value is not None),
        default=-1,
    )
    return newest >= window.index(now) - 1


def of_dead(
    window: Window,
    levels: Sequence[int | None],
    died: Sequence[float | None],
    limit: float | None,
    *,
    now: datetime,
) -> str:
    known = [level for level in levels if level is not None]
    parts = []
    if known:
        parts.append(
            f"{known[-1]:,} dead letter{'' if known[-1] == 1 else 's'}"
            if len(known) == 1
            else f"{known[-1]:,} all the time"
            if known[0] == known[-1] == max(known)
            else f"From {known[0]:,} to {known[-1]:,}"
        )
    if limit is not None:
        over = [number for number, value in enumerate(died) if value is not None and value > limit]
        if over:
            # The first step of the newest time over the limit.
            begin = over[-1]
            while begin - 1 in over:
                begin -= 1
            parts.append(f"Deaths passed their limit {_at(window, begin, now=now)}")
    return "".join(f"{part}. " for part in parts).strip()


def _sums(series: Mapping[str, Sequence[float | None]]) -> list[tuple[int, float]]:
    """Return the steps in which any queue is known, and the sums of all."""
    columns = [
        [value for value in column if value is not None] for column in zip(*series.values(), strict=True)
    ]
    return [(number, sum(column)) for number, column in enumerate(columns) if column]


def _moved(is_rise: bool) -> str:
    return "rose" if is_rise else "fell"


def _at(window: Window, number: int, *, now: datetime) -> str:
    """Say when a step begins: "at 02:41"; of long steps "about 3 Nov 06:00"."""
    word = "at" if window.step_seconds <= 300 else "about"
    return f"{word} {times.clock(window.start + timedelta(seconds=window.step_seconds * number), now=now)}"


def _missing(window: Window, known: Sequence[float | None], *, now: datetime) -> str:
    """Say what is not known between the first and the last step that is: ". 6 min missing from 02:24."."""
    first = next((number for number, value in enumerate(known) if value is not None), len(known))
    gaps = [number for number, value in enumerate(known) if value is None and number > first]
    if not gaps:
        return "."
    length = times.span(len(gaps) * window.step_seconds)
    begin = window.start + timedelta(seconds=window.step_seconds * gaps[0])
    return f". {length} missing from {times.clock(begin, now=now)}."


def _a_minute(value: float) -> str:
    return words.a_minute(value).removesuffix(".0")
