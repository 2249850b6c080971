"""A clock that the test moves, and what carries operations out by it, on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.broker_side import Carrier, Clock
from tests.factories import NOW
from tests.servers import RedisServer


@pytest.fixture
def database(each_database: str, db: None) -> str:
    """Either database, rolled back after the test."""
    return each_database


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW + timedelta(minutes=10))


@pytest.fixture
def carrier(database: str, broker: RedisServer, clock: Clock) -> Carrier:
    return Carrier(clock)
