"""Workers with real brokers, one a pool for all tests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from tests.agent.fleet import Fleet
from tests.base.place import Place, place

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
    # A result that is forgotten asks its backend's server to unsubscribe.
    gc.collect()
    for each in made.values():
        each.shop.close()
    fleet.stop()


@pytest.fixture
def prefork(places: Callable[[str], Place]) -> Place:
    """The worker with the prefork pool."""
    return places("prefork")


@pytest.fixture(params=POOLS)
def each_pool(request: pytest.FixtureRequest, places: Callable[[str], Place]) -> Place:
    """The worker of each pool."""
    return places(request.param)
