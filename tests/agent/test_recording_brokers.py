"""What workers tell on brokers that are not Redis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kombu import Connection, Queue

from jobs.agent import wire
from jobs.agent.batches import Batch
from tests.agent import recorded
from tests.agent.fleet import Worker
from tests.rabbit import VirtualHost
from tests.servers import wait_until

pytestmark = pytest.mark.worker


class Reader:
    """Takes batches off the queue as a collector does."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.bodies: list[bytes] = []

    def read(self) -> list[Batch]:
        with self.worker.connection() as connection, connection.channel() as channel:
            queue = Queue(wire.RUNS_QUEUE, durable=True)(channel)
            queue.declare()
            while (message := queue.get()) is not None:
                self.bodies.append(message.body)
                message.ack()
        return recorded.once(self.bodies)

    def counts(self, task: str | None = None) -> dict[str, int]:
        return recorded.counts_of(self.read(), task)


def run_jobs(worker: Worker) -> Reader:
    reader = Reader(worker)
    path = str(worker.path())
    for _ in range(3):
        worker.send("shop.mark_late", path)
        worker.send("shop.fail")
    worker.send("shop.retry_with_error")
    expected = {
        "shop.mark_late": {"received": 3, "done": 3},
        "shop.fail": {"received": 3, "dead": 3},
        "shop.retry_with_error": {"received": 2, "retried": 1, "dead": 1},
    }
    wait_until(
        lambda: all(reader.counts(task) == counts for task, counts in expected.items()),
        seconds=60,
        what=f"{expected} ({worker.log})",
    )
    return reader


def test_rabbitmq_gets_the_counts_on_a_durable_queue(
    own_worker: Callable[..., Worker], rabbit: VirtualHost
) -> None:
    worker = own_worker("prefork", broker_url=rabbit.url, queue="runs").start()

    reader = run_jobs(worker)

    runs = recorded.runs_of(reader.read())
    assert {run.queue for run in runs} == {"runs"}
    assert len(runs) == 8
    assert all(run.latency is not None and run.latency < 60 for run in runs)
    worker.stop()
    # The broker may have yet to read what the process wrote before its end.
    wait_until(lambda: reader.read()[-1].is_goodbye, what=f"the goodbye ({worker.log})")
    # Declared with other arguments it would be refused: it is durable.
    with Connection(rabbit.url) as connection, connection.channel() as channel:
        Queue(wire.RUNS_QUEUE, durable=True)(channel).queue_declare()


def test_rabbitmq_tells_the_queue_behind_an_exchange(
    own_worker: Callable[..., Worker], rabbit: VirtualHost
) -> None:
    """The routing key is not the queue's name; the consumer's tag says which queue it is."""
    worker = own_worker("prefork", broker_url=rabbit.url, queue="behind").start()
    reader = Reader(worker)
    with Connection(rabbit.url) as connection, connection.channel() as channel:
        channel.exchange_declare("front", "topic", durable=True)
        channel.queue_bind("behind", "front", "orders.#")
    with worker.connection() as connection, connection.channel() as channel:
        producer = worker.app.amqp.Producer(channel)
        worker.app.send_task("shop.nap", (0,), producer=producer, exchange="front", routing_key="orders.new")

    wait_until(lambda: reader.counts("shop.nap") == {"received": 1, "done": 1}, what=f"it ({worker.log})")

    [run] = [run for run in recorded.runs_of(reader.read()) if run.task == "shop.nap"]
    assert run.queue == "behind"


def test_a_full_queue_on_rabbitmq_gets_no_batch(
    own_worker: Callable[..., Worker], rabbit: VirtualHost
) -> None:
    with Connection(rabbit.url) as connection, connection.channel() as channel:
        channel.queue_delete(wire.RUNS_QUEUE)
        Queue(wire.RUNS_QUEUE, durable=True)(channel).queue_declare()
        for _ in range(10):
            connection.Producer(channel).publish(recorded.FILLER, routing_key=wire.RUNS_QUEUE)
    worker = own_worker(
        "prefork", broker_url=rabbit.url, queue="full", environment={"JOBS_RUNS_CAP": "10"}
    ).start()
    worker.send("shop.nap", 0)
    wait_until(lambda: b"nobody reads them" in worker.log.read_bytes(), what=f"its word ({worker.log})")

    with Connection(rabbit.url) as connection, connection.channel() as channel:
        declared = channel.queue_declare(wire.RUNS_QUEUE, passive=True)
        assert declared.message_count == 10
        channel.queue_purge(wire.RUNS_QUEUE)

    reader = Reader(worker)
    wait_until(
        lambda: reader.counts("shop.nap") == {"received": 1, "done": 1, "dropped": 1},
        what=f"the count ({worker.log})",
    )


def test_a_broker_of_files_gets_the_counts_too(own_worker: Callable[..., Worker], tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    folder.mkdir()
    worker = own_worker("prefork", broker_url="filesystem://", environment={"BROKER_FOLDER": str(folder)})
    worker.app.conf.broker_transport_options = {
        "data_folder_in": str(folder),
        "data_folder_out": str(folder),
        "control_folder": str(folder),
    }
    worker.start()

    run_jobs(worker)
