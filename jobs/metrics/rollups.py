"""Cells of the agents → rollups: added up by minute, hour and day in four scopes, and merged into the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

from django.db import connection

from jobs.agent.batches import Cell
from jobs.core import histograms
from jobs.core.cleaning import clean_name
from jobs.core.histograms import Histogram
from jobs.core.words import RollupLevel, RollupScope
from jobs.models import Rollup

# How long each level is kept. Whole days, so that a day's minutes go together.
KEPT: Mapping[RollupLevel, timedelta] = {
    RollupLevel.MINUTE: timedelta(days=7),
    RollupLevel.HOUR: timedelta(days=90),
    RollupLevel.DAY: timedelta(days=730),
}
SECONDS: Mapping[RollupLevel, int] = {
    RollupLevel.MINUTE: 60,
    RollupLevel.HOUR: 3_600,
    RollupLevel.DAY: 86_400,
}
# A worker's clock that is further ahead is wrong.
CLOCK_TOLERANCE_SECONDS = 300
# PostgreSQL plans and binds longer statements slower, SQLite takes 32,766 values.
ROWS_A_STATEMENT = 1_000

COUNTS = ("received", "done", "retried", "dead", "revoked", "ignored", "dropped")
_counts_of = attrgetter(*COUNTS)
_KEY = ("level", "scope", "starts_at", "task", "queue")
_COLUMNS = (*_KEY, *COUNTS, "latency_sum_seconds", "runtime_sum_seconds", "latency", "runtime")


@dataclass(slots=True)
class Sums:
    """What one rollup gets: ``counts`` in the order of COUNTS."""

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    latency_sum: float = 0.0
    runtime_sum: float = 0.0
    latency: Histogram = field(default_factory=dict)
    runtime: Histogram = field(default_factory=dict)

    def add(
        self,
        counts: Iterable[int],
        latency_sum: float,
        runtime_sum: float,
        latency: Mapping[int, int],
        runtime: Mapping[int, int],
    ) -> None:
        """Add what happened elsewhere."""
        self.counts = [mine + other for mine, other in zip(self.counts, counts, strict=True)]
        self.latency_sum += latency_sum
        self.runtime_sum += runtime_sum
        for mine, other in ((self.latency, latency), (self.runtime, runtime)):
            for bucket, number in other.items():
                mine[bucket] = mine.get(bucket, 0) + number

    def add_sums(self, other: Sums) -> None:
        """Add another's."""
        self.add(other.counts, other.latency_sum, other.runtime_sum, other.latency, other.runtime)


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


def add_up(cells: Iterable[Cell], alive: Iterable[int], *, now: datetime) -> dict[Key, Sums]:
    """Return what each rollup gets of these cells; levels that are not kept at that age get nothing.

    ``alive`` are minutes, as ``minute_of`` returns them, in which a worker reported: they have a row of
    scope "all" even when nothing happened.
    """
    # The cells are many more than the rollups of a minute: those first, and everything else out of them.
    both: dict[tuple[int, str, str], Sums] = {}
    names: dict[str, str] = {}
    for cell in cells:
        for name in (cell.task, cell.queue):
            if name not in names:
                names[name] = clean_name(name)
        key = (minute_of(cell.minute, now=now), names[cell.task], names[cell.queue])
        sums = both.get(key)
        if sums is None:
            sums = both[key] = Sums()
        sums.add(_counts_of(cell), cell.latency_sum, cell.runtime_sum, cell.latency, cell.runtime)
    finest: dict[tuple[RollupScope, int, str, str], Sums] = {}
    for (minute, task, queue), sums in both.items():
        for scoped in (
            (RollupScope.BOTH, minute, task, queue),
            (RollupScope.TASK, minute, task, ""),
            (RollupScope.QUEUE, minute, "", queue),
            (RollupScope.ALL, minute, "", ""),
        ):
            finest.setdefault(scoped, Sums()).add_sums(sums)
    for minute in alive:
        finest.setdefault((RollupScope.ALL, minute, "", ""), Sums())
    found: dict[Key, Sums] = {}
    for (scope, minute, task, queue), sums in finest.items():
        for level, seconds in SECONDS.items():
            start = minute // seconds * seconds
            if start >= (now - KEPT[level]).timestamp():
                found.setdefault((level, scope, start, task, queue), Sums()).add_sums(sums)
    return found


def write(found: Mapping[Key, Sums]) -> None:
    """Add to the rollups, within the caller's transaction and while it has its turn (``boots.take_turn``).

    Two statements for each ROWS_A_STATEMENT rollups. Numbers are added by the database; histograms are
    read, merged and written, which is why only one may do it at a time.
    """
    items = list(found.items())
    for start in range(0, len(items), ROWS_A_STATEMENT):
        chunk = items[start : start + ROWS_A_STATEMENT]
        stored = _stored([key for key, _ in chunk])
        rows = []
        for key, sums in chunk:
            packed = stored.get(key)
            if packed is not None:
                if not any(sums.counts):
                    continue
                for mine, theirs in zip((sums.latency, sums.runtime), packed, strict=True):
                    for bucket, number in histograms.unpack(theirs).items():
                        mine[bucket] = mine.get(bucket, 0) + number
            level, scope, starts_at, task, queue = key
            rows.append(
                (
                    *(level.value, scope.value, _moment(starts_at), task, queue, *sums.counts),
                    *(sums.latency_sum, sums.runtime_sum),
                    *(histograms.pack(sums.latency), histograms.pack(sums.runtime)),
                )
            )
        _add(rows)


def _stored(keys: Sequence[Key]) -> dict[Key, tuple[bytes, bytes]]:
    """Return the packed histograms of the rollups that are there already."""
    marks = ", ".join(["(%s, %s, %s, %s, %s)"] * len(keys))
    columns = ", ".join(_KEY)
    values: list[Any] = []
    by_start = {}
    for level, scope, starts_at, task, queue in keys:
        moment = _moment(starts_at)
        by_start[str(moment)] = starts_at
        values += (level.value, scope.value, moment, task, queue)
    same = " AND ".join(f"r.{name} = v.{name}" for name in _KEY)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH v ({columns}) AS (VALUES {marks}) "  # noqa: S608 - our names
            f"SELECT v.level, v.scope, v.starts_at, v.task, v.queue, r.latency, r.runtime "
            f"FROM v JOIN {Rollup._meta.db_table} r ON {same}",
            values,
        )
        return {
            (RollupLevel(level), RollupScope(scope), by_start[str(at)], task, queue): (latency, runtime)
            for level, scope, at, task, queue, latency, runtime in cursor.fetchall()
        }


def _add(rows: Sequence[tuple[Any, ...]]) -> None:
    if not rows:
        return
    table = Rollup._meta.db_table
    added = (*COUNTS, "latency_sum_seconds", "runtime_sum_seconds")
    sets = ", ".join(
        [f"{name} = {table}.{name} + excluded.{name}" for name in added]
        + [f"{name} = excluded.{name}" for name in ("latency", "runtime")]
    )
    head = f"INSERT INTO {table} ({', '.join(_COLUMNS)}) VALUES "  # noqa: S608 - our names
    tail = f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {sets}"
    marks = f"({', '.join(['%s'] * len(_COLUMNS))})"
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                f"{head}{', '.join([marks] * len(rows))}{tail}", [value for row in rows for value in row]
            )
        else:
            cursor.executemany(f"{head}{marks}{tail}", rows)


def _moment(seconds: int) -> Any:
    """Return the start of a rollup as the database's driver takes it."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment if connection.vendor == "postgresql" else str(moment.replace(tzinfo=None))
