"""Workers that are stopped and started while jobs come in: nothing is lost and nothing is repeated."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job_fleet import JobFleet, job_fleet
from tests.job_ledger import GO
from tests.rabbit import VirtualHost
from tests.servers import wait_until

pytestmark = pytest.mark.worker

APPLICATION = "tests.restart_shop"
KINDS = ("restarted.plain", "restarted.plain", "restarted.flaky", "restarted.paced")


@pytest.fixture
def redis_fleet(tmp_path: Path) -> Iterator[JobFleet]:
    with job_fleet(tmp_path, 0, application=APPLICATION) as fleet:
        yield fleet


@pytest.fixture
def rabbit_fleet(tmp_path: Path, rabbit: VirtualHost) -> Iterator[JobFleet]:
    with job_fleet(tmp_path, 0, application=APPLICATION, rabbit=rabbit) as fleet:
        yield fleet


class Traffic:
    """Publishes jobs of all kinds, a few at a time, until it is told to stop."""

    def __init__(self, fleet: JobFleet) -> None:
        self.sent = 0
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._stop.wait(0.2):
            for kind in KINDS:
                self.sent += self._fleet.send(kind, [(next(numbers),)])


def survive_restarts(fleet: JobFleet, *, rounds: int, workers: int) -> None:
    """Stop and start all workers a few times under traffic, take stock, let the rest run, take stock again."""
    codes = []
    with Traffic(fleet) as traffic:
        for _ in range(rounds):
            started = fleet.start(workers)
            enough = fleet.ledger_length() + random.randint(20, 60)
            wait_until(
                lambda enough=enough: fleet.ledger_length() >= enough, seconds=60, what="jobs that run"
            )
            codes += fleet.terminate(started)
    lines = fleet.ledger()
    ended = Counter(line["number"] for line in lines if line["what"] == "end")
    begun = Counter(line["number"] for line in lines if line["what"] == "start")

    assert codes == [0] * (rounds * workers)
    # What ran was let to its end, and ran once.
    assert begun == ended
    assert set(ended.values()) == {1}, [number for number, times in ended.items() if times > 1]
    # RabbitMQ puts back what a worker had fetched once it has seen that its connection is gone.
    wait_until(
        lambda: traffic.sent == len(ended) + fleet.waiting(),
        seconds=10,
        what=f"each of {traffic.sent} jobs to have ended or to wait ({fleet.directory})",
    )

    last = fleet.start(2)
    wait_until(
        lambda: not fleet.waiting() and _count(fleet, "end") >= traffic.sent,
        seconds=90,
        what=f"the rest ({fleet.directory})",
    )
    fleet.terminate(last)
    everything = Counter(line["number"] for line in fleet.ledger() if line["what"] == "end")

    assert everything == Counter(range(traffic.sent))
    assert max(Counter(line["number"] for line in fleet.ledger() if line["what"] == "failed").values()) == 1
    assert fleet.waiting() == 0
    assert fleet.dead() == 0


def _count(fleet: JobFleet, what: str) -> int:
    return sum(line["what"] == what for line in fleet.ledger())


def test_twenty_restarts_under_load_lose_and_repeat_nothing(redis_fleet: JobFleet) -> None:
    survive_restarts(redis_fleet, rounds=5, workers=4)


def test_restarts_on_rabbitmq_lose_and_repeat_nothing(rabbit_fleet: JobFleet) -> None:
    survive_restarts(rabbit_fleet, rounds=2, workers=4)


def test_a_worker_that_is_told_to_stop_lets_its_job_finish_and_leaves_the_rest(redis_fleet: JobFleet) -> None:
    (worker,) = redis_fleet.start(1)
    redis_fleet.send("restarted.long", [(0,)])
    wait_until(redis_fleet.ledger_length, what="the long job to start")
    redis_fleet.send("restarted.plain", ((number,) for number in range(1, 6)))

    assert worker.process is not None
    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: b"Warm shutdown" in worker.log.read_bytes(), what="the worker to have heard it")
    assert worker.is_alive
    with redis_fleet.server.client() as client:
        client.set(GO, 1)

    assert worker.process.wait(timeout=60) == 0
    assert [(line["what"], line["number"]) for line in redis_fleet.ledger()] == [("start", 0), ("end", 0)]
    assert redis_fleet.waiting() == 5
