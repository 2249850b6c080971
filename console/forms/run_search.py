"""The search of the list of jobs: what its address says, and the chips and links that change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from console import times
from console.forms.search import Chip, Window, address
from console.states import RUN_MARKS
from console.windows import PageWindow
from jobs.core import run_query, windows
from jobs.core.query import QuerySyntaxError, Term, iso
from jobs.core.run_query import RunQuery
from jobs.core.words import RunOutcome

# Records are kept for a day.
WINDOWS = (("15m", "15 min"), ("1h", "1 h"), ("6h", "6 h"), ("24h", "24 h"))
LINKED_QUALIFIERS = ("task", "queue", "outcome", "worker", "error")


@dataclass(frozen=True, slots=True)
class RunSearchBox:
    """The search as its page shows it; ``windows`` and ``outcomes`` are its choices of time and outcome.

    ``query`` is None when the text cannot be read; ``error`` says why and ``typed`` keeps the text.
    """

    path: str
    text: str
    typed: str
    query: RunQuery | None
    error: str = ""
    suggestion: str = ""
    suggestion_href: str = ""
    chips: tuple[Chip, ...] = ()
    windows: tuple[Window, ...] = ()
    outcomes: tuple[Window, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()

    def address(self, text: str, /, **extra: str) -> str:
        """Return the list's address with another search, on its first page."""
        return address(self.path, text, **extra)


def read(path: str, parameters: Mapping[str, str], *, now: datetime) -> RunSearchBox:
    """Read the search of an address."""
    text = parameters.get("q", "").strip()
    try:
        query = run_query.parse(text, now=now)
    except QuerySyntaxError as error:
        return RunSearchBox(
            path=path,
            text=text,
            typed=text,
            query=None,
            error=error.message,
            suggestion=error.suggestion,
            suggestion_href=address(path, error.suggestion) if error.suggestion else "",
        )
    return RunSearchBox(
        path=path,
        text=query.text,
        typed=parameters.get("type", "")[:200],
        query=query,
        chips=tuple(_chip(path, query, term) for term in query.terms),
        windows=_windows(path, query),
        outcomes=_outcomes(path, query),
    )


def changed(parameters: Mapping[str, str], window: PageWindow, *, now: datetime) -> str | None:
    """Return the search with what was typed, and the time window that a link brought; None when neither was.

    Raises:
        QuerySyntaxError: when the search or the addition cannot be read; its suggestion is of the whole.
    """
    text, addition = parameters.get("q", "").strip(), parameters.get("add", "").strip()
    if window.query:
        query = run_query.parse(text, now=now)
        if query.since is None and query.until is None:
            return query.with_term(_window_terms(window))
    if not addition:
        return None
    query = run_query.parse(text, now=now)
    try:
        return query.with_term(addition)
    except QuerySyntaxError:
        # Once more as a whole, so that the message counts its words and the suggestion is complete.
        return f"{query.text} {addition}".strip()


def window_query(query: RunQuery) -> str:
    """Return what links to other pages add to keep the time that is looked at."""
    since = next((term.values[0] for term in query.terms if term.qualifier == "since"), "")
    if query.until is None:
        return urlencode({"window": since}) if since in windows.NAMED and since != windows.DEFAULT else ""
    if query.since is None:
        return ""
    return urlencode({"from": iso(query.since), "to": iso(query.until)})


def _window_terms(window: PageWindow) -> str:
    if window.window.name:
        return f"since:{window.window.name}"
    return f"since:{iso(window.window.start)} until:{iso(window.window.end)}"


def _chip(path: str, query: RunQuery, term: Term) -> Chip:
    value = ", ".join(term.values) if term.qualifier else f"“{term.values[0]}”"
    moment = {"since": query.since, "until": query.until}.get(term.qualifier)
    # What was typed in short stays; an ISO time is said like any other time.
    if moment is not None and "T" in value:
        value = times.clock(moment, now=query.now, seconds=bool(moment.second))
    return Chip(term.qualifier, value, term.negated, address(path, query.without(term)), term.canonical)


def _windows(path: str, query: RunQuery) -> tuple[Window, ...]:
    since = [term.values[0] for term in query.terms if term.qualifier == "since"]
    current = since[0] if since and query.until is None else ""
    rest = " ".join(t.canonical for t in query.terms if t.qualifier not in {"since", "until"})
    windows = [
        Window(word, address(path, f"{rest} since:{value}".strip()), current == value)
        for value, word in WINDOWS
    ]
    is_any = query.since is None and query.until is None
    windows.append(Window("All kept", address(path, rest), is_any))
    if not any(each.is_current for each in windows):
        windows.append(Window(_words(query), address(path, query.text), True))
    return tuple(windows)


def _outcomes(path: str, query: RunQuery) -> tuple[Window, ...]:
    """Return the list with each outcome alone, and with all."""
    named = [term for term in query.terms if term.qualifier == "outcome"]
    rest = " ".join(t.canonical for t in query.terms if t.qualifier != "outcome")
    found = [Window("All", address(path, rest), not named)]
    for outcome in RunOutcome:
        is_current = len(named) == 1 and named[0].values == (outcome.value,) and not named[0].negated
        href = address(path, f"{rest} outcome:{outcome.value}".strip())
        found.append(Window(RUN_MARKS[outcome].word, href, is_current))
    return tuple(found)


def _words(query: RunQuery) -> str:
    if query.since is not None and query.until is not None:
        return "–".join(times.clock_range(query.since, query.until, now=query.now))
    if query.since is not None:
        return f"{times.clock(query.since, now=query.now)}–now"
    return f"start–{times.clock(query.until, now=query.now)}" if query.until is not None else ""
