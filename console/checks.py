"""Checks that say what another site still has to set before the console works in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core import checks

from jobs import conf

APPLICATIONS = ("jobs", "django_htmx", "django.contrib.humanize", "django.contrib.messages")
MIDDLEWARE = "django_htmx.middleware.HtmxMiddleware"
CONTEXT_PROCESSOR = "console.shell.context"
FINDER = "console.static_files.PlotlyFinder"


def check_site(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Return one error for each part that is missing, with the line that adds it."""
    found: list[checks.CheckMessage] = [
        checks.Error(
            f"The console needs {name!r}, which is not in INSTALLED_APPS.",
            hint=f"INSTALLED_APPS += [{name!r}]",
            id="console.E001",
        )
        for name in APPLICATIONS
        if not apps.is_installed(name)
    ]
    if MIDDLEWARE not in settings.MIDDLEWARE:
        found.append(
            checks.Error(
                "The console needs the middleware of django-htmx.",
                hint=f"MIDDLEWARE += [{MIDDLEWARE!r}]",
                id="console.E002",
            )
        )
    processors = [
        name
        for engine in settings.TEMPLATES
        for name in engine.get("OPTIONS", {}).get("context_processors", ())
    ]
    if CONTEXT_PROCESSOR not in processors:
        found.append(
            checks.Error(
                "The pages of the console need its context processor.",
                hint=f'TEMPLATES[0]["OPTIONS"]["context_processors"] += [{CONTEXT_PROCESSOR!r}]',
                id="console.E003",
            )
        )
    if FINDER not in settings.STATICFILES_FINDERS:
        found.append(
            checks.Error(
                "The charts of the console need plotly.js, which its static files finder finds.",
                hint=f"STATICFILES_FINDERS = {[*settings.STATICFILES_FINDERS, FINDER]!r}",
                id="console.E004",
            )
        )
    if not conf.current().broker_url:
        found.append(
            checks.Error(
                "The console needs the broker of your workers.",
                hint='BROKER_URL = "redis://localhost:6379/0"',
                id="console.E005",
            )
        )
    return found
