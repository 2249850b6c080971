"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.management import call_command

from tests.postgres import PostgresServer, default_database
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


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the session; create a database of your own in it."""
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer, django_db_setup, django_db_blocker) -> str:
    """The URL of a PostgreSQL database with the product's tables; tests share it and roll back."""
    url = postgres_server.create_database("jobs")
    with django_db_blocker.unblock(), default_database(url):
        call_command("migrate", verbosity=0)
    return url


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def each_database(request, django_db_setup) -> Iterator[str]:
    """Run the module's tests on SQLite, then on PostgreSQL; they need the mark ``django_db`` as well.

    Of the module, so that the database is changed before the test's transaction begins.
    """
    if request.param == "sqlite":
        yield "sqlite"
        return
    with default_database(request.getfixturevalue("postgres_url")):
        yield "postgresql"
