"""The time window of a page: in its address, and kept while moving between pages.

``?window=6h``, or ``?from=…&to=…`` for a range of one's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from jobs.core import windows
from jobs.core.windows import Window


@dataclass(frozen=True, slots=True)
class PageWindow:
    """The window of a request; ``query`` is what a link to another page adds to keep it, "" for the usual one.

    ``problem`` says why a range of one's own could not be read; then the window is the usual one.
    """

    window: Window
    query: str = ""
    problem: str = ""


def of(request: HttpRequest, *, now: datetime | None = None) -> PageWindow:
    """Read the window of a request."""
    now = timezone.now() if now is None else now
    usual = windows.named(windows.DEFAULT, now=now)
    start, end = request.GET.get("from", ""), request.GET.get("to", "")
    if start or end:
        try:
            found = windows.between(_moment(start), _moment(end), now=now)
        except ValueError as error:
            return PageWindow(usual, problem=str(error))
        return PageWindow(found, query=urlencode({"from": _text(found.start), "to": _text(found.end)}))
    name = request.GET.get("window", "")
    if name and name not in windows.NAMED:
        known = ", ".join(windows.NAMED)
        return PageWindow(usual, problem=f"The window {name[:40]!r} is not known. Use one of {known}.")
    if not name or name == windows.DEFAULT:
        return PageWindow(usual)
    return PageWindow(windows.named(name, now=now), query=urlencode({"window": name}))


def _moment(text: str) -> datetime:
    found = parse_datetime(text.strip())
    if found is None:
        raise ValueError(f"The time {text[:40]!r} cannot be read. Write it as 2026-11-12T02:41Z.")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
