"""How fast letters are purged, against one bare UPDATE of the same rows.

Ours is the whole way: the frozen selection, batches with their checkpoint and the condition that nobody
has touched the letter. Theirs sets the same columns in one statement, which can be neither paused nor
resumed and holds SQLite's write lock until its end. Each has a copy of its own of the same database.
"""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection, connections
from django.utils import timezone

from benchmarks.place import Place
from benchmarks.replay import write_letters
from jobs import leases
from jobs.audit import Actor
from jobs.broker import connect
from jobs.core.words import LetterState, OperationKind
from jobs.models import DeadLetter, Operation
from jobs.operations import Selection, start_purge
from jobs.operations.runner import Runner

# Ours may take so many times as long as the bare statement.
TARGET_TIMES = 3.0


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure in a place of its own; return the figure with its target."""
    letters = 20_000 if quick else 1_000_000
    with Place() as place:
        write_letters(letters)
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connections["default"].close()
        original = Path(place.database)
        copy = original.with_name("copy.sqlite3")
        shutil.copy(original, copy)
        ours = _purge(letters)
        connections["default"].close()
        shutil.move(copy, original)
        for left_over in ("-wal", "-shm"):
            original.with_name(original.name + left_over).unlink(missing_ok=True)
        peer = _update(letters)
    return [
        {
            "name": f"purge of {letters:,} letters, against one bare UPDATE of them",
            "ours": ours,
            "peer": peer,
            "ratio": ours / peer,
            "target": f"<= {TARGET_TIMES:g} x peer",
            "unit": "s",
            "is_met": ours <= TARGET_TIMES * peer,
        }
    ]


def _purge(count: int) -> float:
    lease = leases.acquire(duty="operations", holder="benchmark", seconds=3600)
    assert lease is not None
    with connect() as broker:
        started = time.perf_counter()
        now = timezone.now()
        operation = start_purge(
            selection=Selection.of_query("", now=now),
            actor=Actor(name="benchmark"),
            why="to measure",
            now=now,
            typed_count=count,
        )
        runner = Runner(broker)
        while runner.run_once(now=timezone.now(), lease=lease) is not None:
            pass
        took = time.perf_counter() - started
    operation.refresh_from_db()
    assert operation.changed_count == count, operation.outcome
    return took


def _update(count: int) -> float:
    now = timezone.now()
    # The operation that the letters name; made before, as ours makes its own.
    operation = Operation.objects.create(kind=OperationKind.PURGE, created_at=now, actor="benchmark")
    started = time.perf_counter()
    changed = DeadLetter.objects.filter(state=LetterState.DEAD).update(
        state=LetterState.PURGED,
        state_changed_at=now,
        purged_by=operation,
        delete_after=now + timedelta(days=7),
    )
    took = time.perf_counter() - started
    assert changed == count, f"{changed} of {count} letters were updated"
    return took
