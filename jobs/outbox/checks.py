"""The Django system check of the outbox's settings."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import connections

from jobs import conf

# How long the fast way may take at most, in timeouts: connect, send, and both once more on a fresh connection,
# and room for a slow machine.
LONGEST_IN_TIMEOUTS = 6
_VENDORS = ("sqlite", "postgresql")


def check_outbox(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Return what would keep jobs in the outbox, or send them one way when another was meant."""
    current = conf.current()
    found: list[checks.CheckMessage] = []
    if not current.outbox_databases:
        found.append(
            checks.Error(
                "JOBS_OUTBOX_DATABASES is empty: what jobs write in a transaction would never be relayed.",
                hint='JOBS_OUTBOX_DATABASES = ["default"]',
                id="jobs.E050",
            )
        )
    for alias in current.outbox_databases:
        if alias not in connections:
            found.append(
                checks.Error(
                    f"JOBS_OUTBOX_DATABASES names {alias!r}, which is no database of this project.",
                    hint=f"Use some of {', '.join(connections)}.",
                    id="jobs.E051",
                )
            )
        elif connections[alias].vendor not in _VENDORS:
            found.append(
                checks.Error(
                    f"JOBS_OUTBOX_DATABASES names {alias!r}, which is {connections[alias].display_name}.",
                    hint="An outbox can be kept in PostgreSQL and SQLite.",
                    id="jobs.E051",
                )
            )
    if current.outbox_max_attempts < 1:
        found.append(
            checks.Error(
                f"JOBS_OUTBOX_MAX_ATTEMPTS={current.outbox_max_attempts} leaves a message without a single try.",
                hint="JOBS_OUTBOX_MAX_ATTEMPTS = 8",
                id="jobs.E052",
            )
        )
    for name, value, usual in (
        ("JOBS_OUTBOX_TIMEOUT_SECONDS", current.outbox_timeout_seconds, 1),
        ("JOBS_OUTBOX_RETENTION_HOURS", current.outbox_retention / timedelta(hours=1), 24),
    ):
        if value <= 0:
            found.append(
                checks.Error(f"{name}={value:g} is not above zero.", hint=f"{name} = {usual}", id="jobs.E053")
            )
    longest = LONGEST_IN_TIMEOUTS * current.outbox_timeout_seconds
    grace = current.outbox_grace.total_seconds()
    if grace <= longest:
        found.append(
            checks.Warning(
                f"JOBS_OUTBOX_GRACE_SECONDS={grace:g} is not above {LONGEST_IN_TIMEOUTS} times"
                f" JOBS_OUTBOX_TIMEOUT_SECONDS={current.outbox_timeout_seconds:g}: no transaction has the time to"
                " send its jobs itself, and every job waits for the relay.",
                hint=f"JOBS_OUTBOX_GRACE_SECONDS = {longest + 9:g}",
                id="jobs.W054",
            )
        )
    return found
