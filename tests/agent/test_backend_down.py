"""FAILURE_MODES 1A and 1B with a result backend that is down: it must never matter."""

from __future__ import annotations

import pytest

from tests.agent.fleet import Fleet, Worker

pytestmark = pytest.mark.worker


def test_row_2_an_unregistered_task(worker_without_backend: Worker) -> None:
    worker = worker_without_backend
    sent = worker.send("nosuch.task", 1)

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "unregistered")
    assert record.message is not None
    assert record.message.body == sent.body


@pytest.mark.parametrize("task", ["shop.fail", "shop.fail_late"])
def test_rows_17_29_a_failure_is_the_jobs_own_and_not_the_backends(
    worker_without_backend: Worker, task: str
) -> None:
    worker = worker_without_backend
    sent = worker.send(task, 1)

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "failed")
    assert record.message is not None
    assert record.message.body == sent.body
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("builtins.ValueError", "no such order")
    assert f"in {task.removeprefix('shop.')}" in record.error.traceback
    assert "redis" not in record.error.traceback
    assert "Connection refused" in record.details["bookkeeping_error"]


def test_row_18_a_job_that_succeeded_is_not_a_failed_one(worker_without_backend: Worker) -> None:
    worker = worker_without_backend
    path = worker.path()
    sent = worker.send("shop.mark_late", str(path), "ran")

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "result_not_stored")
    assert worker.lines(path) == ["ran"]


def test_row_17_exhausted_retries(worker_without_backend: Worker) -> None:
    worker = worker_without_backend

    record = worker.record_of(worker.send("shop.fail", retries=5))

    assert (record.reason, record.attempt) == ("retries_exhausted", 5)


def test_row_25_a_memory_error(worker_without_backend: Worker) -> None:
    worker = worker_without_backend

    record = worker.record_of(worker.send("shop.memory"))

    assert (record.kind, record.reason) == ("death", "worker_lost")
    assert record.error is not None
    assert record.error.type == "builtins.MemoryError"


def test_row_27_sys_exit(worker_without_backend: Worker) -> None:
    worker = worker_without_backend

    record = worker.record_of(worker.send("shop.leave_late"))

    assert (record.kind, record.reason) == ("death", "worker_lost")


@pytest.mark.parametrize(
    ("task", "reason"),
    [("shop.kill", "worker_lost"), ("shop.hard_limit", "timed_out"), ("shop.soft_limit", "timed_out")],
)
def test_rows_17_21_30_31_what_only_prefork_has(fleet: Fleet, task: str, reason: str) -> None:
    worker = fleet.worker("prefork", dead_backend=True)

    record = worker.record_of(worker.send(task))

    assert (record.kind, record.reason) == ("death", reason)


def test_row_30_a_hard_limit_on_gevent(fleet: Fleet) -> None:
    worker = fleet.worker("gevent", dead_backend=True)

    record = worker.record_of(worker.send("shop.hard_limit"))

    assert (record.kind, record.reason) == ("death", "timed_out")


def test_row_33_a_revoked_job(worker_without_backend: Worker) -> None:
    worker = worker_without_backend
    task_id = f"revoked-{worker.path().name}"
    worker.revoke(task_id)

    record = worker.record_of(worker.send("shop.fail", task_id=task_id))

    assert (record.kind, record.reason) == ("ending", "revoked")


def test_row_38_an_expired_job_does_not_stop_the_queue(worker_without_backend: Worker) -> None:
    worker = worker_without_backend

    record = worker.record_of(worker.send("shop.fail", expires=-1))

    assert (record.kind, record.reason) == ("death", "expired")


def test_row_39_a_rejected_job(worker_without_backend: Worker) -> None:
    worker = worker_without_backend

    record = worker.record_of(worker.send("shop.reject_late"))

    assert (record.kind, record.reason) == ("death", "rejected")


def test_row_4_an_undecodable_body(worker_without_backend: Worker) -> None:
    worker = worker_without_backend
    task_id = worker.path().name

    record = worker.record_of(worker.send_raw(b"{bad", headers={"task": "shop.fail", "id": task_id}))

    assert (record.kind, record.reason) == ("death", "undecodable")


def test_row_15_an_eta_that_cannot_be_converted(worker_without_backend: Worker) -> None:
    worker = worker_without_backend
    headers = {"task": "shop.fail", "id": worker.path().name, "eta": "9999-12-31T23:59:59-14:00"}

    record = worker.record_of(worker.send_raw(b"[[], {}, {}]", headers=headers))

    assert (record.kind, record.reason) == ("death", "malformed")
