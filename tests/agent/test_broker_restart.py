"""FAILURE_MODES: the broker restarts under a worker."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.fleet import POOLS, Worker
from tests.servers import RedisServer, wait_until

pytestmark = pytest.mark.worker

# Longer than the broker is away, and until the workers have it back.
COUNTDOWN_SECONDS = 12


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A broker that this test alone stops."""
    server = RedisServer().start()
    yield server
    server.remove()


@pytest.fixture
def waiting_workers(server: RedisServer, tmp_path: Path) -> Iterator[list[Worker]]:
    """A worker of each pool, on a database of its own, that holds jobs whose time has not come."""
    pools = [pool for pool in POOLS if pool != "gevent"]
    workers = [
        Worker(pool=pool, broker_url=f"redis://127.0.0.1:{server.port}/{number}", directory=tmp_path / pool)
        for number, pool in enumerate(pools)
    ]
    try:
        with ThreadPoolExecutor(len(workers)) as threads:
            list(threads.map(Worker.start, workers))
        for worker in workers:
            for number in range(4):
                worker.send(
                    "shop.mark", str(worker.directory / "waited"), str(number), countdown=COUNTDOWN_SECONDS
                )
        for worker in workers:
            with worker.redis() as client:
                wait_until(lambda client=client: client.hlen("unacked") == 4, what="a worker to take them")
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def has_noticed(worker: Worker) -> bool:
    """Say whether a worker knows that its broker is away, or has died of it."""
    log = worker.log.read_bytes()
    return b"Connection to broker lost" in log or b"Cannot connect to" in log or not worker.is_alive


def test_workers_in_which_jobs_wait_survive_a_broker_that_restarts_and_run_them_in_time(
    waiting_workers: list[Worker], server: RedisServer
) -> None:
    server.stop()
    for worker in waiting_workers:
        wait_until(lambda worker=worker: has_noticed(worker), what=f"the worker to notice ({worker.log})")
    server.start()

    paths = {worker.pool: worker.path("after") for worker in waiting_workers}
    for worker in waiting_workers:
        worker.send("shop.mark", str(paths[worker.pool]), "after")
    for worker in waiting_workers:
        after, waited = paths[worker.pool], worker.directory / "waited"
        wait_until(after.exists, seconds=60, what=f"a job after the restart ({worker.log})")
        assert worker.is_alive, worker.log
        # Not an hour later, when Redis would hand them out again.
        worker.wait_for_line(waited, count=4, seconds=60)
        assert sorted(worker.lines(waited)) == ["0", "1", "2", "3"], worker.log
        wait_until(worker.is_drained, what=f"the queue to be drained ({worker.log})")
