"""Points in time as an operator types them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.moments import MomentError, parse_moment

NOW = datetime(2026, 11, 12, 3, 16, 2, tzinfo=UTC)


def at(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", NOW - timedelta(hours=2)),
        ("30m", NOW - timedelta(minutes=30)),
        ("7d", NOW - timedelta(days=7)),
        ("90s", NOW - timedelta(seconds=90)),
        ("1w", NOW - timedelta(weeks=1)),
        ("1d12h", NOW - timedelta(hours=36)),
        ("2H", NOW - timedelta(hours=2)),
        ("now", NOW),
        ("00:30", at(2026, 11, 12, 0, 30)),
        ("3:16", at(2026, 11, 12, 3, 16)),
        ("03:16:02", NOW),
        ("03:17", at(2026, 11, 11, 3, 17)),
        ("23:59", at(2026, 11, 11, 23, 59)),
        ("2026-11-12", at(2026, 11, 12)),
        ("today", at(2026, 11, 12)),
        ("yesterday", at(2026, 11, 11)),
        ("2026-11-12T00:30", at(2026, 11, 12, 0, 30)),
        ("2026-11-12T00:30:05.25Z", at(2026, 11, 12, 0, 30, 5, 250_000)),
        ("2026-11-12T02:30+02:00", at(2026, 11, 12, 0, 30)),
        ("2026-11-12 00:30", at(2026, 11, 12, 0, 30)),
    ],
)
def test_a_point_in_time(text, expected):
    assert parse_moment(text, now=NOW) == expected


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("2026-11-12", None, at(2026, 11, 13)),
        ("today", None, at(2026, 11, 13)),
        ("03:12", at(2026, 11, 12, 0, 30), at(2026, 11, 12, 3, 12)),
        ("00:30", at(2026, 11, 11, 23, 30), at(2026, 11, 12, 0, 30)),
        # The latest past 05:00 is before since: the one after it is meant, though it is still to come.
        ("05:00", at(2026, 11, 12, 3, 0), at(2026, 11, 12, 5, 0)),
        ("05:00", at(2026, 11, 1), at(2026, 11, 11, 5, 0)),
    ],
)
def test_an_end(text, after, expected):
    assert parse_moment(text, now=NOW, is_end=True, after=after) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "is not a time. Write 2h, 30m"),
        ("2x", "is not a time."),
        ("", "is not a time."),
        ("2 h", "is not a time."),
        ("24:00", "is not a time of day. The hours go from 00:00 to 23:59."),
        ("12:60", "is not a time of day."),
        ("2026-13-01", "is not a time."),
        ("999999999w", "is further away than any calendar reaches."),
        ("3000d9999999h", "is not between 1970 and 2200."),
        ("1969-12-31", "is not between 1970 and 2200."),
        ("2200-01-01", "is not between 1970 and 2200."),
    ],
)
def test_what_is_no_point_in_time_says_what_to_write(text, message):
    with pytest.raises(MomentError, match=rf"^{message}"):
        parse_moment(text, now=NOW)


@given(st.text(), st.booleans())
def test_any_text_is_a_moment_or_a_clear_error(text, is_end):
    problem, moment = "", None
    try:
        moment = parse_moment(text, now=NOW, is_end=is_end)
    except MomentError as error:
        problem = str(error)

    assert problem.startswith("is ") if moment is None else moment.tzinfo is UTC


@given(st.floats(86_400, 7_000_000_000))
def test_an_iso_time_reads_back_the_same(seconds):
    moment = datetime.fromtimestamp(seconds, UTC)

    assert parse_moment(moment.isoformat(), now=NOW) == moment


@given(st.integers(0, 23), st.integers(0, 59))
def test_a_time_of_day_is_within_the_last_day(hour, minute):
    moment = parse_moment(f"{hour}:{minute:02}", now=NOW)

    assert NOW - timedelta(days=1) < moment <= NOW
    assert (moment.hour, moment.minute) == (hour, minute)
