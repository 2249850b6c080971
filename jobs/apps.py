"""The Django application of the job runtime."""

import sys
from collections.abc import Callable
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class JobsConfig(AppConfig):
    """Registers the models, the roles and the system checks."""

    name = "jobs"
    label = "jobs"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"
    # manage.py startjob writes into applications of the project only.
    takes_jobs = False

    def ready(self) -> None:
        """Make the roles whenever migrate has run, and be there when a worker or a beat starts."""
        from jobs.checks import SETTINGS_TAG, check_jobs
        from jobs.idempotency.checks import check_retention
        from jobs.outbox.checks import check_outbox
        from jobs.preflight.setting_checks import check_settings
        from jobs.roles import create_roles

        post_migrate.connect(create_roles, dispatch_uid="jobs.roles")
        checks.register(check_jobs)
        for check in (check_settings, check_retention, check_outbox):
            checks.register(check, SETTINGS_TAG)
        # A worker and a beat have loaded Celery before Django; loading it everywhere else would cost
        # each command a tenth of a second.
        if "celery" in sys.modules:
            from jobs.broker import hooks

            hooks.on_worker_start(_examine)
            hooks.on_beat_start(_write_sightings)


def _examine(app: Any, **worker: Any) -> bool:
    from jobs.preflight.start import examine

    return examine(app, **worker)


def _write_sightings(is_ticking: Callable[[], bool]) -> None:
    from jobs.preflight import beats

    beats.start(is_ticking)
