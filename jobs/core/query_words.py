"""A search in a sentence, for the page that asks before something is sent or purged."""

from __future__ import annotations

from datetime import UTC, datetime

from jobs.core.query import Query, Term
from jobs.core.words import REASON_WORDS, LetterState, Reason


def describe(query: Query, *, now: datetime) -> str:
    """Say which letters ``query`` means; the year is named when it is not that of ``now``."""
    parts = [
        _letters(query.states),
        _died(query, now),
        _one("queue", query, "in the queue", "in any queue"),
        _one("task", query, "of the task", "of any task"),
        _one("reason", query, "for the reason", "for any reason"),
        _one("error", query, "with the error", ""),
        _one("group", query, "in the group", ""),
        _one("worker", query, "on the worker", ""),
        _one("id", query, "with the id", ""),
        *(_argument(term) for term in query.of("args.")),
        *(_free_text(term) for term in query.of("")),
    ]
    head, *rest = [part for part in parts if part]
    if query.since is not None or query.until is not None:
        head, rest = f"{head} {rest[0]}", rest[1:]
    return ", ".join([head, *rest])


def _letters(states: frozenset[LetterState]) -> str:
    if states == frozenset(LetterState):
        return "All letters in any state"
    if states == frozenset({LetterState.DEAD}):
        return "All dead letters"
    if not states:
        return "No letters, because the states contradict each other"
    return f"All {_either([state.value for state in LetterState if state in states])} letters"


def _died(query: Query, now: datetime) -> str:
    since, until = query.since, query.until
    if since is not None and until is not None:
        if since.date() == until.date():
            return f"that died between {_clock(since)} and {_clock(until)} UTC on {_day(since, now)}"
        return (
            f"that died between {_clock(since)} UTC on {_day(since, now)} "
            f"and {_clock(until)} UTC on {_day(until, now)}"
        )
    if since is not None:
        return f"that died since {_clock(since)} UTC on {_day(since, now)}"
    if until is not None:
        return f"that died before {_clock(until)} UTC on {_day(until, now)}"
    return "died at any time"


def _clock(moment: datetime) -> str:
    moment = moment.astimezone(UTC)
    return f"{moment:%H:%M:%S}" if moment.second or moment.microsecond else f"{moment:%H:%M}"


def _day(moment: datetime, now: datetime) -> str:
    moment = moment.astimezone(UTC)
    day = f"{moment.day} {moment:%b}"
    return day if moment.year == now.astimezone(UTC).year else f"{day} {moment.year}"


def _one(qualifier: str, query: Query, lead: str, otherwise: str) -> str:
    terms = query.of(qualifier)
    if not terms:
        return otherwise
    return " and ".join(_phrase(term, lead) for term in terms)


def _phrase(term: Term, lead: str) -> str:
    names = [_value(term.qualifier, value) for value in term.values]
    if not term.negated:
        return f"{lead} {_either(names)}"
    preposition, _, noun = lead.partition(" the ")
    return f"{preposition} any {noun} but {_either(names)}"


def _value(qualifier: str, value: str) -> str:
    if qualifier == "reason":
        return f"“{REASON_WORDS[Reason(value)]}”"
    if qualifier == "error" or not value or " " in value:
        return f"“{value}”"
    return value


def _argument(term: Term) -> str:
    name = term.qualifier.removeprefix("args.")
    return f"{'without' if term.negated else 'with'} {name} = {_either([_value('', v) for v in term.values])}"


def _free_text(term: Term) -> str:
    return f"{'without' if term.negated else 'with'} the text “{term.values[0]}”"


def _either(names: list[str]) -> str:
    if len(names) <= 1:
        return "".join(names)
    return f"{', '.join(names[:-1])} or {names[-1]}"
