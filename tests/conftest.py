"""Fixtures that every test may use."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import AppConfig
from django.apps import apps as installed
from django.apps.registry import Apps
from django.db import connections
from django.db.models.signals import post_migrate
from hypothesis import settings as hypothesis_settings

from tests import rabbit as rabbitmq
from tests import shared
from tests.postgres import PostgresServer, default_database
from tests.servers import RedisServer

# Each of the several hundred processes that tests start would compile the product again: a quarter of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Not the 200 ms of hypothesis for an example, and with them a second for the first ten inputs: of a full machine's
# clock, on which a process waits for seconds. What a test promises of its pace it measures itself.
hypothesis_settings.register_profile("full machine", deadline=None)
hypothesis_settings.load_profile("full machine")

TESTS = Path(__file__).resolve().parent
# The files that take longest, the longest first. pytest-xdist hands files out in the order of their tests; what has
# few tests and long ones would begin last, and the other processes would wait for it.
LONG_FILES = [
    "metrics/test_counts_end_to_end.py", "metrics/test_silent_workers.py",
    "queues/test_workers.py", "agent/test_recording_workers.py", "journeys/test_control.py",
    "journeys/test_alerts.py", "journeys/test_alerts_restarts.py", "journeys/test_alerts_consumers.py", "test_up.py", "preflight/test_worker_start.py",
    "test_runops.py", "test_restarts.py", "test_up_running.py", "preflight/test_command.py", "idempotency/test_workers.py",
    "idempotency/test_chaos.py", "agent/test_broker_down.py", "agent/test_broker_restart.py", "test_retry_storm.py",
    "base/test_retries.py", "limits/test_fleet.py", "agent/test_other_brokers.py",
    "web/test_outbox_browser.py", "web/test_list_browser.py", "test_demo.py", "preflight/test_rabbit.py",
    "journeys/test_journeys.py", "agent/test_comebacks.py", "test_chaos.py", "testing/test_plugin.py",
    "agent/test_messages.py", "base/test_enqueueing.py", "base/test_running.py", "agent/test_endings.py",
    "web/test_alerts_browser.py", "web/test_overview_browser.py", "web/test_jobs_browser.py", "web/test_live_browser.py",
    "agent/test_shutdown.py", "test_startjob.py", "outbox/test_kills.py", "idempotency/test_databases.py", "web/test_letters.py",
    "test_rabbitmq.py", "test_dead_letters_command.py", "base/test_errors.py",
    "web/test_access.py", "outbox/test_canvas.py", "idempotency/test_already_done.py", "agent/test_backend_down.py",
    "idempotency/test_outages.py", "test_search.py", "base/test_canvas.py", "idempotency/test_crashes.py",
    "queues/test_duty.py",
    "test_embedding.py", "preflight/test_beats.py", "alerts/test_evaluating.py", "alerts/test_measuring.py", "test_workers.py", "test_migrations.py", "test_settings.py",
    "test_worker_control.py", "web/test_numbers_browser.py", "agent/test_recording_brokers.py",
]  # fmt: skip

# Debian's, which Debian patches, and the one without windows: it draws and runs the same in a quarter less time.
CHROMIUM = Path("/usr/bin/chromium-headless-shell")

# What measures a pace needs the cores for itself, and goes when the other processes have nothing left to do.
LAST_FILE = "limits/test_pace.py"


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes of the run share what takes long to make."""
    if not hasattr(config, "workerinput"):
        shared.begin()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it when the other processes have ended."""
    if not hasattr(config, "workerinput"):
        rabbitmq.remove_shared()
        shared.end()


@pytest.fixture(scope="session", autouse=True)
def _default_rules_stay() -> Iterator[None]:
    """Make the default alert rules anew when a test with real transactions has emptied the tables.

    Django then sends post_migrate, from which the roles come back; the rules come from a migration.
    """
    rules = importlib.import_module("jobs.migrations.0020_add_default_alert_rules")

    def add(sender: AppConfig, *, apps: Apps = installed, using: str, **_: object) -> None:
        if sender.label == "jobs" and "jobs_alertrule" in connections[using].introspection.table_names():
            rules.add_rules(apps, connections[using].schema_editor())

    post_migrate.connect(add, dispatch_uid="tests.default_rules")
    yield
    post_migrate.disconnect(dispatch_uid="tests.default_rules")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files where several processes share the tests; alone, the quick ones are told first."""
    if hasattr(config, "workerinput"):
        order = {TESTS / name: number for number, name in enumerate(LONG_FILES)}
        order[TESTS / LAST_FILE] = len(order) + 1
        items.sort(key=lambda item: order.get(item.path, len(LONG_FILES)))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Start Debian's Chromium; the tabs of a site share a process, which has compiled its scripts."""
    if not CHROMIUM.exists():
        pytest.fail(
            f"Chromium is not installed. Install Debian's package {CHROMIUM.name} (make test does, as root)."
        )
    arguments = ["--no-sandbox", "--disable-gpu", "--process-per-site"]
    return {**browser_type_launch_args, "executable_path": str(CHROMIUM), "args": arguments}


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


@pytest.fixture(scope="module")
def rabbit() -> rabbitmq.VirtualHost:
    """A virtual host of the module's own on the RabbitMQ of the whole run."""
    return rabbitmq.virtual_host()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the session; create a database of your own in it."""
    server = PostgresServer()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of a PostgreSQL database with the product's tables; tests share it and roll back."""
    return postgres_server.create_migrated_database("jobs")


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
