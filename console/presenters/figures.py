"""Figures of a time window as tiles and tables show them: with unit, and with what changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jobs.core.spans import duration

# What stands where nobody knows; a title says why.
UNKNOWN = "–"
# Smaller changes than this part of what was there before are none.
_NOTHING = 0.005


@dataclass(frozen=True, slots=True)
class Change:
    """How a figure moved: ``tone`` is worse, better, same or "", where more is neither good nor bad."""

    tone: str = ""
    arrow: str = ""
    difference: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its unit, its change and one fact; ``title`` says more of the fact.

    ``tone`` is "worse" where the fact is an alarm, ``why`` says why the figure is not known.
    """

    name: str
    figure: str
    unit: str = ""
    change: Change = Change()
    fact: str = ""
    title: str = ""
    why: str = ""
    tone: str = ""


def change(
    now: float | None,
    before: float | None,
    *,
    words: Callable[[float], str],
    difference: Callable[[float], str] | None = None,
    more_is: str = "",
) -> Change:
    """Compare two figures; no change is told of what is not known. ``more_is`` is worse, better or ""."""
    if now is None or before is None:
        return Change()
    apart = now - before
    if abs(apart) <= _NOTHING * max(abs(now), abs(before)) or words(now) == words(before):
        return Change("same", "equal", "no change", f"from {words(before)}")
    tone = ""
    if more_is:
        tone = more_is if apart > 0 else {"worse": "better", "better": "worse"}[more_is]
    arrow = "arrow-up" if apart > 0 else "arrow-down"
    return Change(tone, arrow, (difference or words)(abs(apart)), f"from {words(before)}")


def count(number: float) -> str:
    """Write a count: 4,310."""
    return f"{number:,.0f}"


# A time among the figures of tiles, tables and charts.
seconds = duration


def share(value: float) -> str:
    """Write a share of 1 in per cent: "9.1 %"."""
    percent = value * 100
    if 0 < percent < 0.05:
        return "< 0.1 %"
    return f"{percent:.1f} %"


def points(value: float) -> str:
    """Write the difference of two shares: "8.3 points"."""
    return f"{value * 100:.1f} points"


def a_minute(value: float) -> str:
    """Write a rate as a figure without its unit: "299", "6.3"."""
    return f"{value:,.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def split(words: str) -> tuple[str, str]:
    """Return the number and the unit of "4.8 s"; what has several parts stays whole."""
    number, _, unit = words.rpartition(" ")
    return (number, unit) if number and " " not in number else (words, "")


def rate(number: int, minutes: float) -> float | None:
    """Return how many a minute; None when no minute is known."""
    return number / minutes if minutes else None


def memory(number: int) -> str:
    """Write bytes in three digits: "310 MB", "1.4 GB"."""
    value = float(number)
    for unit in ("bytes", "KB", "MB"):
        if value < 1_000:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "bytes" else f"{value:.3g} {unit}"
        value /= 1_000
    return f"{value:,.0f} GB" if value >= 100 else f"{value:.3g} GB"


def optional(value: float | None, words: Callable[[float], str]) -> str:
    """Write a figure, or that it is not known."""
    return UNKNOWN if value is None else words(value)
