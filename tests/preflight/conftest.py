"""Servers that are set up badly on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.preflight.place import Place
from tests.rabbit import RabbitServer, rabbit_server
from tests.servers import RedisServer


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that a test may set up badly, or stop."""
    server = RedisServer().start()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def place(tmp_path: Path, own_redis: RedisServer) -> Iterator[Place]:
    """A project on that Redis, with its tables."""
    place = Place(tmp_path / "place", own_redis.url).migrate()
    yield place
    place.commands.end()


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitServer]:
    with rabbit_server() as server:
        yield server
