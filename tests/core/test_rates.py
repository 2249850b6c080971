"""Rates as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.rates import LONGEST_PERIOD_SECONDS, MOST_JOBS, Rate, RateError, parse_rate


@pytest.mark.parametrize(
    ("text", "rate", "interval"),
    [
        ("1/s", Rate(1, 1.0), 1.0),
        ("100/m", Rate(100, 60.0), 0.6),
        ("1000/h", Rate(1000, 3600.0), 3.6),
        ("10/30s", Rate(10, 30.0), 3.0),
        ("1/24h", Rate(1, 86_400.0), 86_400.0),
        ("1000000/s", Rate(1_000_000, 1.0), 0.000001),
    ],
)
def test_a_rate_is_a_number_of_jobs_in_a_time(text: str, rate: Rate, interval: float) -> None:
    assert parse_rate(text) == rate
    assert rate.interval_seconds == interval


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is not a number of jobs in a time"),
        ("100", "it is not a number of jobs in a time"),
        ("100/d", "it is not a number of jobs in a time"),
        ("1.5/s", "it is not a number of jobs in a time"),
        ("-1/s", "it is not a number of jobs in a time"),
        (" 1/s", "it is not a number of jobs in a time"),
        ("1/s\n", "it is not a number of jobs in a time"),
        ("٣/s", "it is not a number of jobs in a time"),
        ("9" * 5000 + "/s", "it is not a number of jobs in a time"),
        ("0/s", "the number of jobs is from 1 to 1000000"),
        ("1000001/s", "the number of jobs is from 1 to 1000000"),
        ("1/0s", "the time is from 1 s to 86400 s"),
        ("1/25h", "the time is from 1 s to 86400 s"),
    ],
)
def test_what_is_no_rate_is_refused_with_what_is_allowed(text: str, why: str) -> None:
    with pytest.raises(RateError, match=why):
        parse_rate(text)


@given(st.integers(1, MOST_JOBS), st.integers(1, LONGEST_PERIOD_SECONDS))
def test_a_rate_reads_what_it_writes(limit: int, seconds: int) -> None:
    rate = Rate(limit, float(seconds))

    assert parse_rate(str(rate)) == rate


@given(st.text())
def test_any_text_is_a_rate_or_is_refused(text: str) -> None:
    try:
        rate = parse_rate(text)
    except RateError:
        return
    assert rate.limit >= 1
    assert rate.period_seconds >= 1
