"""A process is killed with signal 9 between any two steps of a run, and the job is delivered again.

Each statement, the effect and the commit are points at which it dies, one after the other, until it
survives: so every crash there can be is tried, and the one window is shown to be the only one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.db import connection
from django.utils import timezone

from jobs.core.words import LedgerState
from jobs.errors import LeaseRanOut
from jobs.models import IdempotencyRecord, JobProgress
from tests.idempotency.copies import TASK, copy, record
from tests.idempotency.forks import fork, kill_self, wait

MOST_POINTS = 40


class Death:
    """Kills the process at the point with this number; counts the points before it."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._in_effect = ""

    def point(self, name: str, told: Path) -> None:
        with told.open("a") as file:
            file.write(f"{name}\n")
        if self._left == 0:
            kill_self()
        self._left -= 1


def run_to_death(number: int, body: Callable[[], Any], *, atomic: bool, told: Path) -> int:
    """Run a copy of the job in a child that dies at a point; return how it ended."""

    def work() -> None:
        death = Death(number)

        def step(execute: Any, sql: str, *rest: Any) -> Any:
            verb = sql.split()[0]
            death.point(f"before {verb}", told)
            result = execute(sql, *rest)
            death.point(f"after {verb}", told)
            return result

        def dying_body() -> Any:
            result = body()
            death.point("after the effect", told)
            return result

        commit = connection._commit

        def dying_commit() -> None:
            death.point("before COMMIT", told)
            commit()
            death.point("after COMMIT", told)

        connection.ensure_connection()
        connection._commit = dying_commit  # type: ignore[method-assign]
        with connection.execute_wrapper(step):
            copy(dying_body, atomic=atomic)

    return wait(fork(work))


def deliver_again(body: Callable[[], Any], *, atomic: bool) -> None:
    """Give the job to another process once the lease of the dead one has ended."""
    IdempotencyRecord.objects.filter(state=LedgerState.RUNNING).update(
        lease_expires_at=timezone.now() - timedelta(seconds=1)
    )
    copy(body, atomic=atomic)


def test_with_a_lease_the_only_window_is_between_the_effect_and_its_record(database, tmp_path):
    """An effect outside the database cannot be undone, so a crash right after it cannot be told from one before."""
    twice: list[str] = []
    for number in range(MOST_POINTS):
        IdempotencyRecord.objects.all().delete()
        effects, told = tmp_path / f"effects-{number}", tmp_path / f"told-{number}"

        def effect(effects: Path = effects) -> str:
            with effects.open("ab", buffering=0) as file:
                file.write(b"receipt:5\n")
            return "sent"

        status = run_to_death(number, effect, atomic=False, told=told)
        last_point = told.read_text().splitlines()[-1]
        deliver_again(effect, atomic=False)

        happened = effects.read_text().count("receipt:5")
        assert happened in (1, 2), last_point
        assert record().state == LedgerState.DONE
        if happened == 2:
            twice.append(last_point)
        if status == 0:
            break
        assert status == -signal.SIGKILL

    assert status == 0, "the process never survived"
    # From the effect until the record is written; SQLite commits within the statement.
    assert twice == ["after the effect", "before UPDATE"]


def test_in_one_transaction_there_is_no_window(database, tmp_path):
    seen: list[str] = []
    for number in range(MOST_POINTS):
        IdempotencyRecord.objects.all().delete()
        JobProgress.objects.all().delete()
        told = tmp_path / f"told-{number}"

        def effect(number: int = number) -> str:
            # Any row will do; this one has no constraint that would hide a second.
            now = timezone.now()
            count = JobProgress.objects.count()
            JobProgress.objects.create(
                task_id=f"row-{count}", task=TASK, done=1, started_at=now, updated_at=now
            )
            return "written"

        status = run_to_death(number, effect, atomic=True, told=told)
        seen.append(told.read_text().splitlines()[-1])
        deliver_again(effect, atomic=True)

        assert JobProgress.objects.count() == 1, seen[-1]
        assert record().state == LedgerState.DONE
        if status == 0:
            break
        assert status == -signal.SIGKILL

    assert status == 0, "the process never survived"
    assert {"before INSERT", "after the effect", "after UPDATE", "before COMMIT", "after COMMIT"} <= set(seen)


def test_a_job_that_kills_its_process_each_time_is_run_three_times(database, tmp_path):
    effects = tmp_path / "effects"

    def deadly() -> None:
        with effects.open("ab", buffering=0) as file:
            file.write(b"ran\n")
        kill_self()

    for _ in range(3):
        assert wait(fork(lambda: copy(deadly))) == -signal.SIGKILL
        IdempotencyRecord.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))

    try:
        copy(deadly)
    except LeaseRanOut:
        assert effects.read_text().count("ran") == 3
    else:
        raise AssertionError("it ran a fourth time")


def test_row_102_the_heartbeat_dies_with_the_process_that_runs_the_job(database, tmp_path):
    """No thread of another process keeps the lease of a dead one alive."""

    def die_after_a_heartbeat() -> None:
        first = record().lease_expires_at
        while record().lease_expires_at == first:
            pass
        kill_self()

    status = wait(fork(lambda: copy(die_after_a_heartbeat, lease_seconds=1.0)))

    assert status == -signal.SIGKILL
    ends_at = record().lease_expires_at
    IdempotencyRecord.objects.filter(lease_expires_at=ends_at).update(
        lease_expires_at=timezone.now() - timedelta(seconds=1)
    )
    assert copy(lambda: "sent") == "sent"
    assert record().takeovers == 1


def test_a_forked_child_has_a_heart_of_its_own(database):
    """A thread does not survive a fork, and a lock that it held would be held for ever."""

    def long_job() -> str:
        first = record().lease_expires_at
        while record().lease_expires_at == first:
            pass
        return "sent"

    copy(lambda: "sent", key="receipt:1")

    assert wait(fork(lambda: copy(long_job, lease_seconds=1.0))) == 0
    assert record().state == LedgerState.DONE
