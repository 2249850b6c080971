"""Django system checks of preflight's settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from jobs import conf
from jobs.preflight.mode import mode


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Return one error for each setting that cannot be used."""
    found: list[checks.CheckMessage] = []
    try:
        mode()
    except ImproperlyConfigured as error:
        found.append(checks.Error(str(error), hint='JOBS_PREFLIGHT = "refuse"', id="jobs.E030"))
    seconds = conf.current().rabbitmq_consumer_timeout_seconds
    if not seconds > 0:
        found.append(
            checks.Error(
                f"JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS={seconds:g} is not above zero.",
                hint="JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS = 1800",
                id="jobs.E031",
            )
        )
    return found
