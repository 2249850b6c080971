"""Lengths of time as people type them, written back so that they are read as the same again.

What was measured is rounded for reading instead: see spans.duration.
"""

from __future__ import annotations

import re
from decimal import Decimal

# In milliseconds. The first word of each is the one that is written.
_UNITS = (
    (("week", "weeks", "w"), 604_800_000),
    (("day", "days", "d"), 86_400_000),
    (("h", "hr", "hrs", "hour", "hours"), 3_600_000),
    (("min", "mins", "m", "minute", "minutes"), 60_000),
    (("s", "sec", "secs", "second", "seconds"), 1_000),
    (("ms", "msec", "millisecond", "milliseconds"), 1),
)
_LENGTH_OF = {word: length for words, length in _UNITS for word in words}
# "1,000" is a thousand; "1,5" is not taken for fifteen.
_PART = re.compile(r"\s*((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,30})(?:\.[0-9]{1,30})?)\s*([a-z]+)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+\s*")
# A longer text is none, and a number of more digits than this takes long to read.
_MOST_CHARACTERS = 100
# In seconds. Nobody means thirty million years, of which floats no longer have the parts, or less than a millionth.
_LEAST, _BEYOND = 1e-6, 1e15


def seconds_of(text: str) -> float | None:
    """Read a length of time: "15 min", "15m", "1 h 30 min", "90s", "250 ms", "1.5 h"; None when it is none.

    Each number has its unit, so that nobody takes minutes for seconds; several are added up.
    """
    typed = text.lower()
    if len(typed) > _MOST_CHARACTERS or not _WHOLE.fullmatch(typed):
        return None
    parts = _PART.findall(typed)
    if any(unit not in _LENGTH_OF for _, unit in parts):
        return None
    milliseconds = sum(
        (Decimal(number.replace(",", "")) * _LENGTH_OF[unit] for number, unit in parts), Decimal()
    )
    return float(milliseconds / 1_000)


def written(seconds: float) -> str:
    """Write a length of time without rounding it: "15 min", "1 h 30 min", "250 ms", "1 day", "0 s".

    What is shorter than a microsecond or longer than any calendar is not written to be read again.
    """
    if 0 < seconds < _LEAST or seconds >= _BEYOND:
        return f"{seconds:g} s"
    left = Decimal(repr(float(seconds)))
    if not left:
        return "0 s"
    if left < 1:
        return f"{_plain(left * 1_000)} ms"
    days, left = divmod(left, 86_400)
    hours, left = divmod(left, 3_600)
    minutes, left = divmod(left, 60)
    parts = [
        *([f"{int(days):,} {'day' if days == 1 else 'days'}"] if days else []),
        *([f"{int(hours)} h"] if hours else []),
        *([f"{int(minutes)} min"] if minutes else []),
        *([f"{_plain(left)} s"] if left else []),
    ]
    return " ".join(parts)


def _plain(number: Decimal) -> str:
    """Write a number without an exponent and without noughts at its end."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
