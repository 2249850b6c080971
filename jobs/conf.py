"""Typed access to the settings of the job runtime. Each one is described in docs/settings.md."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings


@dataclass(frozen=True, slots=True)
class JobsSettings:
    """The ``JOBS_*`` settings, with their defaults."""

    broker_url: str
    broker_transport_options: dict[str, Any]
    redis_url: str
    purge_deadline: timedelta
    resolved_retention: timedelta
    outcome_timeout: timedelta
    masked_keys: tuple[str, ...]
    # Policies of every job of the project; checked where they are used, in jobs.base.
    policies: Any
    lease_seconds: float
    # "refuse", "warn" or "off": what a worker does on a broker that can lose jobs.
    preflight: str
    rabbitmq_consumer_timeout_seconds: float
    outbox_databases: tuple[str, ...]
    outbox_max_attempts: int
    outbox_timeout_seconds: float
    outbox_grace: timedelta
    outbox_retention: timedelta
    idempotency_retention: timedelta
    # How long the record of a finished attempt is kept.
    run_retention: timedelta
    run_cap: int
    # Without a slash at its end.
    console_url: str
    environment_name: str
    alert_emails: tuple[str, ...]
    alert_every_seconds: float


def current() -> JobsSettings:
    """Read the settings as they are now, so that a test's override counts."""

    def get(name: str, default: Any) -> Any:
        return getattr(settings, name, default)

    return JobsSettings(
        # Where a project has them for Celery, they need not be said twice.
        broker_url=get("BROKER_URL", "") or get("CELERY_BROKER_URL", "") or "",
        broker_transport_options=dict(
            get("BROKER_TRANSPORT_OPTIONS", get("CELERY_BROKER_TRANSPORT_OPTIONS", None)) or {}
        ),
        redis_url=get("REDIS_URL", ""),
        purge_deadline=timedelta(days=get("JOBS_PURGE_DEADLINE_DAYS", 7)),
        resolved_retention=timedelta(days=get("JOBS_RESOLVED_RETENTION_DAYS", 30)),
        outcome_timeout=timedelta(hours=get("JOBS_OUTCOME_TIMEOUT_HOURS", 6)),
        masked_keys=tuple(get("JOBS_MASKED_KEYS", ())),
        policies=get("JOBS_POLICIES", {}),
        lease_seconds=float(get("JOBS_LEASE_SECONDS", 10)),
        # The environment counts in any project that does not set it: at night a worker has to start
        # without a release.
        preflight=str(get("JOBS_PREFLIGHT", os.environ.get("JOBS_PREFLIGHT") or "refuse")),
        rabbitmq_consumer_timeout_seconds=float(get("JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS", 1800)),
        outbox_databases=tuple(get("JOBS_OUTBOX_DATABASES", ("default",))),
        outbox_max_attempts=int(get("JOBS_OUTBOX_MAX_ATTEMPTS", 8)),
        outbox_timeout_seconds=float(get("JOBS_OUTBOX_TIMEOUT_SECONDS", 1)),
        outbox_grace=timedelta(seconds=get("JOBS_OUTBOX_GRACE_SECONDS", 15)),
        outbox_retention=timedelta(hours=get("JOBS_OUTBOX_RETENTION_HOURS", 24)),
        idempotency_retention=timedelta(days=get("JOBS_IDEMPOTENCY_RETENTION_DAYS", 30)),
        run_retention=timedelta(hours=get("JOBS_RUN_RETENTION_HOURS", 24)),
        run_cap=int(get("JOBS_RUN_CAP", 1000000)),
        console_url=str(get("CONSOLE_URL", "http://127.0.0.1:8000")).rstrip("/"),
        environment_name=str(get("ENVIRONMENT_NAME", "")),
        alert_emails=tuple(get("ALERT_EMAILS", ())),
        alert_every_seconds=float(get("JOBS_ALERT_EVERY_SECONDS", 5)),
    )
