"""The time window of a page: in its address, and kept while moving between pages.

``?window=6h``, or ``?from=…&to=…`` for a range of one's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from console import times
from jobs.core import windows
from jobs.core.windows import Window

# How the windows are called: on their buttons, as a title, and after "the … before".
SHORT = {"1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 d", "30d": "30 d"}
_LONG = {"1h": "hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days", "30d": "30 days"}
_PARAMETERS = ("window", "from", "to")
# Not kept when another window is chosen: a page of a list within the old one.
_LEFT_BEHIND = (*_PARAMETERS, "after", "before", "page")


@dataclass(frozen=True, slots=True)
class Choice:
    """A window that a page offers, and where it leads."""

    word: str
    href: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class PageWindow:
    """The window of a request; ``query`` is what a link to another page adds to keep it, "" for the usual one.

    ``problem`` says why a range of one's own could not be read; then the window is the usual one.
    ``kept`` are the page's other parameters, which a choice of another window keeps.
    """

    window: Window
    query: str = ""
    problem: str = ""
    kept: tuple[tuple[str, str], ...] = ()
    now: datetime | None = None
    # What was typed as a range of one's own, also when it could not be read.
    typed_from: str = ""
    typed_to: str = ""

    @property
    def choices(self) -> list[Choice]:
        """The named windows; the usual one has no parameter."""
        found = []
        for name, word in SHORT.items():
            more = () if name == windows.DEFAULT else (("window", name),)
            found.append(Choice(word, f"?{urlencode((*self.kept, *more))}", name == self.window.name))
        return found

    @property
    def is_custom(self) -> bool:
        """Whether it is a range of one's own."""
        return not self.window.name

    @property
    def word(self) -> str:
        """Say it on a button: "6 h", or "02:10–03:20" for a range of one's own."""
        return SHORT.get(self.window.name) or self.range_words

    @property
    def title(self) -> str:
        """Say it as a title: "Last hour", "Last 7 days", "02:10–03:20"."""
        long = _LONG.get(self.window.name)
        return f"Last {long}" if long else self.range_words

    @property
    def before_words(self) -> str:
        """Say what it is compared with: "the hour before", "the 70 min before"."""
        return f"the {self.length_words} before"

    @property
    def length_words(self) -> str:
        """Say how long it is: "hour", "7 days", "70 min"."""
        return _LONG.get(self.window.name) or times.span(self.window.length.total_seconds())

    @property
    def range_words(self) -> str:
        """Say from when to when it goes, in UTC."""
        now = self.now or self.window.end
        return "–".join(times.clock_range(self.window.start, min(self.window.end, now), now=now))

    @property
    def before_range_words(self) -> str:
        """Say from when to when the window before goes, in UTC."""
        before = self.window.before()
        return "–".join(times.clock_range(before.start, before.end, now=self.now or self.window.end))

    @property
    def is_past(self) -> bool:
        """Whether it has ended, so that nothing in it changes any more."""
        return self.now is not None and self.window.end < self.now - timedelta(minutes=5)

    @property
    def field_from(self) -> str:
        """What stands in the field "From" of the form, in UTC."""
        return self.typed_from or _field(self.window.start)

    @property
    def field_to(self) -> str:
        """What stands in the field "To" of the form, in UTC."""
        end = self.window.end
        return self.typed_to or _field(min(end, self.now) if self.now is not None else end)


def of(request: HttpRequest, *, now: datetime | None = None) -> PageWindow:
    """Read the window of a request."""
    now = timezone.now() if now is None else now
    kept = tuple((key, str(text)) for key, text in request.GET.items() if key not in _LEFT_BEHIND)
    start, end = request.GET.get("from", "").strip(), request.GET.get("to", "").strip()
    if start or end:
        return _between(start, end, kept=kept, now=now)
    name = request.GET.get("window", "")
    usual = windows.named(windows.DEFAULT, now=now)
    if name and name not in windows.NAMED:
        known = ", ".join(windows.NAMED)
        problem = f"The window {name[:40]!r} is not known. Use one of {known}."
        return PageWindow(usual, problem=problem, kept=kept, now=now)
    if not name or name == windows.DEFAULT:
        return PageWindow(usual, kept=kept, now=now)
    return PageWindow(windows.named(name, now=now), query=urlencode({"window": name}), kept=kept, now=now)


def _between(start: str, end: str, *, kept: tuple[tuple[str, str], ...], now: datetime) -> PageWindow:
    try:
        # Without an end it is everything since, as far as it has come.
        until = _moment(end) if end else now
        begin = _moment(start) if start else until - timedelta(hours=1)
        found = windows.between(begin, until, now=now)
    except ValueError as error:
        usual = windows.named(windows.DEFAULT, now=now)
        return PageWindow(
            usual, problem=str(error), kept=kept, now=now, typed_from=start[:40], typed_to=end[:40]
        )
    except OverflowError:
        usual = windows.named(windows.DEFAULT, now=now)
        return PageWindow(usual, problem="The range lies outside of the calendar.", kept=kept, now=now)
    query = urlencode({"from": _text(found.start), "to": _text(found.end)})
    return PageWindow(found, query=query, kept=kept, now=now)


def _moment(text: str) -> datetime:
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"The time {text[:40]!r} cannot be read. Write it as 2026-11-12T02:41Z.")
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _field(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M}"


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
