"""The search language of finished attempts: ``task:send_receipt outcome:dead -queue:low since:2h 7c1f9a2e``.

Written and read as the searches of dead letters are, with other qualifiers. Free text is an id: of the
job, or of the root that it came from, or the beginning of one.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import datetime

from jobs.core.cleaning import clean_name
from jobs.core.query import (
    MAX_LENGTH,
    MAX_TERMS,
    MAX_VALUES,
    QuerySyntaxError,
    Term,
    Word,
    expand,
    patterns_of,
    quote,
    read_moments,
    refuse_repeated,
    split,
)
from jobs.core.words import RunOutcome

# What each qualifier means, with an example value.
QUALIFIERS: dict[str, tuple[str, str]] = {
    "task": ("the task's name, or its last part", "send_receipt"),
    "queue": ("the queue it was taken from", "critical"),
    "outcome": ("done, retried, dead, revoked or ignored", "dead"),
    "worker": ("the worker that ran it", "celery@web-1"),
    "error": ("a part of the error's type", "ConnectionRefusedError"),
    "since": ("finished at or after this time", "2h"),
    "until": ("finished before this time", "03:12"),
    "id": ("the job's id, its root's, or the beginning of one", "7c1f9a2e"),
}
LEAST_ID_LENGTH = 4
_QUALIFIER = re.compile(r"([A-Za-z_][\w.\-]*):")
_TIMES = frozenset({"since", "until"})


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A search that was read. ``since`` is included, ``until`` is not."""

    terms: tuple[Term, ...]
    now: datetime
    since: datetime | None = None
    until: datetime | None = None

    @property
    def text(self) -> str:
        """The search written the one way that parses back to it at the same moment."""
        return " ".join(term.canonical for term in self.terms)

    def without(self, term: Term) -> str:
        """Return the search without ``term``."""
        return " ".join(t.canonical for t in self.terms if t.canonical != term.canonical)

    def with_term(self, text: str) -> str:
        """Return the search with the terms in ``text`` as well; since and until are replaced.

        Raises:
            QuerySyntaxError: when ``text`` cannot be read.
        """
        added = parse(text, now=self.now).terms
        replaced = {term.qualifier for term in added} & _TIMES
        known = {term.canonical for term in added}
        kept = [t for t in self.terms if t.qualifier not in replaced and t.canonical not in known]
        return " ".join(term.canonical for term in (*kept, *added))


def parse(text: str, *, now: datetime) -> RunQuery:
    """Read a search.

    Raises:
        QuerySyntaxError: naming the word, where it is, and what was probably meant.
    """
    if len(text) > MAX_LENGTH:
        raise QuerySyntaxError(
            f"The search has {len(text):,} characters, at most {MAX_LENGTH:,} are read. Use fewer words."
        )
    # Stored names were cleaned in the same way, so a pasted one still matches.
    text = "".join(" " if c in "\t\n\v\f\r" else clean_name(c) for c in text)
    words = list(split(text))
    if len(words) > MAX_TERMS:
        raise QuerySyntaxError(
            f"The search has {len(words)} words, at most {MAX_TERMS} are read. Take some away."
        )
    terms = tuple(_read_term(word, text) for word in words)
    refuse_repeated(terms, words, text)
    since, until = read_moments(terms, words, text, now)
    return RunQuery(terms=terms, now=now, since=since, until=until)


def _read_term(word: Word, whole: str) -> Term:
    negated = len(word.text) > 1 and word.text.startswith("-")
    rest = word.text[1:] if negated else word.text
    match = _QUALIFIER.match(rest)
    if match is None:
        pattern = next(iter(patterns_of(rest, separated=False)))
        return _checked(Term("", ("*".join(pattern),), negated, word.text, (pattern,)), word, whole)
    value = rest[match.end() :]
    qualifier = _known(match[1], value, word, negated, whole)
    if not value:
        raise word.error(
            f"`{qualifier}:` needs a value right after the colon, for instance "
            f"{qualifier}:{QUALIFIERS[qualifier][1]}.",
            whole=whole,
        )
    patterns = tuple(patterns_of(value, separated=True))
    if len(patterns) > MAX_VALUES:
        raise word.error(
            f"`{qualifier}:` has {len(patterns)} values, at most {MAX_VALUES} are read.", whole=whole
        )
    values = tuple("*".join(pattern) for pattern in patterns)
    return _checked(Term(qualifier, values, negated, word.text, patterns), word, whole)


def _known(name: str, value: str, word: Word, negated: bool, whole: str) -> str:
    lowered = name.lower()
    if lowered in QUALIFIERS:
        return lowered
    sign = "-" if negated else ""
    if close := difflib.get_close_matches(lowered, QUALIFIERS, n=1, cutoff=0.6):
        raise word.error(
            f"`{name}:` is not a qualifier. Did you mean `{close[0]}:`?",
            whole=whole,
            instead=f"{sign}{close[0]}:{value}",
        )
    known = ", ".join(QUALIFIERS)
    if lowered in {"reason", "group", "state", "args"} or lowered.startswith("args."):
        raise word.error(
            f"`{name}:` is asked of dead letters, not of finished attempts. Qualifiers here are {known}.",
            whole=whole,
            instead="",
        )
    literal = quote(f"{name}:{value}", starts_term=True)
    raise word.error(
        f"`{name}:` is not a qualifier. Qualifiers are {known}. "
        f"To search for a job with this id, put it in quotes: {literal}",
        whole=whole,
        instead=f"{sign}{literal}",
    )


def _checked(term: Term, word: Word, whole: str) -> Term:
    """Refuse values that the qualifier cannot have; expand wildcards over closed lists."""
    if term.qualifier in _TIMES:
        if term.negated:
            other = "until" if term.qualifier == "since" else "since"
            raise word.error(
                f"`-{term.qualifier}:` cannot be: use `{other}:` for the other side.",
                whole=whole,
                instead=f"{other}:{term.text.partition(':')[2]}",
            )
        if len(term.values) > 1:
            raise word.error(f"`{term.qualifier}:` takes one time, not {len(term.values)}.", whole=whole)
    if term.qualifier == "outcome":
        return expand(term, [each.value for each in RunOutcome], word, whole)
    if term.qualifier in {"", "id"}:
        for pattern in term.patterns:
            typed = "*".join(pattern)
            if len(pattern) > 1 or len(typed) < LEAST_ID_LENGTH:
                instead = f"task:{typed}" if typed.strip("*") and not term.qualifier else None
                raise word.error(
                    f"`{typed}` must be a job's id or at least its first {LEAST_ID_LENGTH} characters, "
                    "without `*`. For a name write task:, queue: or worker: before it.",
                    whole=whole,
                    instead=instead,
                )
    return term
