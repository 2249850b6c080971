"""The Django system check of the jobs: what a worker would stop at is told by ``manage.py check``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

from jobs.errors import PolicyError


def check_jobs(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Return one error for each job with a wrong policy, and for a setting that no job can have."""
    # Loaded here, because Celery is: an application may be imported before Django is ready.
    from jobs.base import binding
    from jobs.base.finalising import policy_problems
    from jobs.broker.applications import ApplicationNotFound, find_application

    try:
        binding.project_policies()
    except PolicyError as problem:
        return [checks.Error(str(problem), hint='JOBS_POLICIES = {"max_attempts": 3}', id="jobs.E010")]
    try:
        app = find_application(package=_project())
    except ApplicationNotFound:
        # A project may only read what other applications send.
        return []
    try:
        problems = policy_problems(app)
    except Exception as error:  # noqa: BLE001 - whatever a module of the project raises; it is told
        return [
            checks.Error(
                f"The tasks of the Celery application {app.main!r} cannot be imported: {error!r}.",
                hint="Its workers would not start either; mend the module.",
                id="jobs.E012",
            )
        ]
    return [checks.Error(str(problem), id="jobs.E011") for problem in problems]


def _project() -> str:
    """Return the package of the project's settings, where its Celery application usually is."""
    name = str(getattr(settings, "SETTINGS_MODULE", "") or os.environ.get("DJANGO_SETTINGS_MODULE", ""))
    return name.partition(".")[0]
