"""The window of a page: whole steps around what was asked for, made of numbers that are still kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.core import windows
from jobs.core.windows import KEPT, LENGTHS, Window
from jobs.core.words import RollupLevel

NOW = datetime(2026, 11, 12, 3, 16, 2, tzinfo=UTC)
DAY = timedelta(days=1)

ages = st.timedeltas(timedelta(seconds=1), windows.MOST - timedelta(days=1))


@pytest.mark.parametrize(
    ("name", "start", "end", "steps"),
    [
        ("1h", "02:17", "03:17", 60),
        ("6h", "21:20", "03:20", 72),
        ("24h", "03:30", "03:30", 96),
        ("7d", "04:00", "04:00", 84),
        ("30d", "06:00", "06:00", 120),
    ],
)
def test_a_named_window_ends_with_the_step_that_runs(name, start, end, steps):
    window = windows.named(name, now=NOW)

    assert (f"{window.start:%H:%M}", f"{window.end:%H:%M}", len(window.steps)) == (start, end, steps)
    assert window.index(NOW) == steps - 1
    assert (window.before().start, window.before().end) == (window.start - window.length, window.start)


def test_an_unknown_name_is_the_shortest_window():
    assert windows.named("1 year", now=NOW) == windows.named("1h", now=NOW)


@pytest.mark.parametrize(
    ("begins", "lasts", "expected"),
    [
        (timedelta(minutes=30), timedelta(minutes=20), ("02:46", "03:07", 60)),
        (timedelta(seconds=30), timedelta(seconds=5), ("03:15", "03:20", 60)),
        (timedelta(hours=5), timedelta(hours=3), ("22:15", "01:20", 300)),
        (timedelta(days=8), timedelta(minutes=10), ("03:00", "04:00", 3_600)),
        (timedelta(days=91), timedelta(minutes=10), ("00:00", "00:00", 86_400)),
    ],
    ids=["short", "shorter than any", "of hours", "of minutes that are gone", "of hours that are gone"],
)
def test_a_range_of_ones_own_is_widened_to_whole_steps(begins, lasts, expected):
    window = windows.between(NOW - begins, NOW - begins + lasts, now=NOW)

    assert (f"{window.start:%H:%M}", f"{window.end:%H:%M}", window.step_seconds) == expected


@given(ages, st.timedeltas(timedelta(seconds=1), windows.MOST))
@example(KEPT[RollupLevel.MINUTE] - timedelta(seconds=1), timedelta(hours=3))
@example(KEPT[RollupLevel.HOUR] - timedelta(seconds=1), timedelta(days=20))
def test_whatever_range_is_asked_for_lies_within_whole_steps_of_numbers_that_are_kept(age, lasts):
    start = NOW - age

    window = windows.between(start, start + lasts, now=NOW)

    step = timedelta(seconds=window.step_seconds)
    assert window.start <= start
    assert start + lasts <= window.end < start + max(lasts, windows.LEAST) + 2 * step
    assert window.length >= windows.LEAST
    assert window.length % step == timedelta(0)
    assert window.start.timestamp() % window.step_seconds == 0
    assert window.steps[0] == window.start
    assert window.steps[-1] == window.end - step
    assert window.step_seconds == windows.STEPS[-1] or len(window.steps) <= windows.MOST_POINTS + 2
    level = window.level(now=NOW)
    assert LENGTHS[level] <= step
    assert NOW - window.start <= KEPT[level] + DAY


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (NOW - DAY, NOW - DAY, "ends before it begins"),
        (NOW, NOW + DAY, "lies in the future"),
        (NOW - 800 * DAY, NOW - 731 * DAY, "ends more than 730 days ago"),
        (NOW - 731 * DAY, NOW, "longer than 730 days"),
    ],
)
def test_a_range_that_cannot_be_shown_is_refused_and_says_why(start, end, words):
    with pytest.raises(ValueError, match=words):
        windows.between(start, end, now=NOW)


def test_a_moment_outside_lies_in_no_step():
    window = Window(NOW, NOW + timedelta(minutes=5), 60)

    assert [window.index(NOW + timedelta(seconds=each)) for each in (-1, 0, 299, 300)] == [-1, 0, 4, 5]
