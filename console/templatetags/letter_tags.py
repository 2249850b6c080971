"""Filters of the letter, confirm and operation pages."""

from __future__ import annotations

from typing import Any

from django import template

from console.presenters.plain import duration, short_task, visible

register = template.Library()


@register.filter
def shown_lines(text: Any) -> str:
    """Make a text of several lines safe to read; its line ends stay."""
    return visible(str(text).replace("\r\n", "\n"))


@register.filter
def shown_line(text: Any) -> str:
    """Make a text of several lines one line that is safe to read."""
    return visible(" ".join(str(text).split()), keep="")


@register.filter
def short_name(task: str) -> str:
    """Return a task's last part, safe to read."""
    return visible(short_task(task), keep="")


@register.filter
def lasting_seconds(seconds: float | None) -> str:
    """Write a length of time to the second while it is short: "3 min 35 s"."""
    return "" if seconds is None else duration(round(seconds))


@register.filter
def plain_rate(rate: float | None) -> str:
    """Write a rate without an empty fraction: "20", "0.5"; nothing when there is none."""
    return "" if rate is None else f"{rate:g}"
