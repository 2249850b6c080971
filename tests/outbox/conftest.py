"""A database of the outbox's own, on SQLite and on PostgreSQL, where commits are real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery
from django.db import connection, connections

from jobs.models import AuditEntry, DeadLetter, Death, FailureGroup, LetterMessage, OutboxMessage
from jobs.outbox import commit
from tests.migrated import migrated_database
from tests.outbox.shop import create
from tests.postgres import default_database

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def outbox_urls() -> dict[str, str]:
    """The databases that were made so far, by vendor."""
    return {}


@pytest.fixture(params=DATABASES)
def database_url(request, outbox_urls, tmp_path_factory, django_db_setup) -> str:
    """The URL of a database with the product's tables."""
    vendor = request.param
    if vendor not in outbox_urls:
        if vendor == "sqlite":
            url = f"sqlite:///{migrated_database(tmp_path_factory.mktemp('outbox') / 'outbox.sqlite3')}"
        else:
            url = request.getfixturevalue("postgres_server").create_migrated_database("outbox")
        outbox_urls[vendor] = url
    return outbox_urls[vendor]


@pytest.fixture
def database(database_url, django_db_blocker) -> Iterator[str]:
    """Make that database, empty, the default one; return its vendor."""
    with django_db_blocker.unblock(), default_database(database_url):
        _empty()
        commit.forget()
        try:
            yield connection.vendor
        finally:
            commit.forget()
            connection.close()
            _empty()
            connections["default"].close()


def _empty() -> None:
    for model in (OutboxMessage, AuditEntry, Death, LetterMessage, DeadLetter, FailureGroup):
        model.objects.all().delete()


@pytest.fixture
def shop(broker, settings) -> Celery:
    """An application whose broker is the session's Redis, empty."""
    return create(broker.url)
