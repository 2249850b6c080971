"""Lengths of time as an operator types them, and as they are written back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core import lengths


@pytest.mark.parametrize(
    ("typed", "seconds"),
    [
        ("15 min", 900),
        ("15min", 900),
        ("15m", 900),
        ("1 h 30 min", 5_400),
        ("1h30m", 5_400),
        ("1.5 hours", 5_400),
        ("90 s", 90),
        ("250 ms", 0.25),
        ("1 min 0.5 s", 60.5),
        (" 2 Days ", 172_800),
        ("1 week", 604_800),
        ("1,000 s", 1_000),
        ("15\u00a0min", 900),
        ("0 s", 0),
        ("0.1 s", 0.1),
    ],
)
def test_a_length_is_read(typed: str, seconds: float) -> None:
    assert lengths.seconds_of(typed) == seconds


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "5",
        "0",
        "min",
        "5 fortnights",
        "-5 min",
        "1,5 h",
        "1h30",
        "²min",
        "5 µs",
        "1e3 s",
        "5 min!",
        "5 s" * 60,
    ],
)
def test_what_is_no_length_is_none(typed: str) -> None:
    assert lengths.seconds_of(typed) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (1e-9, "1e-09 s"),
        (0.0004, "0.4 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (59.5, "59.5 s"),
        (90, "1 min 30 s"),
        (605, "10 min 5 s"),
        (900, "15 min"),
        (5_400, "1 h 30 min"),
        (86_400, "1 day"),
        (129_600, "1 day 12 h"),
        (172_800, "2 days"),
        (1e9, "11,574 days 1 h 46 min 40 s"),
        (1e300, "1e+300 s"),
    ],
)
def test_a_length_is_written_without_rounding(seconds: float, words: str) -> None:
    assert lengths.written(seconds) == words


@given(
    st.one_of(
        st.integers(min_value=0, max_value=30 * 86_400),
        st.floats(min_value=1e-5, max_value=1e12, allow_nan=False).map(lambda value: float(f"{value:.10g}")),
    )
)
def test_every_length_is_read_as_it_is_written(seconds: float) -> None:
    assert lengths.seconds_of(lengths.written(seconds)) == seconds


@given(st.text(alphabet="0123456789., \u00a0hmsind", max_size=120))
def test_no_text_is_more_than_read_or_refused(typed: str) -> None:
    seconds = lengths.seconds_of(typed)

    assert seconds is None or seconds >= 0
