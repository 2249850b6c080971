"""The Django system check of the jobs: what a worker would stop at is told by ``manage.py check``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core import checks

from jobs import conf
from jobs.errors import PolicyError

# The checks of this application's own settings. Its commands run these alone: all checks together load every page
# of the project, half a second each time ``queue_health`` is asked, and memory that ``runops`` has no use for.
SETTINGS_TAG = "jobs_settings"


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
    if problems:
        return [checks.Error(str(problem), id="jobs.E011") for problem in problems]
    return _broker_problems(app)


def _broker_problems(app: Any) -> list[checks.CheckMessage]:
    """Say when the outbox would send elsewhere than the application: its jobs would never arrive."""
    from jobs.base import Job

    if not any(isinstance(task, Job) for task in app.tasks.values()):
        return []
    ours = conf.current().broker_url
    if not ours:
        return [
            checks.Error(
                "Jobs that are sent in a transaction would stay in the outbox: BROKER_URL is not set.",
                hint="BROKER_URL = the broker of your workers. CELERY_BROKER_URL counts too.",
                id="jobs.E013",
            )
        ]
    theirs = app.conf.broker_write_url or app.conf.broker_url or ""
    if _places(ours).isdisjoint(_places(theirs)):
        return [
            checks.Warning(
                "Jobs that are sent in a transaction go to another broker than the others: BROKER_URL is not "
                f"the broker of the Celery application {app.main!r}.",
                hint="Set both to the same address, or leave BROKER_URL out and set CELERY_BROKER_URL.",
                id="jobs.W014",
            )
        ]
    return []


# Two schemes of one server, and where it listens when the address does not say.
_SCHEMES = {"rediss": "redis", "amqps": "amqp", "pyamqp": "amqp", "py-amqp": "amqp"}
_PORTS = {"redis": 6379, "amqp": 5672, "sentinel": 26379}


def _places(urls: Any) -> set[tuple[str, str, int | None, str]]:
    """Return where broker addresses lead, without user and password; nobody is asked."""
    found: set[tuple[str, str, int | None, str]] = set()
    for url in ";".join([urls] if isinstance(urls, str) else map(str, urls)).split(";"):
        parts = urlsplit(url)
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        host = parts.hostname or "localhost"
        place = parts.path.strip("/")
        found.add(
            (
                scheme,
                "127.0.0.1" if host == "localhost" else host,
                parts.port or _PORTS.get(scheme),
                "" if place == "0" else place,
            )
        )
    return found


def _project() -> str:
    """Return the package of the project's settings, where its Celery application usually is."""
    name = str(getattr(settings, "SETTINGS_MODULE", "") or os.environ.get("DJANGO_SETTINGS_MODULE", ""))
    return name.partition(".")[0]
