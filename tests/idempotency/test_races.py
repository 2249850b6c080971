"""Two processes reach for one key in the same moment, two hundred times."""

from __future__ import annotations

import multiprocessing
import time
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from jobs.core.words import LedgerState
from jobs.errors import HeldBack
from jobs.models import IdempotencyRecord
from tests.idempotency.copies import TASK, copy
from tests.idempotency.forks import fork, wait

RACES = 200


@pytest.mark.parametrize("atomic", [False, True], ids=["lease", "atomic"])
@pytest.mark.parametrize("start", ["new", "free", "expired"])
def test_of_two_processes_that_race_for_a_key_one_runs_it(database, tmp_path, atomic, start):
    prepare(start)
    effects = tmp_path / "effects"
    barrier = multiprocessing.get_context("fork").Barrier(2)

    def race(name: str) -> None:
        connection.ensure_connection()
        for number in range(RACES):
            barrier.wait(timeout=60)
            come_back_until_done(f"receipt:{number}", f"{name}-{number}", effects, atomic=atomic)

    children = [fork(lambda name=name: race(name)) for name in ("a", "b")]

    assert [wait(child) for child in children] == [0, 0]
    lines = effects.read_text().splitlines()
    assert sorted(lines) == sorted(f"receipt:{number}" for number in range(RACES))
    assert IdempotencyRecord.objects.filter(state=LedgerState.DONE).count() == RACES


def come_back_until_done(key: str, task_id: str, effects: Path, *, atomic: bool) -> None:
    """Do as ``Job`` does when it is held back, without the wait."""

    def effect() -> str:
        with effects.open("ab", buffering=0) as file:
            file.write(f"{key}\n".encode())
        return task_id

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            copy(effect, key=key, task_id=task_id, atomic=atomic)
        except HeldBack:
            time.sleep(0.001)
        else:
            return
    raise AssertionError(f"{key} was never done")


def prepare(start: str) -> None:
    if start == "new":
        return
    now = timezone.now()
    IdempotencyRecord.objects.bulk_create(
        IdempotencyRecord(
            task=TASK,
            key=f"receipt:{number}",
            state=LedgerState.FREE if start == "free" else LedgerState.RUNNING,
            task_id="former",
            lease_expires_at=None if start == "free" else now - timedelta(hours=1),
            created_at=now,
            started_at=now,
            updated_at=now,
        )
        for number in range(RACES)
    )
