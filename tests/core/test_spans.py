"""How long something lasts, in words."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.core.spans import duration, span

UNITS = {"ms": 0.001, "s": 1, "min": 60, "h": 3_600, "days": 86_400}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (0.000_099, "< 0.1 ms"),
        (0.000_1, "0.1 ms"),
        (0.0004, "0.4 ms"),
        (0.000_416, "0.42 ms"),
        (0.004, "4 ms"),
        (0.0064, "6.4 ms"),
        (0.0636, "64 ms"),
        (0.0997, "100 ms"),
        (0.2634, "260 ms"),
        (0.4, "400 ms"),
        (0.464, "460 ms"),
        (0.9949, "990 ms"),
        (0.996, "1 s"),
        (1.2, "1.2 s"),
        (4.75, "4.8 s"),
        (9.96, "10 s"),
        (31, "31 s"),
        (64.4, "64 s"),
        (89.4, "89 s"),
        (89.6, "1 min 30 s"),
        (90, "1 min 30 s"),
        (134, "2 min 14 s"),
        (215, "3 min 35 s"),
        (600, "10 min"),
        (1560, "26 min"),
        (1_870, "31 min"),
        (3_599.6, "1 h"),
        (9660, "2 h 41 min"),
        (172_799, "2 days"),
        (260_000, "3 days"),
        (300_000, "3 days"),
    ],
)
def test_what_was_measured_is_said_in_two_digits_or_more(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def read(words: str) -> float:
    """Return the seconds that the words say."""
    parts = re.findall(r"([\d.]+) (ms|s|min|h|days)\b", words)
    assert " ".join(f"{number} {unit}" for number, unit in parts) == words
    return sum(float(number) * UNITS[unit] for number, unit in parts)


@given(st.floats(min_value=0.0001, max_value=1e9))
@example(172_800)
@example(0.995)
def test_no_words_are_further_from_the_truth_than_a_percentile_is(seconds: float) -> None:
    # Of days the whole ones that have passed are said.
    error = 86_400 if seconds >= 172_770 else 0.0501 * seconds

    assert abs(read(duration(seconds)) - seconds) <= error


@given(st.floats(min_value=0.0001, max_value=1e9), st.floats(min_value=0.0001, max_value=1e9))
def test_what_lasted_longer_is_never_said_to_be_shorter(one: float, other: float) -> None:
    shorter, longer = sorted((one, other))

    assert read(duration(shorter)) <= read(duration(longer))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.9, "0 s"),
        (4.9, "4 s"),
        (59.9, "59 s"),
        (134, "2 min"),
        (3_599, "59 min"),
        (9_660, "2 h 41 min"),
        (172_799, "47 h 59 min"),
        (172_800, "2 days"),
    ],
)
def test_of_what_goes_on_the_whole_units_are_said_that_have_passed(seconds: float, words: str) -> None:
    assert span(seconds) == words
