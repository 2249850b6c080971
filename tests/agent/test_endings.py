"""FAILURE_MODES 1B: the run starts and ends badly."""

from __future__ import annotations

import pytest

from tests.agent.fleet import Fleet, Worker
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def test_row_14_wrong_arguments_are_a_failure(worker: Worker) -> None:
    sent = worker.send("shop.ship", 1, "a street", "too much")

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "failed")
    assert record.error is not None
    assert record.error.type == "builtins.TypeError"
    assert record.message is not None
    assert record.message.body == sent.body


def test_row_16_an_exception_is_captured_whole(worker: Worker) -> None:
    order = {"order": {"id": 7, "lines": [1, 2, [3, {"ä": "日本"}]]}}
    sent = worker.send(
        "shop.ship", 1, "ä street", kwargs={"express": True}, headers={"tenant": "blue"}, priority=3
    )
    nested = worker.send("shop.fail", order, kwargs=order)

    record = worker.record_of(sent)

    assert (record.kind, record.reason, record.attempt) == ("death", "failed", 0)
    assert (record.task, record.task_id, record.root_id) == ("shop.ship", sent.task_id, sent.task_id)
    assert record.message is not None
    assert record.message.body == sent.body
    assert record.message.headers["tenant"] == "blue"
    assert record.message.properties["priority"] == 3
    assert (record.message.exchange, record.message.routing_key, record.message.queue) == (
        "",
        "celery",
        "celery",
    )
    assert (record.message.content_type, record.message.content_encoding) == ("application/json", "utf-8")
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("builtins.ValueError", "cannot ship 1")
    assert "in ship" in record.error.traceback
    assert record.parameters == ["order_id", "address"]
    assert record.publication_id == record.message.headers["jobs-publication"]
    assert record.published_at is not None
    assert record.started_at is not None
    assert record.published_at <= record.started_at <= record.at
    assert record.worker.endswith("@test")
    nested_record = worker.record_of(nested)
    assert nested_record.message is not None
    assert nested_record.message.body == nested.body


def test_row_16_a_late_acknowledged_failure_is_captured_and_leaves_the_queue(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.fail_late"))

    assert (record.kind, record.reason) == ("death", "failed")


def test_row_19_a_result_that_cannot_be_written_happened_after_the_effects(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.unserialisable"))

    assert (record.kind, record.reason) == ("death", "result_not_stored")


def test_row_20_an_exception_that_cannot_be_pickled_is_kept_as_text(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.unpicklable"))

    assert (record.kind, record.reason) == ("death", "failed")
    assert record.error is not None
    assert record.error.type == "tests.agent.shop.Unpicklable"
    assert "one and two" in record.error.message
    assert "in unpicklable" in record.error.traceback


def test_row_20_an_exception_that_arrives_as_its_base_class_keeps_its_name(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.http"))

    assert record.error is not None
    assert (record.error.type, record.error.message) == (
        "urllib.error.HTTPError",
        "HTTP Error 503: Unavailable",
    )


def test_row_21_a_killed_child_is_a_lost_worker(prefork: Worker) -> None:
    record = prefork.record_of(prefork.send("shop.kill"))

    assert (record.kind, record.reason) == ("death", "worker_lost")
    assert record.details == {"signal": "SIGKILL"}


def test_row_25_a_memory_error_does_not_stop_the_worker(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.memory"))

    assert (record.kind, record.reason) == ("death", "worker_lost")
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("builtins.MemoryError", "4 GB")
    assert "in memory" in record.error.traceback


@pytest.mark.parametrize("task", ["shop.leave", "shop.leave_late"])
def test_rows_26_27_28_sys_exit_in_a_job_is_a_lost_worker(worker: Worker, task: str) -> None:
    record = worker.record_of(worker.send(task))

    assert (record.kind, record.reason) == ("death", "worker_lost")
    assert record.details == {"exit_code": 3}
    assert record.error is not None
    assert record.error.type == "billiard.exceptions.WorkerLostError"


def test_rows_26_27_28_a_keyboard_interrupt_in_a_job_is_a_lost_worker(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.interrupt"))

    assert (record.kind, record.reason) == ("death", "worker_lost")


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_row_30_a_hard_time_limit_fires_two_hooks_and_is_one_death(fleet: Fleet, pool: str) -> None:
    worker = fleet.worker(pool)

    record = worker.record_of(worker.send("shop.hard_limit"))

    assert (record.kind, record.reason) == ("death", "timed_out")
    assert record.details == {"hard_limit": 1}


def test_row_31_a_soft_time_limit_is_timed_out(prefork: Worker) -> None:
    record = prefork.record_of(prefork.send("shop.soft_limit"))

    assert (record.kind, record.reason) == ("death", "timed_out")
    assert record.details == {"soft_limit": 1}
    assert record.error is not None
    assert record.error.type == "billiard.exceptions.SoftTimeLimitExceeded"
    assert "in soft_limit" in record.error.traceback


def test_row_31_a_job_that_catches_its_soft_limit_is_no_death(prefork: Worker) -> None:
    path = prefork.path()
    sent = prefork.send("shop.soft_limit_caught", str(path))

    prefork.wait_for_line(path)
    prefork.run_fence()

    assert prefork.records_of(sent.task_id) == []


def test_row_33_revoked_before_its_start_is_an_ending_and_no_death(worker: Worker) -> None:
    task_id = f"revoked-{worker.path().name}"
    worker.revoke(task_id)

    record = worker.record_of(worker.send("shop.fail", task_id=task_id))

    assert (record.kind, record.reason) == ("ending", "revoked")
    assert record.message is None


def test_row_34_terminated_while_running_is_an_ending_and_no_death(prefork: Worker) -> None:
    started = prefork.path("started")
    sent = prefork.send("shop.wait", str(started), "never")
    prefork.wait_for_line(started)

    prefork.app.control.terminate(sent.task_id)

    record = prefork.record_of(sent)
    assert (record.kind, record.reason) == ("ending", "terminated")


def test_row_36_expired_is_a_death(worker: Worker) -> None:
    sent = worker.send("shop.fail", 5, expires=-1)

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "expired")
    assert record.details["expires"] == record.message.headers["expires"]  # type: ignore[union-attr]
    assert record.message is not None
    assert record.message.body == sent.body


@pytest.mark.parametrize("task", ["shop.reject", "shop.reject_late"])
def test_row_39_a_job_that_rejects_itself_is_a_death(worker: Worker, task: str) -> None:
    record = worker.record_of(worker.send(task))

    assert (record.kind, record.reason) == ("death", "rejected")
    assert record.error is not None
    assert record.error.message == "not this one"


def test_row_40_an_early_acknowledged_job_cannot_be_put_back_and_dies(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.reject_requeue_early"))

    assert (record.kind, record.reason) == ("death", "rejected")
    assert record.details == {"requeue": True}


def test_row_41_an_ignored_job_is_an_ending_and_no_death(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.ignore"))

    assert (record.kind, record.reason) == ("ending", "ignored")


def test_row_41_a_job_that_replaces_itself_ended_well(worker: Worker) -> None:
    path = worker.path()
    sent = worker.send("shop.replace", str(path))

    worker.wait_for_line(path)
    worker.run_fence()

    assert worker.records_of(sent.task_id) == []


@pytest.mark.parametrize(
    ("task", "error_type"),
    [
        ("shop.retry_with_error", "builtins.ConnectionError"),
        ("shop.retry_without_error", "celery.exceptions.MaxRetriesExceededError"),
        ("shop.autoretry", "builtins.ConnectionError"),
    ],
)
def test_row_46_exhausted_retries_are_told_by_their_number(
    worker: Worker, task: str, error_type: str
) -> None:
    record = worker.record_of(worker.send(task))

    assert (record.kind, record.reason, record.attempt) == ("death", "retries_exhausted", 1)
    assert record.details == {"attempts": 2}
    assert record.error is not None
    assert record.error.type == error_type


def test_row_46_a_retried_job_that_succeeds_is_no_death(worker: Worker) -> None:
    path = worker.path()
    sent = worker.send("shop.retry_once", str(path))

    worker.wait_for_line(path, count=2)
    worker.run_fence()

    assert worker.records_of(sent.task_id) == []


def test_each_attempt_is_a_publication_of_its_own(worker: Worker) -> None:
    path = worker.path()
    sent = worker.send("shop.retry_once", str(path), "fail", headers={"jobs-publication": "stale"})

    record = worker.record_of(sent)

    assert record.attempt == 1
    assert record.publication_id != "stale"
    wait_until(lambda: worker.lines(path) == ["attempt 0", "attempt 1"], seconds=5)
