"""FAILURE_MODES: the broker restarts under a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agent.fleet import POOLS, Worker
from tests.servers import RedisServer, wait_until

pytestmark = pytest.mark.worker


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A broker that this test alone stops."""
    server = RedisServer().start()
    yield server
    server.remove()


@pytest.fixture(params=[pool for pool in POOLS if pool != "gevent"])
def waiting_worker(request, server: RedisServer, tmp_path) -> Iterator[Worker]:
    """A worker that holds jobs whose time has not come."""
    worker = Worker(pool=request.param, broker_url=server.url, directory=tmp_path / request.param).start()
    for number in range(4):
        worker.send("shop.mark", str(worker.directory / "waited"), str(number), countdown=20)
    with server.client() as client:
        wait_until(lambda: client.hlen("unacked") == 4, what="the worker to take them")
    yield worker
    worker.stop()


def test_a_worker_in_which_jobs_wait_survives_a_broker_that_restarts_and_runs_them_in_time(
    waiting_worker: Worker, server: RedisServer
) -> None:
    server.stop()
    wait_until(
        lambda: (
            b"Connection to broker lost" in waiting_worker.log.read_bytes()
            or b"Cannot connect to" in waiting_worker.log.read_bytes()
            or not waiting_worker.is_alive
        ),
        what=f"the worker to notice ({waiting_worker.log})",
    )
    server.start()

    path = waiting_worker.path("after")
    waiting_worker.send("shop.mark", str(path), "after")
    wait_until(path.exists, seconds=60, what=f"a job after the restart ({waiting_worker.log})")
    assert waiting_worker.is_alive
    # Not an hour later, when Redis would hand them out again.
    waiting_worker.wait_for_line(waiting_worker.directory / "waited", count=4, seconds=60)
    assert sorted(waiting_worker.lines(waiting_worker.directory / "waited")) == ["0", "1", "2", "3"]
    wait_until(waiting_worker.is_drained, what="the queue to be drained")
