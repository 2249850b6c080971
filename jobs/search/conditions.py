"""A search that was read → conditions on the table of dead letters."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from django.db import connections
from django.db.models import BooleanField, CharField, F, Func, Q, QuerySet, Value
from django.db.models.lookups import In

from jobs.core import job_ids
from jobs.core.query import Pattern, Query, Term, matches_pattern, pattern_regex
from jobs.core.words import LetterState
from jobs.models import DeadLetter, OperationItem

# More distinct names than this are not looked up for a pattern: it is then matched row by row.
MAX_DISTINCT_NAMES = 2_000


class Like(Func):
    """A pattern match that ignores case on both databases (SQLite: of ASCII letters)."""

    output_field = BooleanField()
    template = "%(expressions)s ESCAPE '\\'"
    arg_joiner = " LIKE "

    def as_postgresql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, arg_joiner=" ILIKE ", **context)


class Unindexed(Func):
    """A column that SQLite shall not look up by its index.

    It has no statistics, and takes the index on the task for any number of tasks: a look-up of a
    row for every letter, instead of a walk over the index that holds all that is counted.
    """

    template = "%(expressions)s"

    def __init__(self, column: str) -> None:
        super().__init__(F(column), output_field=CharField())

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="+%(expressions)s", **context)


def letters(query: Query) -> QuerySet[DeadLetter]:
    """Return the letters that match, newest first. Looks names up when a pattern needs it."""
    return matching(query, states=query.states)


def matching(
    query: Query,
    *,
    states: Iterable[LetterState],
    with_time: bool = True,
    terms: Q | None = None,
) -> QuerySet[DeadLetter]:
    """Return what matches in other states than the search's, or at any time.

    ``terms`` is what ``conditions`` returned for the search, to look its names up once only.
    """
    found = DeadLetter.objects.all()
    wanted = sorted(frozenset(states))
    # Named even when it is all of them: every index begins with the state.
    found = found.filter(state=wanted[0]) if len(wanted) == 1 else found.filter(state__in=wanted)
    if with_time and query.since is not None:
        found = found.filter(died_at__gte=query.since)
    if with_time and query.until is not None:
        found = found.filter(died_at__lt=query.until)
    return found.filter(conditions(query) if terms is None else terms)


def conditions(query: Query) -> Q:
    """Return what the terms but for state and time mean. Looks names up when a pattern needs it."""
    united = Q()
    for term in query.terms:
        if term.qualifier not in {"since", "until", "state"}:
            condition = _condition(term)
            united &= ~condition if term.negated else condition
    return united


def names(column: str) -> list[str] | None:
    """Return the distinct values of ``task`` or ``queue``, one index seek each; None when too many."""
    table = DeadLetter._meta.db_table
    if column not in {"task", "queue"}:
        raise ValueError(f"no index lists the values of {column!r}")
    # A loose index scan: SELECT DISTINCT would read the whole index.
    sql = f"""
        WITH RECURSIVE seen(name, number) AS (
            SELECT min({column}), 1 FROM {table}
            UNION ALL
            SELECT (SELECT min({column}) FROM {table} WHERE {column} > seen.name), number + 1
            FROM seen WHERE seen.name IS NOT NULL AND number <= {MAX_DISTINCT_NAMES}
        )
        SELECT name FROM seen WHERE name IS NOT NULL
    """  # noqa: S608 - a table's and a column's name, both ours
    with connections[DeadLetter.objects.db].cursor() as database:
        database.execute(sql)
        found = [row[0] for row in database.fetchall()]
    return None if len(found) > MAX_DISTINCT_NAMES else found


def _condition(term: Term) -> Q:
    if term.qualifier in {"task", "queue"}:
        return _name_condition(term)
    if term.qualifier == "reason":
        return Q(reason__in=term.values)
    if term.qualifier == "error":
        return _any(
            _contains(column, pattern) for pattern in term.patterns for column in ("error_type", "error")
        )
    if term.qualifier == "group":
        return _any(
            Q(group_id=int(value)) if len(value) < 10 else Q(group__fingerprint__startswith=value)
            for value in term.values
        )
    if term.qualifier == "worker":
        return _any(_full_match("worker", pattern) for pattern in term.patterns)
    if term.qualifier == "id":
        return _any(_id_condition(value) for value in term.values)
    if term.qualifier.startswith("args."):
        return _any(_argument(term.qualifier.removeprefix("args."), pattern) for pattern in term.patterns)
    columns = ("error", "error_type", "task", "arguments_text")
    return _any(_contains(column, term.patterns[0]) for column in columns)


def _any(conditions: Iterable[Q]) -> Q:
    united = Q()
    for condition in conditions:
        united |= condition
    return united


def _name_condition(term: Term) -> Q:
    """Match whole names; of a task also the part after a dot, and either with wildcards."""
    column = term.qualifier
    shortens = column == "task"
    if not shortens and all(len(pattern) == 1 for pattern in term.patterns):
        return Q(**{f"{column}__in": term.values})
    known = names(column)
    if known is None:
        return _any(_full_match(column, pattern, after="." if shortens else "") for pattern in term.patterns)
    matched = [
        name for name in known if any(_names(pattern, name, shortens=shortens) for pattern in term.patterns)
    ]
    if len(matched) == 1:
        return Q(**{column: matched[0]})
    return Q(In(Unindexed(column), matched))


def _names(pattern: Pattern, name: str, *, shortens: bool) -> bool:
    if matches_pattern(pattern, name):
        return True
    if not shortens or not any(pattern):
        return False
    # ("send_receipt",) → anything that ends in ".send_receipt".
    return matches_pattern(("", f".{pattern[0]}", *pattern[1:]), name)


def _full_match(column: str, pattern: Pattern, *, after: str = "") -> Q:
    if len(pattern) == 1 and not after:
        return Q(**{column: pattern[0]})
    lead = rf"(.*\{after})?" if after else ""
    return Q(**{f"{column}__regex": f"^{lead}{_regex(pattern)}$"})


def _regex(pattern: Pattern) -> str:
    return pattern_regex(pattern, is_atomic=connections[DeadLetter.objects.db].vendor != "postgresql")


def _contains(column: str, pattern: Pattern) -> Q:
    return Q(Like(F(column), Value(f"%{like(pattern)}%")))


def like(pattern: Pattern) -> str:
    escaped = (piece.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for piece in pattern)
    return "%".join(escaped)


def _argument(path: str, pattern: Pattern) -> Q:
    """Match one "\\npath=value\\n" line; LIKE finds the row, the expression keeps it on one line."""
    line: Pattern = (f"\n{path}={pattern[0]}", *pattern[1:])
    line = (*line[:-1], f"{line[-1]}\n")
    condition = Q(Like(F("arguments_text"), Value(f"%{like(line)}%")))
    if len(line) > 1:
        condition &= Q(arguments_text__iregex=_regex(line))
    return condition


def _id_condition(value: str) -> Q:
    bounds = uuid_bounds(value)
    by_job = Q(task_id=value) | Q(pk__in=letters_of_job(value))
    return by_job if bounds is None else by_job | Q(uuid__range=bounds)


def letters_of_job(task_id: str) -> QuerySet[Any, Any]:
    """Return the id of the letter that the job with this id replayed, if one did."""
    item = OperationItem.objects.filter(pk=job_ids.item_id(task_id) or 0, task_id=task_id)
    return item.values("letter")


def uuid_bounds(text: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    """Return the first and the last id that begin with ``text``; None when none can."""
    digits = text.replace("-", "").lower()
    if not 4 <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        return None
    return uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f"))
