"""Letters one page at a time, one by its id, and what lies around it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from django.db.models import Q

from jobs.core import cursors
from jobs.core.cursors import Key
from jobs.core.query import Query
from jobs.errors import QueryError
from jobs.models import DeadLetter
from jobs.search.conditions import conditions, letters, letters_of_job, matching, uuid_bounds

ORDERS = ("-died", "died")
# Columns that no list shows and that can make a row ten times as big.
HEAVY_COLUMNS = ("arguments_text",)
SIBLINGS_SHOWN = 50
# Of one job there are rarely two letters; of more than this the second job is not looked for.
_LETTERS_OF_JOBS = 50


class CursorError(QueryError):
    """A page's cursor that was not written here."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """One page of letters. ``first_number`` is 1 for the first of all; 0 when there is none."""

    letters: list[DeadLetter]
    next_cursor: str | None
    previous_cursor: str | None
    first_number: int
    total: int

    @property
    def last_number(self) -> int:
        """The number of the last letter on this page."""
        return self.first_number + len(self.letters) - 1 if self.letters else 0


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The letters before and after one in a search's list, newest first, and its number there."""

    newer: DeadLetter | None
    older: DeadLetter | None
    number: int
    total: int


def count(query: Query) -> int:
    """Count the letters that match, exactly."""
    return letters(query).count()


def page(query: Query, *, cursor: str | None = None, limit: int = 50, order: str = "-died") -> LetterPage:
    """Return one page by keyset; the rows lack HEAVY_COLUMNS and have their group.

    Raises:
        CursorError: when the cursor was not made here.
        ValueError: when the order is not one of ORDERS.
    """
    if order not in ORDERS:
        raise ValueError(f"letters are not ordered by {order!r}; use one of {', '.join(ORDERS)}")
    newest_first = order == "-died"
    terms = conditions(query)
    matched = matching(query, states=query.states, terms=terms)
    backwards, key = False, None
    if cursor is not None:
        backwards, key = _read_cursor(cursor)
    rows = _take(query, terms, key=key, descending=newest_first != backwards, limit=limit + 1)
    more = len(rows) > limit
    rows = rows[:limit]
    if backwards:
        rows.reverse()
    total = matched.count()
    before = 0
    if rows and key is not None:
        before = matched.filter(_beyond(_key(rows[0]), descending=not newest_first)).count()
    has_previous = before > 0
    has_next = bool(rows) and (more if not backwards else True)
    return LetterPage(
        letters=rows,
        next_cursor=cursors.write("after", _key(rows[-1])) if has_next else None,
        previous_cursor=cursors.write("before", _key(rows[0])) if has_previous else None,
        first_number=before + 1 if rows else 0,
        total=total,
    )


def find(text: str) -> DeadLetter | None:
    """Return the letter with this id, the newest of this job, or the only one whose id or job's id begins so.

    The job may be one that replayed the letter: what a worker's log names.
    """
    text = text.strip()
    if not text or len(text) > 255 or "\x00" in text:
        return None
    by_job = DeadLetter.objects.filter(task_id=text).first()
    if by_job is None:
        by_job = DeadLetter.objects.filter(pk__in=letters_of_job(text)).first()
    if by_job is not None:
        return by_job
    bounds = uuid_bounds(text)
    if bounds is None:
        return None
    found = list(DeadLetter.objects.filter(uuid__range=bounds)[:2]) or _of_jobs(bounds)
    return found[0] if len(found) == 1 else None


def _of_jobs(bounds: tuple[uuid.UUID, uuid.UUID]) -> list[DeadLetter]:
    """Return the letters, two at most, of the newest jobs whose ids lie in these bounds.

    A range, and not LIKE: ids of one shape have the same order in every collation, and the index is used.
    """
    first, last = map(str, bounds)
    rows = DeadLetter.objects.filter(task_id__range=(first, last)).order_by("task_id", "-died_at")
    of_job: dict[str, DeadLetter] = {}
    for letter in rows[:_LETTERS_OF_JOBS]:
        of_job.setdefault(letter.task_id, letter)
    return list(of_job.values())[:2]


def neighbours(letter: DeadLetter, query: Query) -> Neighbours:
    """Return the newer and the older letter in the search's list, and where this one stands in it."""
    key = _key(letter)
    terms = conditions(query)
    newer = _take(query, terms, key=key, descending=False, limit=1)
    older = _take(query, terms, key=key, descending=True, limit=1)
    matched = matching(query, states=query.states, terms=terms)
    return Neighbours(
        newer=newer[0] if newer else None,
        older=older[0] if older else None,
        number=matched.filter(_beyond(key, descending=False)).count() + 1,
        total=matched.count(),
    )


def siblings(letter: DeadLetter) -> list[DeadLetter]:
    """Return the other letters of the same root, oldest first, at most SIBLINGS_SHOWN."""
    if not letter.root_id:
        return []
    found = DeadLetter.objects.filter(root_id=letter.root_id).exclude(pk=letter.pk)
    return list(found.order_by("died_at", "id").defer(*HEAVY_COLUMNS)[:SIBLINGS_SHOWN])


def _key(letter: DeadLetter) -> Key:
    return letter.died_at, letter.pk


def _beyond(key: Key, *, descending: bool) -> Q:
    """Match what comes after ``key`` in (died_at, id); the first condition is the index range."""
    died_at, pk = key
    if descending:
        return Q(died_at__lte=died_at) & (Q(died_at__lt=died_at) | Q(pk__lt=pk))
    return Q(died_at__gte=died_at) & (Q(died_at__gt=died_at) | Q(pk__gt=pk))


def _take(query: Query, terms: Q, *, key: Key | None, descending: bool, limit: int) -> list[DeadLetter]:
    """Take the next letters, from each state in turn and merged.

    The index begins with the state, so that an ordered read over several states at once would
    sort all of their letters.
    """
    rows: list[DeadLetter] = []
    ordering = ("-died_at", "-id") if descending else ("died_at", "id")
    for state in sorted(query.states):
        found = matching(query, states=(state,), terms=terms).select_related("group").defer(*HEAVY_COLUMNS)
        if key is not None:
            found = found.filter(_beyond(key, descending=descending))
        rows += found.order_by(*ordering)[:limit]
    rows.sort(key=_key, reverse=descending)
    return rows[:limit]


def _read_cursor(cursor: str) -> tuple[bool, Key]:
    try:
        return cursors.read(cursor)
    except ValueError as error:
        raise CursorError(str(error)) from None
