"""How long something lasts, as pages and mails say it. static/js/app.js counts on by the same rules."""

from __future__ import annotations


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
