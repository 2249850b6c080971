"""The agent on brokers that are not Redis."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from kombu import Connection, Queue

from jobs.agent import wire
from tests.agent.fleet import Sent, Worker
from tests.rabbit import VirtualHost
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def taken_records(worker: Worker) -> list[wire.Record]:
    """Take what is on ``jobs.dead`` away, and return it."""
    records = []
    with worker.connection() as connection, connection.channel() as channel:
        queue = Queue(wire.DEAD_QUEUE, durable=True)(channel)
        queue.declare()
        while (message := queue.get()) is not None:
            records.append(wire.decode(message.body))
            message.ack()
    return records


def one_record(worker: Worker, sent: Sent) -> wire.Record:
    found: list[wire.Record] = []

    def arrived() -> list[wire.Record]:
        found.extend(record for record in taken_records(worker) if record.task_id == sent.task_id)
        return found

    wait_until(arrived, seconds=30, what=f"a record of {sent.task_id} ({worker.log})")
    path = worker.path("fence")
    worker.send("shop.mark", str(path))
    worker.wait_for_line(path)
    arrived()
    assert len(found) == 1, found
    assert worker.is_alive
    return found[0]


def test_rabbitmq_captures_and_keeps_the_priority(
    own_worker: Callable[..., Worker], rabbit: VirtualHost
) -> None:
    worker = own_worker("prefork", broker_url=rabbit.url, queue=f"q{uuid.uuid4().hex}").start()
    failed = worker.send("shop.ship", 1, "ä", headers={"tenant": "blue"}, priority=3)

    record = one_record(worker, failed)

    assert record.message is not None
    assert record.message.body == failed.body
    assert record.message.headers["tenant"] == "blue"
    assert record.message.queue == worker.queue
    assert record.message.properties["priority"] == 3
    assert "application_headers" not in record.message.properties
    assert record.reason == "failed"


@pytest.mark.parametrize(
    ("task", "reason"),
    [("nosuch.task", "unregistered"), ("shop.kill", "worker_lost"), ("shop.reject_late", "rejected")],
)
def test_rabbitmq_captures(
    own_worker: Callable[..., Worker], rabbit: VirtualHost, task: str, reason: str
) -> None:
    worker = own_worker("prefork", broker_url=rabbit.url, queue=f"q{uuid.uuid4().hex}").start()

    record = one_record(worker, worker.send(task))

    assert (record.kind, record.reason) == ("death", reason)


@pytest.mark.parametrize("quorum", [False, True], ids=["classic", "quorum"])
@pytest.mark.parametrize(
    ("task", "reason"), [("shop.poison", "worker_lost"), ("shop.reject_requeue", "rejected")]
)
def test_rabbitmq_lets_a_job_come_back_three_times(
    own_worker: Callable[..., Worker], rabbit: VirtualHost, task: str, reason: str, quorum: bool
) -> None:
    worker = own_worker("prefork", broker_url=rabbit.url, queue=f"q{uuid.uuid4().hex}")
    if quorum:
        declare_quorum_queue(worker)
    worker.start()
    path = worker.path()
    sent = worker.send(task, str(path))

    record = one_record(worker, sent)

    assert (record.kind, record.reason) == ("death", reason)
    assert record.details["comebacks"] == 3
    assert worker.lines(path) == ["ran"] * 4
    assert record.message is not None
    assert record.message.body == sent.body


@pytest.mark.parametrize("quorum", [False, True], ids=["classic", "quorum"])
def test_rabbitmq_stops_a_job_that_takes_the_whole_worker_down(
    own_worker: Callable[..., Worker], rabbit: VirtualHost, quorum: bool
) -> None:
    worker = own_worker("solo", broker_url=rabbit.url, queue=f"q{uuid.uuid4().hex}")
    if quorum:
        declare_quorum_queue(worker)
    path, others = worker.path("poison"), worker.path("others")
    sent = worker.send("shop.take_all_down", str(path))
    for number in range(3):
        worker.send("shop.mark_late", str(others), str(number))

    for _ in range(4):
        worker.start()
        wait_until(lambda: not worker.is_alive, seconds=30, what=f"the worker to die ({worker.log})")
    worker.start()
    record = one_record(worker, sent)

    assert (record.kind, record.reason) == ("death", "worker_lost")
    assert record.details == {"comebacks": 3}
    assert worker.lines(path) == ["ran"] * 4
    worker.wait_for_line(others, count=3)
    assert sorted(worker.lines(others)) == ["0", "1", "2"]
    assert taken_records(worker) == []


def test_a_job_that_comes_back_on_a_broker_without_a_count_is_counted_in_a_copy(
    own_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    worker = own_worker("prefork", broker_url="filesystem://", environment={"BROKER_FOLDER": str(folder)})
    worker.app.conf.broker_transport_options = {
        "data_folder_in": str(folder),
        "data_folder_out": str(folder),
        "control_folder": str(folder),
    }
    worker.start()
    path = worker.path()
    sent = worker.send("shop.reject_requeue", str(path), compression="zlib")

    record = one_record(worker, sent)

    assert (record.kind, record.reason) == ("death", "rejected")
    assert record.details == {"requeue": True, "comebacks": 3}
    assert worker.lines(path) == ["ran"] * 4


def declare_quorum_queue(worker: Worker) -> None:
    """Make the worker's queue a quorum queue, for the worker and for the client."""
    arguments = {"x-queue-type": "quorum"}
    worker.environment["QUORUM_QUEUE"] = worker.queue
    worker.app.conf.task_queues = [Queue(worker.queue, durable=True, queue_arguments=arguments)]
    with Connection(worker.broker_url) as connection, connection.channel() as channel:
        Queue(worker.queue, durable=True, queue_arguments=arguments)(channel).queue_declare()
