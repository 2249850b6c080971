"""One key, one run: claims, results, failures and stale copies, on both databases and in both modes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from django.db import DatabaseError, connection, transaction
from django.utils import timezone

from jobs.agent.wire import AWAITED_HEADER
from jobs.core.claims import LOST_AFTER_SECONDS
from jobs.core.words import LedgerState
from jobs.errors import HeldBack, LeaseRanOut, PermanentError, StaleAttempt
from jobs.idempotency import ended, results, sent_attempt
from jobs.models import IdempotencyRecord, JobProgress
from tests.idempotency.copies import KEY, TASK, Body, Elsewhere, copy, expire, record
from tests.servers import wait_until


@pytest.fixture(params=[False, True], ids=["lease", "atomic"])
def atomic(request) -> bool:
    return bool(request.param)


def test_a_key_runs_once_and_its_result_is_kept(database, atomic):
    body = Body({"id": 7})

    first = copy(body, atomic=atomic)
    second = copy(body, atomic=atomic, task_id="b")

    assert (first, second, body.runs) == ({"id": 7}, {"id": 7}, 1)
    line = record()
    assert (line.state, line.task_id, line.attempt) == (LedgerState.DONE, "a", 0)
    assert line.completed_at is not None
    assert line.lease_expires_at is None


def test_two_tasks_may_have_the_same_key(database, atomic):
    body = Body()

    copy(body, atomic=atomic)
    copy(body, atomic=atomic, task="shop.other", task_id="b")

    assert body.runs == 2


@pytest.mark.parametrize(
    "result",
    [
        None,
        False,
        0,
        "",
        [],
        {"a": [1, 2.5, None, "ü\x00\ud800"]},
        datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
        date(2026, 5, 6),
        UUID("12345678-1234-5678-1234-567812345678"),
        Decimal("12.30"),
        {"when": [datetime(2026, 1, 1, tzinfo=UTC)], "how much": Decimal("0.1")},
        b"\xff\x00",
    ],
)
def test_a_result_comes_back_equal(database, result):
    copy(lambda: result)

    again = copy(Body("another"), task_id="b", has_successors=True)

    assert again == result
    assert type(again) is type(result)


class NoJson:
    pass


@pytest.mark.parametrize(
    "result",
    [NoJson(), "x" * results.RESULT_LIMIT_BYTES, {"__type__": "no such", "__value__": 1}],
    ids=["no form", "too large", "looks like a mark"],
)
def test_a_result_that_cannot_be_kept_is_none_or_an_error_where_others_wait_for_it(
    database, atomic, result, caplog
):
    first = copy(lambda: result, atomic=atomic)

    assert first is result
    assert "is not kept" in caplog.text
    assert copy(Body(), atomic=atomic, task_id="b") is None
    with pytest.raises(PermanentError, match="the result was not kept"):
        copy(Body(), atomic=atomic, task_id="c", has_successors=True)


def test_a_result_of_exactly_the_limit_is_kept(database):
    result = "x" * (results.RESULT_LIMIT_BYTES - 2)

    copy(lambda: result)

    assert copy(Body(), task_id="b") == result


def test_a_failure_frees_the_key_and_the_next_attempt_runs(database, atomic):
    body = Body(errors=(ConnectionError("down"),))

    with pytest.raises(ConnectionError, match="down"):
        copy(body, atomic=atomic)
    result = copy(body, atomic=atomic, attempt=1)

    assert (result, body.runs, record().state, record().attempt) == ("sent", 2, LedgerState.DONE, 1)


def test_a_failure_lets_another_job_with_the_key_run(database, atomic):
    body = Body(errors=(ConnectionError("down"),))

    with pytest.raises(ConnectionError):
        copy(body, atomic=atomic)
    copy(body, atomic=atomic, task_id="b")

    assert (body.runs, record().task_id) == (2, "b")


def test_a_second_copy_is_held_back_while_the_first_runs(database, atomic):
    elsewhere = Elsewhere(atomic=atomic)
    body = Body()

    with pytest.raises(HeldBack) as held:
        copy(body, atomic=atomic, task_id="b")

    assert elsewhere.end() == "sent elsewhere"
    assert body.runs == 0
    assert 0 < held.value.seconds <= 75
    assert copy(body, atomic=atomic, task_id="b") == "sent elsewhere"
    assert body.runs == 0


def test_row_65_the_same_message_delivered_again_does_not_run_beside_itself(database, atomic):
    """Redis gives a message that is not acknowledged within the visibility timeout to somebody else."""
    elsewhere = Elsewhere(atomic=atomic)
    body = Body()

    with pytest.raises(HeldBack):
        copy(body, atomic=atomic)

    elsewhere.end()
    assert body.runs == 0


def test_other_keys_are_not_held_back(database):
    elsewhere = Elsewhere()

    assert copy(Body(), key="receipt:6") == "sent"

    elsewhere.end()


@pytest.mark.postgres
def test_atomic_copies_of_other_keys_run_beside_each_other_on_postgresql(database):
    if database != "postgresql":
        # SQLite has one writer: the second waits, or comes back.
        return
    elsewhere = Elsewhere(atomic=True)

    assert copy(Body(), atomic=True, key="receipt:6") == "sent"

    elsewhere.end()


def test_row_47_an_attempt_that_is_delivered_again_after_its_retry_was_sent_does_not_run(database, atomic):
    """The retry was published in the child, which died before its parent acknowledged the first attempt."""
    body = Body(errors=(ConnectionError("down"),))
    with pytest.raises(ConnectionError):
        copy(body, atomic=atomic)
    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, using="default")

    with pytest.raises(HeldBack, match="attempt 1 of the same job was sent, and has not begun") as held:
        copy(body, atomic=atomic)

    assert (body.runs, 1 <= held.value.seconds <= 75) == (1, True)
    assert copy(body, atomic=atomic, attempt=1) == "sent"
    with pytest.raises(StaleAttempt, match="attempt 1 of the same job"):
        copy(body, atomic=atomic)
    assert body.runs == 2


def test_row_69_a_retry_that_was_lost_on_its_way_does_not_take_the_job_with_it(database, atomic):
    """Redis had handed it out, and its worker was killed before kombu noted that."""
    body = Body(errors=(ConnectionError("down"),))
    with pytest.raises(ConnectionError):
        copy(body, atomic=atomic)
    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, using="default")
    age = timedelta(seconds=LOST_AFTER_SECONDS)
    IdempotencyRecord.objects.update(updated_at=timezone.now() - age + timedelta(seconds=30))

    with pytest.raises(HeldBack):
        copy(body, atomic=atomic)
    IdempotencyRecord.objects.update(updated_at=timezone.now() - age - timedelta(seconds=1))

    assert copy(body, atomic=atomic) == "sent"
    # And should it come after all, it finds the key done.
    assert copy(body, atomic=atomic, attempt=1) == "sent"
    assert body.runs == 2


@pytest.mark.parametrize("replay", [0, 2])
def test_a_copy_that_waited_for_its_retry_is_stale_when_that_has_ended_the_job(database, atomic, replay):
    """The end of a job forgets its attempts; without its memory the copy would run a dead job."""
    body = Body(errors=(ConnectionError("down"), PermanentError("no such order")))
    with pytest.raises(ConnectionError):
        copy(body, atomic=atomic, replay=replay)
    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, replay=replay, using="default")
    with pytest.raises(HeldBack) as held:
        copy(body, atomic=atomic, replay=replay)
    with pytest.raises(PermanentError):
        copy(body, atomic=atomic, attempt=1, replay=replay)
    ended(task=TASK, key=KEY, task_id="a", using="default")

    with pytest.raises(StaleAttempt):
        copy(body, atomic=atomic, replay=replay, awaited=held.value.headers[AWAITED_HEADER])

    assert body.runs == 2
    # One that is sent anew under its id is another matter.
    assert copy(body, atomic=atomic, replay=replay) == "sent"


def test_row_69_a_retry_sent_by_hand_that_was_lost_with_its_worker_does_not_take_the_job_with_it(database):
    """The attempt that sent it still holds the key, under a lease that nobody extends any more."""
    with pytest.raises(SystemExit):
        copy(Body(errors=(SystemExit(9),)))
    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, using="default")
    IdempotencyRecord.objects.update(state=LedgerState.RUNNING)
    expire()

    with pytest.raises(HeldBack, match="was sent, and has not begun"):
        copy(Body())
    IdempotencyRecord.objects.update(updated_at=timezone.now() - timedelta(seconds=LOST_AFTER_SECONDS + 1))

    assert copy(Body()) == "sent"


def test_a_copy_whose_retry_has_begun_and_failed_is_stale(database):
    """In atomic mode its claim is rolled back with it, and the copy is held until the next attempt is sent."""
    body = Body(errors=(ConnectionError("down"), ConnectionError("still down")))
    with pytest.raises(ConnectionError):
        copy(body)
    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, using="default")
    with pytest.raises(ConnectionError):
        copy(body, attempt=1)

    with pytest.raises(StaleAttempt):
        copy(body)


def test_an_old_copy_from_before_a_replay_is_stale_whatever_the_replay_waits_for(database, atomic):
    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, replay=1, using="default")

    with pytest.raises(StaleAttempt):
        copy(Body(), atomic=atomic, attempt=4)


def test_an_older_attempt_is_stale_also_when_the_newer_one_is_done(database, atomic):
    """The newer attempt's own message goes on with the chain; twice would be once too often."""
    body = Body()
    copy(body, atomic=atomic, attempt=1)

    with pytest.raises(StaleAttempt):
        copy(body, atomic=atomic, attempt=0)

    assert copy(body, atomic=atomic, attempt=1) == "sent"
    assert body.runs == 1


def test_a_retry_sent_within_the_body_is_noted_when_the_body_has_ended(database, atomic):
    """In a transaction it would be rolled back with the body."""

    def retry_by_hand() -> None:
        sent_attempt(task=TASK, key=KEY, task_id="a", attempt=1, using="default")
        raise ConnectionError("retried by hand")

    with pytest.raises(ConnectionError):
        copy(retry_by_hand, atomic=atomic)

    assert (record().state, record().attempt) == (LedgerState.FREE, 1)


def test_a_retry_that_was_sent_says_nothing_about_another_job_with_the_key(database, atomic):
    copy(Body(), atomic=atomic, task_id="b")

    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=3, using="default")

    assert (record().task_id, record().attempt) == ("b", 0)


def test_an_older_note_does_not_undo_a_newer_one(database):
    for attempt in (3, 1):
        sent_attempt(task=TASK, key=KEY, task_id="a", attempt=attempt, using="default")

    assert record().attempt == 3


def test_a_replay_under_the_old_id_counts_its_attempts_anew(database, atomic):
    body = Body()
    sent_attempt(task=TASK, key=KEY, task_id="a", attempt=4, using="default")

    result = copy(body, atomic=atomic, attempt=0, replay=1)

    assert (result, record().replay, record().attempt) == ("sent", 1, 0)
    with pytest.raises(StaleAttempt):
        copy(body, atomic=atomic, attempt=4)


def test_a_lease_that_ran_out_is_taken_over_and_the_former_holder_is_refused(database, caplog):
    elsewhere = Elsewhere()
    token = record().lease_token
    expire()

    assert copy(Body("sent here"), task_id="b") == "sent here"

    assert elsewhere.end() == "sent elsewhere"
    assert "it had lost its lease while it ran: its key is held by job b" in caplog.text
    line = record()
    assert (line.task_id, line.result, line.lease_token) == ("b", '"sent here"', token + 1)


def test_a_run_whose_row_was_deleted_does_not_complete_anothers(database):
    elsewhere = Elsewhere()
    IdempotencyRecord.objects.all().delete()
    other = Elsewhere(task_id="b")

    assert elsewhere.end() == "sent elsewhere"

    assert (record().state, record().task_id) == (LedgerState.RUNNING, "b")
    other.end()


def test_a_run_whose_row_is_gone_writes_it_anew(database, caplog):
    """A PostgreSQL that crashes in the moment after a claim forgets it."""
    elsewhere = Elsewhere()
    IdempotencyRecord.objects.all().delete()

    assert elsewhere.end() == "sent elsewhere"

    assert "it is written anew" in caplog.text
    assert (record().state, record().result) == (LedgerState.DONE, '"sent elsewhere"')


@pytest.mark.postgres
def test_only_the_claim_does_without_the_disk_and_not_the_body(database, atomic):
    if database != "postgresql":
        return

    def body() -> str:
        with connection.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            return str(cursor.fetchone()[0])

    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")

    assert copy(body, atomic=atomic) == "on"


def test_a_copy_that_lost_its_lease_to_the_same_job_ends_without_going_on(database):
    elsewhere = Elsewhere()
    expire()

    assert copy(Body("sent here")) == "sent here"

    outcome = elsewhere.end()
    assert isinstance(outcome, StaleAttempt)
    assert "may have happened twice" in str(outcome)


def test_a_failure_after_the_lease_was_lost_does_not_free_the_others_key(database, caplog):
    def fail_late() -> None:
        expire()
        with pytest.raises(HeldBack):
            taken_over_and_held()
        raise ConnectionError("down")

    def taken_over_and_held() -> None:
        others: list[Elsewhere] = [Elsewhere(task_id="b")]
        running.extend(others)
        copy(Body(), task_id="c")

    running: list[Elsewhere] = []

    with pytest.raises(ConnectionError):
        copy(fail_late)

    assert (record().state, record().task_id) == (LedgerState.RUNNING, "b")
    assert "another copy has its key" in caplog.text
    assert running[0].end() == "sent elsewhere"


def test_a_job_whose_lease_ran_out_three_times_is_not_run_again(database):
    for _ in range(3):
        die_while_running()

    with pytest.raises(LeaseRanOut, match="3 times") as error:
        copy(Body())

    assert error.value.permanent
    assert error.value.dead_letter_reason == "worker_lost"
    with pytest.raises(LeaseRanOut):
        copy(Body())


@pytest.mark.parametrize("replayed", [{"task_id": "b"}, {"replay": 1}], ids=["new id", "same id"])
def test_a_replay_of_a_job_whose_lease_ran_out_too_often_runs(database, replayed):
    for _ in range(3):
        die_while_running()
    with pytest.raises(LeaseRanOut):
        copy(Body())

    assert copy(Body(), **replayed) == "sent"


def test_takeovers_by_other_jobs_do_not_count_against_a_job(database):
    for name in ("b", "c", "d"):
        die_while_running(task_id=name)

    assert copy(Body()) == "sent"


def die_while_running(**changes: Any) -> None:
    """Leave the key as a process that was killed leaves it: running, until its lease ends."""

    class Killed(BaseException):
        pass

    def body() -> None:
        line = IdempotencyRecord.objects.filter(key=KEY)
        kept.update(line.values().get())
        raise Killed

    kept: dict[str, Any] = {}
    with pytest.raises(Killed):
        copy(body, **changes)
    IdempotencyRecord.objects.filter(key=KEY).update(
        **{name: value for name, value in kept.items() if name != "id"}
    )
    expire()


def test_a_failing_body_rolls_back_the_key_and_everything_it_wrote(database):
    def body() -> None:
        JobProgress.objects.create(
            task_id="x", task=TASK, done=1, started_at=timezone.now(), updated_at=timezone.now()
        )
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        copy(body, atomic=True)

    assert not JobProgress.objects.exists()
    assert not IdempotencyRecord.objects.exists()


def test_what_an_atomic_body_writes_and_its_key_are_there_together(database):
    def body() -> str:
        with transaction.atomic():
            JobProgress.objects.create(
                task_id="x", task=TASK, done=1, started_at=timezone.now(), updated_at=timezone.now()
            )
        transaction.on_commit(lambda: seen.append(record().state))
        assert not seen
        return "written"

    seen: list[str] = []

    assert copy(body, atomic=True) == "written"

    assert (seen, JobProgress.objects.count()) == ([LedgerState.DONE], 1)


def test_a_nested_block_that_fails_and_is_caught_rolls_back_itself_only(database):
    def body() -> str:
        try:
            with transaction.atomic():
                IdempotencyRecord.objects.all().delete()
                raise ConnectionError("down")
        except ConnectionError:
            return "caught"

    assert copy(body, atomic=True) == "caught"
    assert record().state == LedgerState.DONE


def test_an_atomic_copy_runs_within_a_transaction_that_is_open_already(database):
    """As in a task that is called eagerly in a test."""
    with transaction.atomic():
        assert copy(Body(), atomic=True) == "sent"
        assert copy(Body(), key="receipt:6") == "sent"
        transaction.set_rollback(True)

    assert not IdempotencyRecord.objects.exists()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_a_body_that_is_stopped_frees_its_key(database, error):
    with pytest.raises(type(error)):
        copy(Body(errors=(error,)))

    assert record().state == LedgerState.FREE


def test_names_that_no_column_takes_are_cleaned_as_in_the_letters(database):
    assert copy(Body(), key="receipt:\x00" + "x" * 300, task_id="i\x00" + "d" * 300) == "sent"

    line = IdempotencyRecord.objects.get()
    assert (len(line.key), len(line.task_id)) == (255, 255)


def test_a_short_job_is_waited_for_shortly_and_a_long_one_longer(database):
    elsewhere = Elsewhere(lease_seconds=600.0)
    with pytest.raises(HeldBack) as soon:
        copy(Body(), task_id="b")
    IdempotencyRecord.objects.update(started_at=timezone.now() - timedelta(seconds=30))
    with pytest.raises(HeldBack) as later:
        copy(Body(), task_id="b")
    IdempotencyRecord.objects.update(started_at=timezone.now() - timedelta(hours=1))
    with pytest.raises(HeldBack) as latest:
        copy(Body(), task_id="b")
    elsewhere.end()

    assert soon.value.seconds < 25
    assert 29 < later.value.seconds < 60
    assert 59 < latest.value.seconds <= 75


def test_a_lease_lives_as_long_as_its_job(database):
    """Row 102: the process that runs the job extends it, and nobody else does."""
    elsewhere = Elsewhere(lease_seconds=3.0)
    first = record().lease_expires_at

    wait_until(lambda: record().lease_expires_at > first, what="the heartbeat")
    for _ in range(3):
        with pytest.raises(HeldBack):
            copy(Body(), task_id="b")
        before = record().lease_expires_at
        wait_until(lambda before=before: record().lease_expires_at > before, what="the next heartbeat")
    assert elsewhere.end() == "sent elsewhere"


def test_the_clocks_of_machines_do_not_matter(database):
    """The database's clock decides, whatever Python's says."""
    copy(Body())

    completed = record().completed_at

    assert abs((completed - timezone.now()).total_seconds()) < 60


def test_two_that_race_for_a_free_key_are_told_apart(database, atomic):
    def race(name: str, body: Callable[[], Any]) -> None:
        barrier.wait(30)
        try:
            outcomes.append(copy(body, task_id=name, atomic=atomic))
        except HeldBack as held:
            outcomes.append(held)
        finally:
            connection.close()

    body, outcomes = Body(), list[Any]()
    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=race, args=(name, body)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert body.runs == 1
    assert len(outcomes) == 4


def test_a_database_without_the_table_is_an_error_and_not_an_outage(database, atomic):
    """Nobody migrated it, and waiting mends nothing: the job dies and says so."""
    body = Body()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobs_idempotencyrecord RENAME TO jobs_away")
    try:
        with pytest.raises(DatabaseError, match="jobs_idempotencyrecord"):
            copy(body, atomic=atomic)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE jobs_away RENAME TO jobs_idempotencyrecord")

    assert body.runs == 0
