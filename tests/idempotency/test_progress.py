"""How far a job is: written beside its transaction, at most once a second, the last line always."""

from __future__ import annotations

import time

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs.idempotency import end_progress, heartbeat, progress, record_progress
from jobs.models import JobProgress
from tests.idempotency.copies import TASK, copy
from tests.servers import wait_until

pytestmark = pytest.mark.postgres


def tell(done: int, total: int | None = 100, *, task_id: str = "a", note: str = "") -> None:
    record_progress(task=TASK, task_id=task_id, worker="celery@shop", done=done, total=total, note=note)


def line(task_id: str = "a") -> JobProgress | None:
    return JobProgress.objects.filter(task_id=task_id).first()


def wait_for(done: int, *, task_id: str = "a") -> JobProgress:
    wait_until(
        lambda: (found := line(task_id)) is not None and found.done == done, what=f"{done} to be written"
    )
    found = line(task_id)
    assert found is not None
    return found


def test_the_first_line_is_there_at_once_and_says_everything(database):
    tell(40, 100, note="page 4 of 10")

    found = wait_for(40)

    assert (found.task, found.worker, found.total, found.note) == (TASK, "celery@shop", 100, "page 4 of 10")


def test_a_thousand_lines_are_a_few_writes_and_the_last_is_among_them(database, monkeypatch):
    writes: list[int] = []
    write = progress._write
    monkeypatch.setattr(
        progress, "_write", lambda row, alias: (writes.append(row.done), write(row, alias))[1]
    )

    begun = time.monotonic()
    for number in range(1, 1_001):
        tell(number, 1_000)
    wait_for(1_000)

    assert writes[-1] == 1_000
    assert len(writes) <= 2 + (time.monotonic() - begun) / progress.EVERY_SECONDS


def test_telling_costs_the_job_no_query(database):
    with CaptureQueriesContext(connection) as queries:
        tell(1)
        tell(2)

    assert len(queries) == 0
    wait_for(2)


def test_a_job_that_is_done_leaves_no_line(database):
    tell(1)
    wait_for(1)
    tell(2)

    end_progress(task_id="a", is_done=True)

    assert line() is None
    # Nor does a line come that was still to be written.
    tell(3, task_id="b")
    wait_for(3, task_id="b")
    assert line() is None


def test_a_job_that_failed_leaves_its_last_line(database):
    tell(1)
    wait_for(1)
    tell(77)

    end_progress(task_id="a", is_done=False)

    found = line()
    assert found is not None
    assert found.done == 77


def test_a_job_that_never_told_costs_nothing_at_its_end(database):
    with CaptureQueriesContext(connection) as queries:
        end_progress(task_id="a", is_done=True)
        end_progress(task_id="a", is_done=False)

    assert len(queries) == 0


def test_others_see_the_progress_of_a_job_in_its_transaction_and_a_rollback_keeps_it(database):
    if database == "sqlite":
        # It has one writer: while the body's transaction is open, nothing else is written.
        return

    def body() -> None:
        JobProgress.objects.create(
            task_id="own", task=TASK, done=1, started_at="2026-01-01T00:00Z", updated_at="2026-01-01T00:00Z"
        )
        tell(5)
        wait_for(5)
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        copy(body, atomic=True)

    assert line() is not None
    assert line("own") is None


def test_a_transaction_is_not_held_up_by_its_progress(database):
    def body() -> float:
        JobProgress.objects.create(
            task_id="own", task=TASK, done=1, started_at="2026-01-01T00:00Z", updated_at="2026-01-01T00:00Z"
        )
        begun = time.monotonic()
        tell(5)
        # The thread has tried by now; on SQLite it could not.
        time.sleep(1.0)
        return time.monotonic() - begun

    took = copy(body, atomic=True)
    end_progress(task_id="a", is_done=False)

    assert took < 10
    found = line()
    assert found is not None
    assert found.done == 5


def test_progress_outside_a_transaction_is_seen_on_sqlite_too(database):
    def body() -> str:
        tell(5)
        wait_for(5)
        return "sent"

    assert copy(body) == "sent"


def test_a_retry_begins_anew(database):
    tell(90)
    first = wait_for(90).started_at
    end_progress(task_id="a", is_done=False)

    tell(3)

    assert wait_for(3).started_at > first


def test_numbers_and_notes_that_no_column_takes_are_cut(database):
    tell(10**30, -(10**30), note="a\x00 very\n" + "long " * 100)

    wait_until(lambda: line() is not None, what="the line")
    found = line()
    assert found is not None
    assert (found.done, found.total) == (2**63 - 1, -(2**63 - 1))
    assert len(found.note) == 255
    assert found.note.startswith("a\ufffd very long long")


def test_the_thread_gives_its_connection_back_when_it_is_idle(database, monkeypatch):
    monkeypatch.setattr("jobs.idempotency.heartbeat.IDLE_SECONDS", 0.2)
    closed: list[set[str]] = []
    close = heartbeat._close
    monkeypatch.setattr(heartbeat, "_close", lambda aliases: (closed.append(set(aliases)), close(aliases)))

    tell(1)
    wait_for(1)

    wait_until(lambda: {"default"} in closed, what="the connection to be closed")


def test_a_line_within_a_test_transaction_is_no_trouble(database):
    with transaction.atomic():
        tell(1)
        end_progress(task_id="a", is_done=True)
        transaction.set_rollback(True)
    # The line may have been written by the heart's own connection, and its end was rolled back: the next one counts.
    tell(2)
    end_progress(task_id="a", is_done=True)

    assert line() is None
