"""A worker that falls silent: what it took with it becomes dead letters, and only that; one that comes back is believed."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum

from jobs.collector.storing import store as store_records
from jobs.core.words import GroupState, ItemState, LetterState, Reason, RollupLevel, RollupScope
from jobs.metrics import lost
from jobs.metrics.storing import store
from jobs.metrics.workers import boots_now
from jobs.models import DeadLetter, Death, FailureGroup, OutboxMessage, Rollup, Run, WorkerBoot
from tests.factories import make_item, make_letter, make_operation, make_record
from tests.metrics.batches import NOW, make_batch, make_run, make_running

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

LATER = NOW + timedelta(seconds=31)


def make_outbox_row(task_id: str, publication_id: str, **fields: Any) -> OutboxMessage:
    headers = {
        "task": "shop.tasks.send_receipt",
        "id": task_id,
        "retries": 0,
        "jobs-publication": publication_id,
    }
    values: dict[str, Any] = {
        "task": "shop.tasks.send_receipt",
        "task_id": task_id,
        "queue": "critical",
        "routing_key": "critical",
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "body": b'[[], {"order_id": 48213}, {}]',
        "headers": headers,
        "properties": {"correlation_id": task_id},
        "state": OutboxMessage.State.PUBLISHED,
        "created_at": NOW,
        "available_at": NOW,
        "published_at": NOW,
    }
    return OutboxMessage.objects.create(**{**values, **fields})


def lose(*running: Any, at: datetime = LATER, **fields: Any) -> int:
    """Let a worker report what it runs and say nothing more; return how many letters that makes."""
    store([make_batch(running=list(running), **fields)], now=NOW)
    return lost.declare_lost(now=at)


def test_an_early_acknowledged_job_of_a_lost_worker_becomes_a_dead_letter():
    job = make_running(attempt=2)

    assert lose(job) == 1

    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.state, letter.task) == (Reason.WORKER_LOST, LetterState.DEAD, job.task)
    assert (letter.task_id, letter.root_id, letter.queue) == (job.task_id, job.root_id, "critical")
    assert (letter.worker, letter.died_at) == ("celery@pay-1", NOW)
    assert letter.error.startswith("Its worker fell silent while it ran this job")
    assert letter.unreplayable == "Its message was lost with its worker, so there is nothing to send."
    death = Death.objects.get()
    assert (death.attempt, death.boot_id, death.details["publication"]) == (2, "boot-1", job.publication_id)
    boot = WorkerBoot.objects.get()
    assert (boot.lost_at, boot.jobs_lost) == (LATER, 1)


def test_its_message_is_taken_from_the_outbox_and_can_be_replayed():
    job = make_running()
    make_outbox_row(job.task_id, uuid.uuid4().hex, body=b"another")
    row = make_outbox_row(job.task_id, job.publication_id)

    lose(job)

    letter = DeadLetter.objects.get()
    assert letter.unreplayable == ""
    assert bytes(letter.message.body) == row.body
    assert letter.message.headers == row.headers
    assert letter.arguments_preview == "order_id=48213"
    assert lost.FIRST_MESSAGE not in letter.error


def test_a_retry_takes_the_message_it_was_first_sent_with_and_says_so():
    job = make_running(attempt=3)
    make_outbox_row(job.task_id, uuid.uuid4().hex)

    lose(job)

    letter = DeadLetter.objects.get()
    assert letter.unreplayable == ""
    assert letter.error.endswith(lost.FIRST_MESSAGE)


def test_a_row_of_another_task_with_the_same_id_is_not_its_message():
    job = make_running()
    make_outbox_row(job.task_id, uuid.uuid4().hex, task="shop.tasks.other")

    lose(job)

    assert DeadLetter.objects.get().unreplayable != ""


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def test_a_message_that_no_record_may_carry_is_left_out_and_the_job_is_still_told():
    job, other = make_running(), make_running()
    make_outbox_row(job.task_id, job.publication_id, headers={"task": "t", "x": nested(150)})

    assert lose(job, other) == 2

    assert {letter.unreplayable for letter in DeadLetter.objects.all()} == {
        "Its message was lost with its worker, so there is nothing to send."
    }


def test_a_late_acknowledged_job_is_not_lost():
    assert lose(make_running(is_acknowledged=False)) == 0

    assert WorkerBoot.objects.get().lost_at == LATER
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize(
    ("fields", "seconds", "is_lost"),
    [
        ({}, 29, False),
        ({}, 31, True),
        ({"is_goodbye": True}, 3_600, False),
        ({"pool": "solo"}, 3_599, False),
        ({"pool": "solo"}, 3_601, True),
    ],
)
def test_a_worker_is_lost_after_thirty_seconds_unless_it_said_goodbye(fields, seconds, is_lost):
    lose(at=NOW + timedelta(seconds=seconds), **fields)

    assert (WorkerBoot.objects.get().lost_at is not None) == is_lost


def test_declaring_it_twice_makes_one_letter():
    assert lose(make_running()) == 1
    assert lost.declare_lost(now=LATER + timedelta(seconds=5)) == 0

    assert (DeadLetter.objects.count(), WorkerBoot.objects.get().jobs_lost) == (1, 1)


def test_a_job_whose_death_was_captured_is_no_second_death():
    job = make_running()
    store_records([make_record(publication_id=job.publication_id, task_id=job.task_id)], now=NOW)

    assert lose(job) == 0

    assert DeadLetter.objects.get().reason == Reason.FAILED


def test_a_job_whose_end_was_told_is_not_lost():
    job = make_running()
    run = make_run(task_id=job.task_id, publication_id=job.publication_id)

    assert lose(job, runs=[run]) == 0
    assert not DeadLetter.objects.exists()


def test_a_job_that_went_on_elsewhere_is_not_lost():
    ran, runs = make_running(attempt=1), make_running()
    store(
        [
            make_batch(
                [make_run(task_id=ran.task_id, attempt=2)],
                boot_id="boot-2",
                running=[make_running(task_id=runs.task_id, attempt=1, is_acknowledged=False)],
            )
        ],
        now=LATER,
    )

    assert lose(ran, runs) == 0


def test_a_run_from_before_its_worker_started_says_nothing():
    job = make_running()
    earlier = make_run(
        task_id=job.task_id, publication_id="another", attempt=5, finished_at=NOW.timestamp() - 7_200
    )
    store([make_batch([earlier], boot_id="boot-2")], now=LATER)

    assert lose(job) == 1


def test_a_replayed_job_that_is_lost_leaves_its_letter_dead_again():
    letter = make_letter(state=LetterState.REPLAYING, replays=1)
    item = make_item(make_operation(), letter)
    job = make_running(task_id=item.task_id, replay_of=letter.uuid.hex, replay_item=item.pk)

    assert lose(job) == 1

    letter.refresh_from_db()
    item.refresh_from_db()
    assert (letter.state, letter.deaths, letter.reason) == (LetterState.DEAD, 2, Reason.WORKER_LOST)
    assert item.state == ItemState.DIED
    assert DeadLetter.objects.count() == 1


def test_the_outcome_of_a_replayed_job_that_was_not_lost_after_all_counts():
    letter = make_letter(state=LetterState.REPLAYING, replays=1)
    item = make_item(make_operation(), letter)
    lose(make_running(task_id=item.task_id, replay_of=letter.uuid.hex, replay_item=item.pk))
    store([make_batch(sequence=2)], now=LATER)

    done = make_record(
        kind="outcome", reason="done", task_id=item.task_id, replay_of=letter.uuid.hex, replay_item=item.pk
    )
    store_records([done], now=LATER)

    letter.refresh_from_db()
    item.refresh_from_db()
    assert (letter.state, item.state) == (LetterState.RESOLVED, ItemState.DONE)


def test_a_worker_that_comes_back_resolves_its_letters():
    job = make_running()
    lose(job)

    store([make_batch(sequence=2, running=[job])], now=LATER)

    boot = WorkerBoot.objects.get()
    assert (boot.lost_at, boot.presumed, boot.jobs_lost) == (None, [], 1)
    letter = DeadLetter.objects.get()
    assert letter.state == LetterState.RESOLVED
    assert letter.delete_after is not None
    assert letter.error.endswith(lost.CAME_BACK)
    assert Death.objects.get().error == letter.error
    assert FailureGroup.objects.get().state == GroupState.RESOLVED


def test_a_batch_from_before_the_silence_brings_nobody_back():
    store([make_batch(sequence=5, running=[make_running()])], now=NOW)
    lost.declare_lost(now=LATER)

    store([make_batch([make_run()], sequence=4), make_batch(sequence=5)], now=LATER)

    assert WorkerBoot.objects.get().lost_at == LATER
    assert DeadLetter.objects.get().state == LetterState.DEAD


def test_a_goodbye_that_comes_late_is_a_comeback():
    lose(make_running())

    store([make_batch(sequence=2, is_goodbye=True)], now=LATER)

    assert [boot.state for boot in boots_now(now=LATER)] == ["gone"]
    assert DeadLetter.objects.get().state == LetterState.RESOLVED


def test_a_job_lost_a_second_time_is_a_letter_again():
    job = make_running()
    lose(job)
    store([make_batch(sequence=2, running=[job])], now=LATER)

    assert lost.declare_lost(now=LATER + timedelta(seconds=31)) == 1

    states = DeadLetter.objects.order_by("pk").values_list("state", flat=True)
    assert list(states) == [LetterState.RESOLVED, LetterState.DEAD]


def test_a_death_that_the_agent_captured_comes_with_its_message_whatever_was_presumed():
    job = make_running()
    lose(job)
    captured = make_record(publication_id=job.publication_id, task_id=job.task_id, reason="timed_out")

    store_records([captured], now=LATER)
    assert lost.settle(now=LATER) == 1

    presumed, real = DeadLetter.objects.order_by("pk")
    assert (presumed.state, real.state) == (LetterState.RESOLVED, LetterState.DEAD)
    assert presumed.error.endswith(lost.HAS_ENDED)
    assert (real.reason, real.unreplayable) == (Reason.TIMED_OUT, "")
    assert lost.settle(now=LATER) == 0


def test_a_retry_that_was_sent_before_the_worker_was_killed_settles_the_letter():
    job, other = make_running(), make_running()
    lose(job, other)
    store([make_batch([make_run(task_id=job.task_id, attempt=1)], boot_id="boot-2")], now=LATER)

    assert lost.settle(now=LATER) == 1

    letter = DeadLetter.objects.get(task_id=job.task_id)
    assert (letter.state, letter.error.endswith(lost.WENT_ON)) == (LetterState.RESOLVED, True)
    assert DeadLetter.objects.get(task_id=other.task_id).state == LetterState.DEAD


@pytest.mark.parametrize(
    "fields",
    [{"state": LetterState.PURGED}, {"state": LetterState.REPLAYING, "replays": 1}, {"replays": 1}],
    ids=["purged", "replaying", "replayed"],
)
def test_what_an_operator_did_with_the_letter_stays(fields):
    lose(make_running())
    DeadLetter.objects.update(**fields)

    store([make_batch(sequence=2)], now=LATER)

    assert DeadLetter.objects.get().state == fields.get("state", LetterState.DEAD)


@pytest.mark.parametrize("has_ended", [False, True], ids=["came back", "has ended"])
@pytest.mark.parametrize("state", [LetterState.REPLAYING, LetterState.RESOLVED])
def test_a_letter_that_was_replayed_before_its_worker_came_back_says_that_the_job_may_have_run_twice(
    state, has_ended
):
    job, purged = make_running(), make_running()
    lose(job, purged)
    DeadLetter.objects.filter(task_id=job.task_id).update(state=state, replays=1)
    DeadLetter.objects.filter(task_id=purged.task_id).update(state=LetterState.PURGED)

    if has_ended:
        run = make_run(task_id=job.task_id, publication_id=job.publication_id)
        store([make_batch([run], boot_id="another")], now=LATER)
        lost.settle(now=LATER)
    else:
        store([make_batch(sequence=2, running=[job])], now=LATER)

    letter = DeadLetter.objects.get(task_id=job.task_id)
    assert letter.state == state
    words = lost.HAS_ENDED if has_ended else lost.CAME_BACK
    assert Death.objects.get(letter=letter).error.endswith(f"{words} {lost.REPLAYED_BEFORE}")
    # Of one that nobody sent again there is nothing to say.
    assert lost.REPLAYED_BEFORE not in Death.objects.get(letter__task_id=purged.task_id).error


def test_a_later_attempt_of_a_job_that_was_replayed_tells_nothing_of_the_first():
    """It may be that of the replay, which can keep the job's id."""
    job = make_running()
    lose(job)
    DeadLetter.objects.update(state=LetterState.REPLAYING, replays=1)
    store([make_batch([make_run(task_id=job.task_id, attempt=1)], boot_id="another")], now=LATER)

    assert lost.settle(now=LATER) == 1

    assert Death.objects.get().error == lost.ERROR


def test_many_jobs_of_a_worker_are_lost_in_a_fixed_number_of_statements(django_assert_max_num_queries):
    store([make_batch(running=[make_running() for _ in range(60)])], now=NOW)
    for job in WorkerBoot.objects.get().running[:30]:
        make_outbox_row(job["task_id"], job["publication_id"])

    with django_assert_max_num_queries(33):
        assert lost.declare_lost(now=LATER) == 60

    assert DeadLetter.objects.filter(unreplayable="").count() == 30


def test_settling_asks_as_often_for_many_workers_as_for_one(monkeypatch, django_assert_num_queries):
    def lose_one(number: int) -> str:
        job = make_running()
        lose(job, boot_id=f"boot-{number}", hostname=f"celery@{number}")
        return job.task_id

    lose_one(0)
    with django_assert_num_queries(4):
        assert lost.settle(now=LATER) == 0
    ids = [lose_one(number) for number in range(1, 8)]
    with django_assert_num_queries(4):
        assert lost.settle(now=LATER) == 0

    monkeypatch.setattr(lost, "ASKED_TOGETHER", 3)
    ended = [make_run(task_id=task_id, attempt=1) for task_id in (ids[0], ids[-1])]
    store([make_batch(ended, boot_id="living")], now=LATER)
    assert lost.settle(now=LATER) == 2
    assert DeadLetter.objects.filter(state=LetterState.DEAD).count() == 6


def test_an_end_from_before_one_of_several_lost_workers_started_says_nothing_of_its_job():
    late, early = make_running(), make_running()
    lose(late, boot_id="late", hostname="celery@late")
    store(
        [
            make_batch(
                boot_id="early", hostname="celery@early", running=[early], started_at=NOW.timestamp() - 9_000
            )
        ],
        now=NOW,
    )
    lost.declare_lost(now=LATER)
    before = NOW.timestamp() - 7_200
    runs = [make_run(task_id=job.task_id, attempt=5, finished_at=before) for job in (late, early)]
    store([make_batch(runs, boot_id="living", hostname="celery@living")], now=LATER)

    assert lost.settle(now=LATER) == 1

    assert DeadLetter.objects.get(state=LetterState.DEAD).task_id == late.task_id


def dead_in_rollups() -> dict[tuple[str, str], int]:
    """Return the deaths that the rollups of each level and scope count."""
    rows = Rollup.objects.values_list("level", "scope").annotate(Sum("dead"))
    return {(level, scope): dead for level, scope, dead in rows.order_by()}


def everywhere(dead: int) -> dict[tuple[str, str], int]:
    return {(level.value, scope.value): dead for level in RollupLevel for scope in RollupScope}


def test_a_lost_job_is_counted_as_a_death_at_the_minute_of_its_loss_in_all_rollups():
    lose(make_running(), make_running(), make_running(queue="low"))

    assert dead_in_rollups() == everywhere(3)
    minute = Rollup.objects.get(level="minute", scope="both", queue="critical")
    assert (minute.task, minute.starts_at) == ("shop.tasks.send_receipt", LATER.replace(second=0))
    assert (minute.dead, minute.received, minute.done, bytes(minute.runtime)) == (2, 0, 0, b"")


def test_a_lost_job_is_an_attempt_of_the_jobs_list_that_goes_with_its_death():
    job = make_running(attempt=2)
    lose(job)

    run = Run.objects.get()
    assert (run.task_id, run.root_id, run.task, run.queue) == (job.task_id, job.root_id, job.task, "critical")
    assert (run.outcome, run.attempt, run.worker, run.error_type) == (
        "dead",
        2,
        "celery@pay-1",
        lost.ERROR_TYPE,
    )
    assert (run.finished_at, run.runtime_seconds, run.latency_seconds) == (LATER, None, None)
    assert run.started_at == NOW - timedelta(seconds=1)
    assert run.publication_id == Death.objects.get().publication_id


def test_a_lost_job_counts_once_whoever_declares_it_and_what_is_not_lost_does_not():
    lose(make_running(), make_running(is_acknowledged=False))
    lost.declare_lost(now=LATER)
    lost.settle(now=LATER)

    assert dead_in_rollups() == everywhere(1)
    assert Run.objects.count() == 1


def test_the_count_of_a_lost_job_is_not_taken_back_when_its_worker_comes_back_or_its_end_is_told():
    job, other = make_running(), make_running()
    lose(job, other)
    ended = make_run(task_id=other.task_id, publication_id=other.publication_id)
    store([make_batch([ended], boot_id="boot-2")], now=LATER)
    assert lost.settle(now=LATER) == 1
    store([make_batch(sequence=2, running=[job])], now=LATER)

    assert dead_in_rollups() == everywhere(2)
    assert Run.objects.filter(outcome="dead").count() == 2
    assert DeadLetter.objects.filter(state=LetterState.DEAD).count() == 0


@pytest.mark.django_db(transaction=True)
def test_two_runops_that_declare_a_worker_lost_at_once_count_its_job_once():
    store([make_batch(running=[make_running()])], now=NOW)

    def declare(_: int) -> int:
        try:
            return lost.declare_lost(now=LATER)
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as both:
        assert sorted(both.map(declare, range(2))) == [0, 1]

    assert dead_in_rollups() == everywhere(1)
    assert Run.objects.count() == 1


def test_a_replayed_job_that_is_lost_counts_as_a_death():
    letter = make_letter(state=LetterState.REPLAYING, replays=1)
    item = make_item(make_operation(), letter)
    lose(make_running(task_id=item.task_id, replay_of=letter.uuid.hex, replay_item=item.pk))

    assert dead_in_rollups() == everywhere(1)


def test_names_too_wide_for_the_index_of_the_jobs_list_do_not_hinder_the_letters():
    wide = "𝕏" * 255
    assert lose(make_running(task=wide, queue=wide), hostname=wide) == 1

    assert len(Run.objects.get().task.encode()) <= 600
