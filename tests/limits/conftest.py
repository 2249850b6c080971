"""Scripts on the session's Redis, and keys that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from jobs.limits import client
from jobs.limits.admission import keys_of
from jobs.limits.script import Keys, Scripts
from tests.job_fleet import JobFleet, job_fleet
from tests.servers import RedisServer

_numbers = itertools.count()


@pytest.fixture(scope="session")
def scripts(redis_server: RedisServer) -> Iterator[Scripts]:
    with redis_server.client() as redis:
        yield Scripts(redis)


@pytest.fixture(scope="session")
def new_keys() -> Callable[[], Keys]:
    return lambda: keys_of(f"test-{next(_numbers)}")


@pytest.fixture
def limits_redis(broker: RedisServer, settings) -> Iterator[RedisServer]:
    """The session's Redis, empty, for this process's limits."""
    settings.REDIS_URL = broker.url
    client.forget()
    yield broker
    client.forget()


@pytest.fixture(scope="module")
def running_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobFleet]:
    with job_fleet(tmp_path_factory.mktemp("limits"), 4, application="tests.limits.shop") as started:
        yield started


@pytest.fixture
def fleet(running_fleet: JobFleet) -> JobFleet:
    running_fleet.clear()
    return running_fleet
