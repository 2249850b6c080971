"""What a replayed job reports, and which of its messages still are the replay."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from jobs.agent import wire
from tests.agent.fleet import Fleet, Sent, Worker

pytestmark = pytest.mark.worker


def replay(
    worker: Worker, task: str, *args: Any, embed: dict[str, Any] | None = None, **headers: Any
) -> Sent:
    """Publish a job as the console replays it: raw, with the replay's headers."""
    body = json.dumps(
        [args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None, **(embed or {})}]
    )
    made = {
        "task": task,
        "id": str(uuid.uuid4()),
        "retries": 0,
        wire.PUBLICATION_HEADER: uuid.uuid4().hex,
        wire.REPLAY_OF_HEADER: "0c5e6c0e-0000-4000-8000-000000000001",
        wire.REPLAY_ITEM_HEADER: 41,
        wire.REPLAY_NUMBER_HEADER: 2,
        **headers,
    }
    return worker.send_raw(body, headers=made)


def assert_is_the_replay(record: wire.Record) -> None:
    assert (record.replay_of, record.replay_item) == ("0c5e6c0e-0000-4000-8000-000000000001", 41)


@pytest.mark.parametrize("task", ["shop.mark", "shop.mark_late"])
def test_a_replay_that_succeeds_reports_its_outcome(worker: Worker, task: str) -> None:
    record = worker.record_of(replay(worker, task, str(worker.path())))

    assert (record.kind, record.reason, record.attempt) == ("outcome", "done", 0)
    assert record.message is None
    assert_is_the_replay(record)


def test_a_replay_that_dies_again_says_whose_it_is(worker: Worker) -> None:
    record = worker.record_of(replay(worker, "shop.fail", 1))

    assert (record.kind, record.reason) == ("death", "failed")
    assert_is_the_replay(record)


def test_a_replay_of_a_task_that_is_still_unregistered_says_whose_it_is(worker: Worker) -> None:
    record = worker.record_of(replay(worker, "nosuch.task"))

    assert (record.kind, record.reason) == ("death", "unregistered")
    assert_is_the_replay(record)


def test_a_replay_that_is_ignored_reports_its_outcome(worker: Worker) -> None:
    record = worker.record_of(replay(worker, "shop.ignore"))

    assert (record.kind, record.reason) == ("outcome", "ignored")
    assert_is_the_replay(record)


def test_a_replay_that_is_revoked_reports_its_outcome(worker: Worker) -> None:
    task_id = f"revoked-{worker.path().name}"
    worker.revoke(task_id)

    record = worker.record_of(replay(worker, "shop.fail", id=task_id))

    assert (record.kind, record.reason) == ("outcome", "revoked")
    assert_is_the_replay(record)


def test_a_replay_that_is_terminated_reports_its_outcome(prefork: Worker) -> None:
    started = prefork.path("started")
    sent = replay(prefork, "shop.wait", str(started), "never")
    prefork.wait_for_line(started)
    prefork.app.control.terminate(sent.task_id)

    record = prefork.record_of(sent)

    assert (record.kind, record.reason) == ("outcome", "terminated")


def test_a_retry_of_a_replay_is_the_replay(worker: Worker) -> None:
    path = worker.path()

    succeeded = worker.record_of(replay(worker, "shop.retry_once", str(path)))
    died = worker.record_of(replay(worker, "shop.retry_once", str(path), "fail"))

    assert (succeeded.kind, succeeded.reason, succeeded.attempt) == ("outcome", "done", 1)
    assert (died.kind, died.reason, died.attempt) == ("death", "failed", 1)
    assert died.message is not None
    assert died.message.headers[wire.REPLAY_NUMBER_HEADER] == 2
    assert_is_the_replay(succeeded)
    assert_is_the_replay(died)


def test_a_job_that_takes_the_place_of_a_replay_is_the_replay(worker: Worker) -> None:
    record = worker.record_of(replay(worker, "shop.replace", str(worker.path())))

    assert (record.kind, record.reason, record.task) == ("outcome", "done", "shop.mark")
    assert_is_the_replay(record)


def test_the_rest_of_a_replayed_chain_is_not_the_replay(worker: Worker) -> None:
    tail = worker.app.signature("shop.fail", (7,), immutable=True, task_id=str(uuid.uuid4()))
    callback = worker.app.signature("shop.fail", (8,), immutable=True, task_id=str(uuid.uuid4()))
    embed = {"chain": [dict(tail)], "callbacks": [dict(callback)]}

    head = worker.record_of(replay(worker, "shop.mark", str(worker.path()), embed=embed))

    assert head.reason == "done"
    for signature in (tail, callback):
        record = worker.record_of(Sent(signature.options["task_id"], b""))
        assert (record.reason, record.replay_of, record.replay_item) == ("failed", "", None)
        assert record.message is not None
        assert not any(name.startswith("jobs-replay") for name in record.message.headers)


def test_a_replay_that_succeeds_while_the_result_backend_is_down_may_not_be_called_done(fleet: Fleet) -> None:
    worker = fleet.worker("prefork", dead_backend=True)

    record = worker.record_of(replay(worker, "shop.mark", str(worker.path())))

    assert (record.kind, record.reason) == ("death", "result_not_stored")
    assert_is_the_replay(record)
