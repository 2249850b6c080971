"""Fixtures of the agent's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.agent.fleet import POOLS, Fleet, Worker


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Workers that the whole session shares, on a Redis of their own."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.stop()


@pytest.fixture(params=POOLS)
def worker(request: pytest.FixtureRequest, fleet: Fleet) -> Worker:
    """The worker of each pool, with a result backend that works."""
    return fleet.worker(request.param)


@pytest.fixture
def prefork(fleet: Fleet) -> Worker:
    """The worker with the prefork pool."""
    return fleet.worker("prefork")


@pytest.fixture(params=POOLS)
def worker_without_backend(request: pytest.FixtureRequest, fleet: Fleet) -> Worker:
    """The worker of each pool, with a result backend that is down."""
    return fleet.worker(request.param, dead_backend=True)


@pytest.fixture
def own_worker(fleet: Fleet) -> Iterator[Callable[..., Worker]]:
    """Make a worker that only this test uses; it is stopped in the end."""
    made: list[Worker] = []

    def make(pool: str, **options: Any) -> Worker:
        made.append(fleet.own(pool, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.kill()
