"""Cells of the agents → rollups: added up by minute, hour and day in four scopes, and merged into the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

from django.db import connection

from jobs.agent.batches import Cell
from jobs.core import histograms
from jobs.core.cleaning import clean_name
from jobs.core.histograms import Histogram
from jobs.core.windows import KEPT, LENGTHS
from jobs.core.words import RollupLevel, RollupScope
from jobs.metrics.figures import COUNTS
from jobs.models import Rollup

# A worker's clock that is further ahead is wrong.
CLOCK_TOLERANCE_SECONDS = 300
# Of which a day tells apart. Names that somebody makes up, one for each job, would fill the disk for two years.
MOST_TASKS = MOST_QUEUES = 5_000
# PostgreSQL plans and binds longer statements slower, SQLite takes 32,766 values.
ROWS_A_STATEMENT = 1_000

_SECONDS = {level: round(length.total_seconds()) for level, length in LENGTHS.items()}
_counts_of = attrgetter(*COUNTS)
_KEY = ("level", "scope", "starts_at", "task", "queue")
_TABLE = Rollup._meta.db_table
_FIELDS = Rollup._meta.concrete_fields
_COLUMNS = (*_KEY, *COUNTS, "latency_sum_seconds", "runtime_sum_seconds", "latency", "runtime")


@dataclass(slots=True)
class Sums:
    """What one rollup gets: ``counts`` in the order of COUNTS."""

    counts: list[int]
    latency_sum: float
    runtime_sum: float
    latency: Histogram
    runtime: Histogram


def _sum_of_cells(cells: Sequence[Cell]) -> Sums:
    return Sums(
        [sum(column) for column in zip(*map(_counts_of, cells), strict=True)],
        sum(cell.latency_sum for cell in cells),
        sum(cell.runtime_sum for cell in cells),
        histograms.merge(cell.latency for cell in cells),
        histograms.merge(cell.runtime for cell in cells),
    )


def _sum(parts: Sequence[Sums]) -> Sums:
    """Return what the parts come to: of one it is that part itself, which nobody changes."""
    if len(parts) == 1:
        return parts[0]
    return Sums(
        [sum(column) for column in zip(*(part.counts for part in parts), strict=True)],
        sum(part.latency_sum for part in parts),
        sum(part.runtime_sum for part in parts),
        histograms.merge(part.latency for part in parts),
        histograms.merge(part.runtime for part in parts),
    )


# (level, scope, start in seconds since the epoch, task, queue)
Key = tuple[RollupLevel, RollupScope, int, str, str]


def minute_of(seconds: float, *, now: datetime) -> int:
    """Return the minute that counts for a moment a worker tells of, in seconds since the epoch.

    Its own, however late it is told. A clock that is minutes ahead, or more than two years behind, is
    wrong: what it tells of is counted now, so that nothing is lost from the totals.
    """
    at = now.timestamp()
    if not at - KEPT[RollupLevel.DAY].total_seconds() < seconds <= at + CLOCK_TOLERANCE_SECONDS:
        seconds = at
    return int(seconds // 60) * 60


@dataclass(frozen=True, slots=True)
class Named:
    """The tasks and queues that have rollups today: at most MOST_TASKS and MOST_QUEUES are told apart."""

    tasks: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()


def named_today(*, now: datetime) -> Named:
    """Return which names have a rollup of this day. Two queries."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    rows = Rollup.objects.filter(level=RollupLevel.DAY, starts_at=today)
    tasks = rows.filter(scope=RollupScope.TASK).values_list("task", flat=True)[:MOST_TASKS]
    queues = rows.filter(scope=RollupScope.QUEUE).values_list("queue", flat=True)[:MOST_QUEUES]
    return Named(frozenset(tasks), frozenset(queues))


class _Names:
    """Cleans names, and tells at most so many apart: further ones are ""."""

    def __init__(self, known: Iterable[str], most: int) -> None:
        self._known, self._most = set(known), most
        self._cleaned: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        cleaned = self._cleaned.get(name)
        if cleaned is None:
            cleaned = clean_name(name)
            if len(self._known) < self._most:
                self._known.add(cleaned)
            elif cleaned not in self._known:
                cleaned = ""
            self._cleaned[name] = cleaned
        return cleaned


def add_up(
    cells: Iterable[Cell], alive: Iterable[int], *, now: datetime, named: Named = Named()
) -> dict[Key, Sums]:
    """Return what each rollup gets of these cells; levels that are not kept at that age get nothing.

    Of tasks and queues beyond those that ``named`` has room for each kind is counted together, under "".

    ``alive`` are minutes, as ``minute_of`` returns them, in which a worker reported: they have a row of
    scope "all" even when nothing happened.
    """
    # The cells are many more than the rollups of a minute: those first, and everything else out of them.
    task_of, queue_of = _Names(named.tasks, MOST_TASKS), _Names(named.queues, MOST_QUEUES)
    told: dict[tuple[int, str, str], list[Cell]] = {}
    for cell in cells:
        key = (minute_of(cell.minute, now=now), task_of(cell.task), queue_of(cell.queue))
        told.setdefault(key, []).append(cell)
    minutes: dict[tuple[RollupScope, int, str, str], list[Sums]] = {}
    for (minute, task, queue), together in told.items():
        sums = _sum_of_cells(together)
        for scoped in (
            (RollupScope.BOTH, minute, task, queue),
            (RollupScope.TASK, minute, task, ""),
            (RollupScope.QUEUE, minute, "", queue),
            (RollupScope.ALL, minute, "", ""),
        ):
            minutes.setdefault(scoped, []).append(sums)
    for minute in alive:
        minutes.setdefault((RollupScope.ALL, minute, "", ""), [Sums([0] * len(COUNTS), 0.0, 0.0, {}, {})])
    found: dict[Key, list[Sums]] = {}
    for (scope, minute, task, queue), parts in minutes.items():
        sums = _sum(parts)
        for level, seconds in _SECONDS.items():
            start = minute // seconds * seconds
            if start >= (now - KEPT[level]).timestamp():
                found.setdefault((level, scope, start, task, queue), []).append(sums)
    return {each: _sum(parts) for each, parts in found.items()}


def write(found: Mapping[Key, Sums]) -> None:
    """Add to the rollups, within the caller's transaction and while it has its turn (``boots.take_turn``).

    Two statements for each ROWS_A_STATEMENT rollups. Numbers are added by the database; histograms are
    read, merged and written, which is why only one may do it at a time.
    """
    items = list(found.items())
    # Thousands of rollups begin at three moments.
    moments = {starts_at: _moment(starts_at) for starts_at in {key[2] for key in found}}
    for start in range(0, len(items), ROWS_A_STATEMENT):
        chunk = items[start : start + ROWS_A_STATEMENT]
        keys = [
            (level.value, scope.value, moments[starts_at], task, queue)
            for (level, scope, starts_at, task, queue), _ in chunk
        ]
        stored = _stored(keys)
        rows = []
        for number, (key, (_, sums)) in enumerate(zip(keys, chunk, strict=True)):
            packed = stored.get(number)
            if packed is not None and not any(sums.counts):
                continue
            latency, runtime = packed or (b"", b"")
            rows.append(
                (
                    *(*key, *sums.counts, sums.latency_sum, sums.runtime_sum),
                    *(_merged(sums.latency, latency), _merged(sums.runtime, runtime)),
                )
            )
        if rows:
            _add(rows)


def _merged(histogram: Histogram, packed: bytes) -> bytes:
    if not packed:
        return histograms.pack(histogram)
    merged = histograms.merge_packed([packed])
    histograms.add(merged, histogram)
    return histograms.pack(merged)


def _stored(keys: Sequence[tuple[str, ...]]) -> dict[int, tuple[bytes, bytes]]:
    """Return the packed histograms of the rollups that are there already, by the place of their key."""
    rows = [(number, *key) for number, key in enumerate(keys)]
    same = " AND ".join(f"r.{name} = v.{name}" for name in _KEY)
    if connection.vendor == "postgresql":
        values, parameters = _from_json(("number", *_KEY), rows)
    else:
        values = f"(VALUES {', '.join(['(%s, %s, %s, %s, %s, %s)'] * len(rows))})"
        parameters = [value for row in rows for value in row]
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH v (number, {', '.join(_KEY)}) AS {values} "  # noqa: S608 - our names
            f"SELECT v.number, r.latency, r.runtime FROM v JOIN {_TABLE} r ON {same}",
            parameters,
        )
        return {number: (bytes(latency), bytes(runtime)) for number, latency, runtime in cursor.fetchall()}


def _add(rows: Sequence[tuple[Any, ...]]) -> None:
    added = (*COUNTS, "latency_sum_seconds", "runtime_sum_seconds")
    sets = ", ".join(
        [f"{name} = {_TABLE}.{name} + excluded.{name}" for name in added]
        + [f"{name} = excluded.{name}" for name in ("latency", "runtime")]
    )
    head = f"INSERT INTO {_TABLE} ({', '.join(_COLUMNS)}) "
    tail = f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {sets}"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            values, parameters = _from_json(_COLUMNS, rows)
            cursor.execute(f"{head}{values}{tail}", parameters)
        else:
            cursor.executemany(f"{head}VALUES ({', '.join(['%s'] * len(_COLUMNS))}){tail}", rows)


def _from_json(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[str, list[Any]]:
    """Return a SELECT of the rows and its parameter, for PostgreSQL.

    One value: with one for each column of each row, psycopg takes 72 ms to put a thousand rollups into the
    text of a statement, and this 6.
    """
    kinds = {"number": "integer", **{field.column: field.db_type(connection) for field in _FIELDS}}
    selected = (
        f"decode(v->>{place}, 'hex')" if kinds[name] == "bytea" else f"(v->>{place})::{kinds[name]}"
        for place, name in enumerate(columns)
    )
    # Only bytes are nothing that JSON knows.
    text = json.dumps(rows, default=bytes.hex)
    return f"(SELECT {', '.join(selected)} FROM json_array_elements(%s::json) v)", [text]  # noqa: S608 - our names


def _moment(seconds: int) -> str:
    """Return the start of a rollup as SQLite stores it and PostgreSQL reads it."""
    moment = str(datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None))
    return f"{moment}+00:00" if connection.vendor == "postgresql" else moment
