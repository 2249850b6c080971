"""Fixtures that every test may use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import dj_database_url
import pytest
from django.core.management import call_command
from django.db import connections

from tests.postgres import PostgresServer
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


@contextlib.contextmanager
def default_database(url: str) -> Iterator[None]:
    """Make ``url`` the database "default", also of threads that start within."""
    configured = {**connections.settings["default"], "OPTIONS": {}, **dj_database_url.parse(url)}
    original_settings, original = connections.settings["default"], connections["default"]
    connections.settings["default"] = configured
    wrapper = connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        wrapper.close()
        connections.settings["default"] = original_settings
        connections["default"] = original


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def each_database(request, django_db_setup) -> Iterator[str]:
    """Run the test once on SQLite and once on PostgreSQL; ask for ``database`` in tests."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    with default_database(request.getfixturevalue("postgres_url")):
        yield "postgresql"


@pytest.fixture
def database(each_database: str, request) -> str:
    """Either database in turn, rolled back after the test."""
    request.getfixturevalue("db")
    return each_database


@pytest.fixture
def transactional_database(each_database: str, request) -> str:
    """Either database in turn, where commits are real."""
    request.getfixturevalue("transactional_db")
    return each_database
