"""What a list's address says: the search, the order, the page; and the chips and links that change it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from console import times
from jobs.core import query as core_query
from jobs.core.query import Query, QuerySyntaxError
from jobs.core.words import LetterState

# The windows of the top bar, as since: values.
WINDOWS = (("1h", "1 h"), ("6h", "6 h"), ("24h", "24 h"), ("7d", "7 d"), ("30d", "30 d"))
LINKED_QUALIFIERS = ("task", "queue", "reason", "error", "group")
_FIRST_ARGUMENT = re.compile(r"([A-Za-z_]\w{0,60})=")


@dataclass(frozen=True, slots=True)
class Chip:
    """One term before the search field; ``without`` is the address with it taken away."""

    qualifier: str
    value: str
    negated: bool
    without: str
    text: str


@dataclass(frozen=True, slots=True)
class Window:
    """One choice of the time window."""

    word: str
    href: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class SearchBox:
    """The search of a list as its page shows it.

    ``query`` is None when the text cannot be read; ``error`` says why and ``typed`` keeps the text.
    """

    path: str
    text: str
    typed: str
    query: Query | None
    error: str
    suggestion_href: str
    suggestion: str
    chips: list[Chip]
    windows: list[Window]
    kept: list[tuple[str, str]]

    def address(self, text: str, /, **extra: str) -> str:
        """Return the list's address with another search, on its first page."""
        return address(self.path, text, **{**dict(self.kept), **extra})


def address(path: str, text: str, /, **extra: str) -> str:
    """Return ``path`` with a search and what is not empty of ``extra``."""
    values = {"q": text, **extra}
    encoded = urlencode({name: value for name, value in values.items() if value}, errors="replace")
    return f"{path}?{encoded}" if encoded else path


def read(path: str, parameters: Mapping[str, str], *, kept: tuple[str, ...], now: datetime) -> SearchBox:
    """Read the search of an address; ``kept`` are the other parameters that its links keep."""
    text = parameters.get("q", "").strip()
    others = [(name, parameters[name]) for name in kept if parameters.get(name)]
    try:
        query = core_query.parse(text, now=now)
    except QuerySyntaxError as error:
        extra = dict(others)
        return SearchBox(
            path=path,
            text=text,
            typed=text,
            query=None,
            error=error.message,
            suggestion=error.suggestion,
            suggestion_href=address(path, error.suggestion, **extra) if error.suggestion else "",
            chips=[],
            windows=[],
            kept=others,
        )
    return SearchBox(
        path=path,
        text=query.text,
        typed=parameters.get("type", "")[:200],
        query=query,
        error="",
        suggestion="",
        suggestion_href="",
        chips=_chips(path, query, dict(others)),
        windows=_windows(path, query, dict(others), now),
        kept=others,
    )


def changed(parameters: Mapping[str, str], *, now: datetime) -> str | None:
    """Return the search with what was typed or brushed added to it; None when nothing was.

    Raises:
        QuerySyntaxError: when the search or the addition cannot be read; its suggestion is of the whole.
    """
    additions = [parameters[name].strip() for name in ("add",) if parameters.get(name, "").strip()]
    additions += [
        f"{name}:{parameters[name].strip()}"
        for name in ("since", "until")
        if parameters.get(name, "").strip()
    ]
    if not additions:
        return None
    text = parameters.get("q", "").strip()
    for addition in additions:
        query = core_query.parse(text, now=now)
        try:
            text = query.with_term(addition)
        except QuerySyntaxError:
            # Once more as a whole, so that the message counts its words and the suggestion is complete.
            return f"{query.text} {addition}".strip()
    return text


def _chips(path: str, query: Query, kept: dict[str, str]) -> list[Chip]:
    chips = []
    if not query.of("state"):
        # Said, because nobody would look for a resolved letter in a list that silently leaves it out.
        chips.append(
            Chip(
                "state",
                LetterState.DEAD.value,
                False,
                address(path, query.with_term("state:any"), **kept),
                "state:dead",
            )
        )
    for term in query.terms:
        value = ", ".join(term.values) if term.qualifier else f"“{term.values[0]}”"
        if term.qualifier in {"since", "until"}:
            value = _moment_words(query, term.qualifier, value)
        chips.append(
            Chip(
                term.qualifier,
                value,
                term.negated,
                address(path, query.without(term), **kept),
                term.canonical,
            )
        )
    return chips


def _moment_words(query: Query, qualifier: str, typed: str) -> str:
    moment = query.since if qualifier == "since" else query.until
    # What was typed in short stays; an ISO time is said like any other time.
    if moment is None or "T" not in typed:
        return typed
    return times.clock(moment, now=query.now, seconds=bool(moment.second))


def _windows(path: str, query: Query, kept: dict[str, str], now: datetime) -> list[Window]:
    since = query.of("since")
    until = query.of("until")
    current = since[0].values[0] if since and not until else ""
    without_times = " ".join(t.canonical for t in query.terms if t.qualifier not in {"since", "until"})
    windows = [
        Window(
            word,
            address(path, f"{without_times} since:{value}".strip(), **kept),
            current == value,
        )
        for value, word in WINDOWS
    ]
    windows.append(Window("All", address(path, without_times, **kept), not since and not until))
    if (since or until) and not any(window.is_current for window in windows):
        windows.append(Window(_window_words(query, now), address(path, query.text, **kept), True))
    return windows


def _window_words(query: Query, now: datetime) -> str:
    if query.since is not None and query.until is not None:
        return "–".join(times.clock_range(query.since, query.until, now=now))
    if query.since is not None:
        return f"{times.clock(query.since, now=now)}–now"
    return f"start–{times.clock(query.until, now=now)}" if query.until is not None else ""


def argument_qualifier(previews: list[str]) -> str:
    """Return the qualifier of an argument that the shown letters have: "args.order_id:"."""
    for preview in previews:
        if match := _FIRST_ARGUMENT.match(preview):
            return f"args.{match[1]}:"
    return ""
