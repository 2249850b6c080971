"""How long something lasts, as pages, mails and commands say it; files for machines have bare seconds.

``duration`` is for what was measured, and rounds it. ``span`` is for what goes on: whole units that have passed,
which static/js/app.js counts on by the same rules.
"""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """Say how long something measured is, in two digits or more: "64 ms", "4.8 s", "3 min 35 s", "2 h 41 min", "3 days".

    Times of percentiles are known within 5 %, and of a single attempt nobody needs more.
    """
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0001:
        return "< 0.1 ms"
    if seconds < 100:
        seconds = round(seconds, 1 - math.floor(math.log10(seconds)))
    if seconds < 1:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    if seconds < 90:
        return f"{seconds:.2g} s"
    if round(seconds) < 600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return span(round(seconds / 60) * 60)


def span(seconds: float) -> str:
    """Say how long in whole units that have passed: "4 s", "31 min", "2 h 41 min", "3 days"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"
