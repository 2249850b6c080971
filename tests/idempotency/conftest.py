"""A database of the ledger's own, on SQLite and on PostgreSQL, in which every thread sees what others commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection, connections

from jobs.idempotency.heartbeat import heart
from jobs.models import IdempotencyRecord, JobProgress
from tests.idempotency.copies import Elsewhere
from tests.migrated import migrated_database
from tests.postgres import default_database

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def ledger_urls(request, tmp_path_factory) -> dict[str, str]:
    """The databases that were made so far, by vendor."""
    return {}


@pytest.fixture(params=DATABASES)
def database_url(request, ledger_urls, tmp_path_factory, django_db_setup) -> str:
    """The URL of a database with the product's tables, without rows of the ledger."""
    vendor = request.param
    if vendor not in ledger_urls:
        if vendor == "sqlite":
            path: Path = tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"
            url = f"sqlite:///{migrated_database(path)}"
        else:
            url = request.getfixturevalue("postgres_server").create_migrated_database("ledger")
        ledger_urls[vendor] = url
    return ledger_urls[vendor]


@pytest.fixture
def database(database_url, django_db_blocker) -> Iterator[str]:
    """Make that database the default one; return its vendor."""
    with django_db_blocker.unblock(), default_database(database_url):
        IdempotencyRecord.objects.all().delete()
        JobProgress.objects.all().delete()
        try:
            yield connection.vendor
        finally:
            while Elsewhere.running:
                Elsewhere.running.pop().end()
            heart().stop()
            connection.close()
            IdempotencyRecord.objects.all().delete()
            JobProgress.objects.all().delete()
            connections["default"].close()
