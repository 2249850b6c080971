"""The Django system check of the ledger's setting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.apps import AppConfig
from django.core import checks

from jobs import conf


def check_retention(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Return an error when keys would be forgotten as soon as they are done, a warning when soon after."""
    days = conf.current().idempotency_retention / timedelta(days=1)
    if days <= 0:
        return [
            checks.Error(
                f"JOBS_IDEMPOTENCY_RETENTION_DAYS={days:g} is not above zero: no key would be remembered.",
                hint="JOBS_IDEMPOTENCY_RETENTION_DAYS = 30",
                id="jobs.E040",
            )
        ]
    purge_days = conf.current().purge_deadline / timedelta(days=1)
    if days < purge_days:
        return [
            checks.Warning(
                f"JOBS_IDEMPOTENCY_RETENTION_DAYS={days:g} is shorter than JOBS_PURGE_DEADLINE_DAYS={purge_days:g}:"
                " a letter that is restored and replayed may find that its key was done forgotten, and run again.",
                hint="JOBS_IDEMPOTENCY_RETENTION_DAYS = 30",
                id="jobs.W041",
            )
        ]
    return []
