"""Workers with real brokers, one a pool for all tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.fleet import Fleet
from tests.base.place import Place, close, place

POOLS = ("prefork", "threads", "solo")


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    """Return the worker of a pool, started when it is first asked for."""
    fleet = Fleet(tmp_path_factory.mktemp("places"))
    made: dict[str, Place] = {}

    def of(pool: str) -> Place:
        if pool not in made or not made[pool].is_alive:
            directory = tmp_path_factory.mktemp(f"place-{pool}")
            made[pool] = place(directory, fleet.database_url(), pool)
        return made[pool]

    yield of
    for each in made.values():
        each.stop()
    for each in made.values():
        close(each.shop)
    fleet.stop()


@pytest.fixture
def prefork(places: Callable[[str], Place]) -> Place:
    """The worker with the prefork pool."""
    return places("prefork")


@pytest.fixture(params=POOLS)
def each_pool(request: pytest.FixtureRequest, places: Callable[[str], Place]) -> Place:
    """The worker of each pool."""
    return places(request.param)


@pytest.fixture
def own_place(tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """Return a worker that a test may break; keywords are its environment."""
    fleet, made = Fleet(tmp_path / "fleet"), []

    def of(pool: str = "prefork", **environment: str) -> Place:
        directory = tmp_path / f"place-{len(made)}"
        made.append(Place(pool=pool, broker_url=fleet.database_url(), directory=directory).prepare())
        made[-1].environment.update(environment)
        made[-1].start()
        return made[-1]

    yield of
    for each in made:
        each.stop(signal.SIGKILL)
    for each in made:
        close(each.shop)
    fleet.stop()
