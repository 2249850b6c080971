"""Times as pages say them. static/js/app.js counts the relative ones on, by the same rules."""

from __future__ import annotations

from datetime import UTC, datetime

from jobs.core.spans import span as span


def ago(moment: datetime, *, now: datetime) -> str:
    """Say how long ago: "4 s ago", "31 min ago", "2 h 41 min ago", then the day: "3 Nov", "3 Nov 2025"."""
    seconds = int((now - moment).total_seconds())
    if abs(seconds) >= 86_400:
        return day(moment, now=now)
    # Clocks of two machines differ: a second or two ahead is now.
    if -3 < seconds < 0:
        seconds = 0
    words = span(abs(seconds))
    return f"{words} ago" if seconds >= 0 else f"in {words}"


def day(moment: datetime, *, now: datetime) -> str:
    """Say the day, with its year when it is another one: "3 Nov", "3 Nov 2025"."""
    moment = moment.astimezone(UTC)
    words = f"{moment.day} {moment:%b}"
    return words if moment.year == now.astimezone(UTC).year else f"{words} {moment.year}"


def clock(moment: datetime, *, now: datetime, seconds: bool = False) -> str:
    """Say the time of day, after its day when that is not today: "03:12", "3 Nov 03:12"."""
    moment = moment.astimezone(UTC)
    words = f"{moment:%H:%M:%S}" if seconds else f"{moment:%H:%M}"
    return words if moment.date() == now.astimezone(UTC).date() else f"{day(moment, now=now)} {words}"


def clock_range(start: datetime, end: datetime, *, now: datetime) -> tuple[str, str]:
    """Say two times of day, to the second where the minute alone would not tell them apart."""
    first, last = clock(start, now=now), clock(end, now=now)
    if first != last:
        return first, last
    return clock(start, now=now, seconds=True), clock(end, now=now, seconds=True)


def exact(moment: datetime) -> str:
    """Write the moment to the second, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
