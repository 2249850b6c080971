"""Migrations of a database that is not the default one: it may hold the outbox and the ledger of an application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, connections

from tests.postgres import default_database


@pytest.fixture
def orders(tmp_path: Path, django_db_setup: None, django_db_blocker) -> Iterator[str]:
    """A second database; both are empty."""
    with django_db_blocker.unblock(), default_database(f"sqlite:///{tmp_path / 'default.sqlite3'}"):
        connections.settings["orders"] = {
            **connections.settings["default"],
            "NAME": str(tmp_path / "orders.sqlite3"),
        }
        yield "orders"
        connections["orders"].close()
        del connections["orders"]
        del connections.settings["orders"]


def test_another_database_is_migrated_while_the_default_one_is_still_empty(orders: str) -> None:
    call_command("migrate", database=orders, verbosity=0)

    assert "jobs_outboxmessage" in connections[orders].introspection.table_names()
    assert connection.introspection.table_names() == []
