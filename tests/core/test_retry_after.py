"""What an HTTP Retry-After says, and what it only seems to say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.retry_after import read_retry_after

NOW = datetime(2026, 7, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 120\r\n", 120),
        ("0", 0),
        (b"5", 5),
        (7, 7),
        (1.5, 1.5),
        (timedelta(minutes=2), 120),
        (NOW + timedelta(seconds=9), 9),
        ("Wed, 01 Jul 2026 12:01:00 GMT", 60),
        ("Wednesday, 01-Jul-26 12:01:00 GMT", 60),
        ("Wed Jul  1 12:01:00 2026", 60),
        ("Wed, 01 Jul 2026 14:01:00 +0200", 60),
        ("Wed, 01 Jul 2020 12:00:00 GMT", 0),
    ],
)
def test_seconds_and_dates_are_read(value: Any, seconds: float) -> None:
    assert read_retry_after(value, now=NOW) == seconds


@pytest.mark.parametrize(
    "value",
    [
        None, "", "soon", "-5", "+5", "1e9", "0x10", "1.5", "٣", "5, 10", "9" * 13, "9" * 100_000,
        "Mon, 99 Foo 2026 99:99:99 GMT", "Mon, 01 Jan 99999 00:00:00 GMT", "Wed, 01 Jul 2026", ",,,",
        "\0", "Wed, 01 Jul 2026 12:01:00 " + "A" * 100,
        -1, -0.5, float("nan"), float("inf"), 10**400, True, False, [], {}, object(),
        timedelta(seconds=-1), datetime(2026, 7, 1), b"\xff\xfe",  # noqa: DTZ001 - a naive one is under test
    ],
)  # fmt: skip
def test_what_says_nothing_is_nothing(value: Any) -> None:
    assert read_retry_after(value, now=NOW) is None


def test_a_date_whose_zone_carries_it_out_of_the_calendar_is_read() -> None:
    assert read_retry_after("Mon, 01 Jan 0001 00:00:00 +2359", now=NOW) == 0
    assert read_retry_after("Fri, 31 Dec 9999 23:59:59 -2359", now=NOW) > 200_000_000_000  # type: ignore[operator]


@given(st.one_of(st.text(), st.binary(), st.integers(), st.floats(), st.none(), st.timedeltas()))
def test_any_value_is_a_wait_or_nothing(value: Any) -> None:
    seconds = read_retry_after(value, now=NOW)

    assert seconds is None or 0 <= seconds < float("inf")


@given(st.datetimes(min_value=datetime(1950, 1, 1), max_value=datetime(2049, 1, 1)))  # noqa: DTZ001
def test_a_date_of_any_server_is_read_to_the_second(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)

    expected = max(0.0, (moment - NOW).total_seconds())
    assert read_retry_after(format_datetime(moment, usegmt=True), now=NOW) == expected
