"""What an HTTP ``Retry-After`` says. It comes from the other side, so it may say anything."""

from __future__ import annotations

import datetime
import math
import re
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,12}")
# An HTTP date has 29 characters, its two obsolete forms up to 33.
_LONGEST_TEXT = 64


def read_retry_after(value: object, *, now: datetime.datetime) -> float | None:
    """Return the seconds that a Retry-After asks to wait from ``now``, which is aware; None when it says nothing.

    It reads delay-seconds, the three forms of an HTTP date, and what Python code gives: a number of
    seconds, a ``timedelta``, an aware ``datetime``. A time that is over is 0. What it cannot read, and
    what is below zero or not finite, is None.

    Source: RFC 9110, sections 10.2.3 and 5.6.7.
    """
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        value = _read_text(value.strip(), now=now)
    if isinstance(value, datetime.datetime):
        return None if value.tzinfo is None else max(0.0, (value - now).total_seconds())
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


def _read_text(text: str, *, now: datetime.datetime) -> object:
    if len(text) > _LONGEST_TEXT:
        return None
    if _SECONDS.fullmatch(text):
        return int(text)
    try:
        found = parsedate_to_datetime(text)
        if found.tzinfo is None:
            # asctime has no zone, and an HTTP date is always in UTC.
            found = found.replace(tzinfo=datetime.UTC)
        # Near year 1 and 9999 a zone can carry it out of the calendar.
        return max(0.0, (found - now).total_seconds())
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
