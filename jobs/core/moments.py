"""Points in time as an operator types them, in UTC."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta

from jobs.core import lengths

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
# No job died outside of this, and a margin around it still is a date.
FIRST_MOMENT, LAST_MOMENT = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_ADVICE = "Write 2h, 30m, 7d, 90s, 00:30, 2026-11-12 or 2026-11-12T00:30."


class MomentError(ValueError):
    """A text that is no point in time; the message continues a sentence that begins with the text."""


def parse_moment(
    text: str, *, now: datetime, is_end: bool = False, after: datetime | None = None
) -> datetime:
    """Read a point in time.

    A duration counts back from ``now``. A time of day is the latest past one; as an end it is the
    first one after ``after`` when the latest past one is not. A date is its midnight; as an end
    it is the midnight that ends it.

    Raises:
        MomentError: when it is none of these.
    """
    moment = _read(text.strip(), now, is_end, after)
    if not FIRST_MOMENT <= moment < LAST_MOMENT:
        raise MomentError(f"is not between {FIRST_MOMENT.year} and {LAST_MOMENT.year}. {_ADVICE}")
    return moment


def _read(typed: str, now: datetime, is_end: bool, after: datetime | None) -> datetime:
    word = typed.lower()
    if word == "now":
        return now.astimezone(UTC)
    today = now.astimezone(UTC).date()
    days = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        # A blank ends a word of a search: who quotes one means something else.
        if " " not in word and (seconds := lengths.seconds_of(word)) is not None:
            return (now - timedelta(seconds=seconds)).astimezone(UTC)
        if match := _CLOCK.fullmatch(word):
            return _clock(match, now, after if is_end else None)
        if word in days or re.fullmatch(r"\d{4}-\d{2}-\d{2}", word):
            day = days.get(word) or date.fromisoformat(word)
            start = datetime.combine(day, time(), tzinfo=UTC)
            return start + timedelta(days=1) if is_end else start
        moment = datetime.fromisoformat(typed)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError:
        raise MomentError("is further away than any calendar reaches. Use a smaller number.") from None
    except MomentError:
        raise
    except ValueError:
        raise MomentError(f"is not a time. {_ADVICE}") from None


def _clock(match: re.Match[str], now: datetime, after: datetime | None) -> datetime:
    try:
        clock = time(int(match[1]), int(match[2]), int(match[3] or 0), tzinfo=UTC)
    except ValueError:
        raise MomentError("is not a time of day. The hours go from 00:00 to 23:59.") from None
    utc_now = now.astimezone(UTC)
    moment = datetime.combine(utc_now.date(), clock)
    if moment > utc_now:
        moment -= timedelta(days=1)
    if after is not None and moment <= after and after - moment < timedelta(days=1):
        moment += timedelta(days=1)
    return moment
