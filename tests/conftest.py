"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import RedisServer


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the session; use ``broker`` to get it empty, start your own to stop it."""
    server = RedisServer().start()
    yield server
    server.remove()


@pytest.fixture
def broker(redis_server: RedisServer, settings) -> RedisServer:
    """The session's Redis, empty, as BROKER_URL."""
    with redis_server.client() as client:
        client.flushall()
    settings.BROKER_URL = redis_server.url
    return redis_server
