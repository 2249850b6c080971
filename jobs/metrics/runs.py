"""Finished attempts that a search matches, one page at a time.

Records are kept for a day, capped and perhaps sampled: what they lack is told beside them, from the rollups.
Every page is a fixed number of queries. All but the ids are answered from the index ``run_newest`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connections
from django.db.models import F, Q, QuerySet, Value
from django.db.models.lookups import In

from jobs.core import cursors
from jobs.core.cursors import Key
from jobs.core.query import Pattern, Term, matches_pattern
from jobs.core.run_query import RunQuery
from jobs.errors import QueryError
from jobs.models import Run
from jobs.search.conditions import Like, Unindexed, like

# Nobody reads on past these; a count of a million takes as long as the page itself.
MOST_COUNTED = 10_000
# More distinct tasks than this are not looked up for a name.
_MOST_TASKS = 2_000
# Above every character that an id may have.
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class RunPage:
    """One page of attempts, newest first. ``total`` is at most MOST_COUNTED; ``has_more`` says that it is cut."""

    runs: list[Run]
    next_cursor: str | None
    previous_cursor: str | None
    total: int
    has_more: bool


def page(query: RunQuery, *, cursor: str | None = None, limit: int = 50) -> RunPage:
    """Return one page by keyset.

    Raises:
        QueryError: when the cursor was not made here.
    """
    matched = matching(query)
    backwards, key = (False, None) if cursor is None else _read_cursor(cursor)
    found = matched if key is None else matched.filter(_beyond(key, older=not backwards))
    order = ("finished_at", "id") if backwards else ("-finished_at", "-id")
    runs = list(found.order_by(*order)[: limit + 1])
    more = len(runs) > limit
    runs = runs[:limit]
    if backwards:
        runs.reverse()
    # One page that holds all needs no second look at a million entries for what is rare.
    is_all = key is None and not more
    total = len(runs) if is_all else matched.order_by()[: MOST_COUNTED + 1].count()
    return RunPage(
        runs=runs,
        next_cursor=cursors.write("after", _key(runs[-1])) if runs and (more or backwards) else None,
        previous_cursor=(
            cursors.write("before", _key(runs[0]))
            if runs and (more if backwards else key is not None)
            else None
        ),
        total=min(total, MOST_COUNTED),
        has_more=total > MOST_COUNTED,
    )


def newer_count(query: RunQuery, *, after: datetime, after_id: int) -> int:
    """Count what matches and is newer than a row, up to MOST_COUNTED."""
    newer = matching(query).filter(_beyond((after, after_id), older=False))
    return newer.order_by()[:MOST_COUNTED].count()


def oldest_at() -> datetime | None:
    """Return when the oldest attempt with a record finished."""
    return Run.objects.order_by("finished_at", "id").values_list("finished_at", flat=True).first()


@dataclass(frozen=True, slots=True)
class Scope:
    """What the rollups can count of a search: a span of whole minutes, one task or all, one queue or all."""

    start: datetime
    end: datetime
    task: str = ""
    queue: str = ""


def scope_of(query: RunQuery, *, kept: timedelta) -> Scope | None:
    """Return the scope of a search that has no other terms, without a time ``kept`` back; None of any other."""
    names: dict[str, str] = {}
    for term in query.terms:
        if term.qualifier in {"since", "until"}:
            continue
        is_name = term.qualifier in {"task", "queue"} and not term.negated and len(term.patterns) == 1
        if not is_name or term.qualifier in names:
            return None
        named = [term.values[0]] if len(term.patterns[0]) == 1 else []
        if term.qualifier == "task":
            named = [name for name in tasks() or [] if _names(term.patterns[0], name)]
        if len(named) != 1:
            return None
        names[term.qualifier] = named[0]
    start = query.since or query.now - kept
    end = min(query.until or query.now, query.now)
    whole_end = end.replace(second=0, microsecond=0)
    return Scope(
        start.replace(second=0, microsecond=0),
        whole_end if whole_end == end else whole_end + timedelta(minutes=1),
        task=names.get("task", ""),
        queue=names.get("queue", ""),
    )


def matching(query: RunQuery) -> QuerySet[Run]:
    """Return the attempts that match. A ``task:`` term looks the names up, one query."""
    found = Run.objects.all()
    if query.since is not None:
        found = found.filter(finished_at__gte=query.since)
    if query.until is not None:
        found = found.filter(finished_at__lt=query.until)
    for term in query.terms:
        if term.qualifier not in {"since", "until"}:
            condition = _condition(term)
            found = found.exclude(condition) if term.negated else found.filter(condition)
    return found


def tasks() -> list[str] | None:
    """Return the tasks that have an attempt with a record, one index seek each; None when too many."""
    table = Run._meta.db_table
    # A loose index scan: SELECT DISTINCT would read the whole index.
    sql = f"""
        WITH RECURSIVE seen(name, number) AS (
            SELECT min(task), 1 FROM {table}
            UNION ALL
            SELECT (SELECT min(task) FROM {table} WHERE task > seen.name), number + 1
            FROM seen WHERE seen.name IS NOT NULL AND number <= {_MOST_TASKS}
        )
        SELECT name FROM seen WHERE name IS NOT NULL
    """  # noqa: S608 - a table's name, ours
    with connections[Run.objects.db].cursor() as database:
        database.execute(sql)
        found = [row[0] for row in database.fetchall()]
    return None if len(found) > _MOST_TASKS else found


def of_id(column: str, text: str) -> Q:
    """Match ids that begin with ``text``, by an index on both databases."""
    if connections[Run.objects.db].vendor == "sqlite":
        # Its LIKE ignores case, so it cannot use an index of exact values.
        return Q(**{f"{column}__gte": text, f"{column}__lt": f"{text}{_LAST_CHARACTER}"})
    return Q(**{f"{column}__startswith": text})


def _condition(term: Term) -> Q:
    match term.qualifier:
        case "task":
            return _task_condition(term.patterns)
        case "outcome":
            return Q(outcome__in=term.values)
        case "queue" | "worker" as column:
            return _any(_whole(column, pattern) for pattern in term.patterns)
        case "error":
            return _any(
                Q(Like(F("error_type"), Value(f"%{like(pattern)}%"))) & ~Q(error_type="")
                for pattern in term.patterns
            )
        case _:
            return _ids([pattern[0] for pattern in term.patterns])


def _ids(texts: Iterable[str]) -> Q:
    """Match jobs, and what followed them; each by its index, whatever order the page has."""
    found = []
    for text in texts:
        found.append(Run.objects.filter(of_id("task_id", text)).order_by().values("pk"))
        # Written as the condition of the index is, so that both databases use it.
        followers = Run.objects.filter(~Q(root_id=F("task_id")), of_id("root_id", text))
        found.append(followers.order_by().values("pk"))
    # One set: with an OR of two, PostgreSQL would read all attempts.
    return Q(pk__in=found[0].union(*found[1:]))


def _task_condition(patterns: Iterable[Pattern]) -> Q:
    known = tasks()
    if known is None:
        return _any(
            _whole("task", each) | _whole("task", ("", f".{each[0]}", *each[1:])) for each in patterns
        )
    wanted = list(patterns)
    named = [name for name in known if any(_names(pattern, name) for pattern in wanted)]
    if len(named) == 1:
        return Q(task=named[0])
    # Of several tasks SQLite would sort all attempts; in the order of time it stops after a page.
    return Q(In(Unindexed("task"), named))


def _names(pattern: Pattern, name: str) -> bool:
    if matches_pattern(pattern, name):
        return True
    return any(pattern) and matches_pattern(("", f".{pattern[0]}", *pattern[1:]), name)


def _whole(column: str, pattern: Pattern) -> Q:
    if len(pattern) == 1:
        return Q(**{column: pattern[0]})
    return Q(Like(F(column), Value(like(pattern))))


def _any(conditions: Iterable[Q]) -> Q:
    united = Q()
    for condition in conditions:
        united |= condition
    return united


def _beyond(key: Key, *, older: bool) -> Q:
    """Match what comes after ``key`` in (finished_at, id); the first condition is the index range."""
    finished_at, pk = key
    if older:
        return Q(finished_at__lte=finished_at) & (Q(finished_at__lt=finished_at) | Q(pk__lt=pk))
    return Q(finished_at__gte=finished_at) & (Q(finished_at__gt=finished_at) | Q(pk__gt=pk))


def _key(run: Run) -> Key:
    return run.finished_at, run.pk


def _read_cursor(cursor: str) -> tuple[bool, Key]:
    try:
        return cursors.read(cursor)
    except ValueError as error:
        raise QueryError(str(error)) from None
