"""The search language of finished attempts: ``task:send_receipt outcome:dead -queue:low since:2h 7c1f9a2e``.

Written and read as the searches of dead letters are, with other qualifiers. Free text is an id: of the
job, or of the root that it came from, or the beginning of one.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from datetime import datetime

from jobs.core.query import Language, Search, Term, Word, expand, quote, read_search
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery(Search):
    """A search for finished attempts."""

    def with_term(self, text: str) -> str:
        """Return the search with the terms in ``text`` as well; since and until are replaced.

        Raises:
            QuerySyntaxError: when ``text`` cannot be read.
        """
        return self._with(parse(text, now=self.now).terms)


def parse(text: str, *, now: datetime) -> RunQuery:
    """Read a search.

    Raises:
        QuerySyntaxError: naming the word, where it is, and what was probably meant.
    """
    search = read_search(text, language=_RUNS, now=now)
    return RunQuery(terms=search.terms, now=now, since=search.since, until=search.until)


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


_RUNS = Language(
    qualifier=_known,
    example=lambda qualifier: QUALIFIERS[qualifier][1],
    check=_checked,
    advice="Take some away.",
)
