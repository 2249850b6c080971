"""The command ``manage.py preflight``."""

from __future__ import annotations

import json
import os
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from jobs.broker.applications import find_application, is_attached, load_tasks
from jobs.checks import SETTINGS_TAG
from jobs.errors import JobsError
from jobs.management.printing import escape_unknown
from jobs.preflight import inspection, report
from jobs.preflight.checks import check
from jobs.preflight.findings import Level, count


class Command(BaseCommand):
    """Says what can lose jobs, why, and what to set."""

    help = (
        "Looks at the broker, the Celery application, workers, queues and beats, and says what can lose jobs"
        " or run them twice, why, and the line to set. Exit status 1 when there are errors, with --strict"
        " also when there are warnings."
    )
    requires_system_checks = (SETTINGS_TAG,)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument(
            "--app",
            default="",
            help="Celery application, as for celery -A (default: the project's own)",
        )
        parser.add_argument("--json", action="store_true", dest="is_json", help="print JSON for scripts")
        parser.add_argument(
            "--strict", action="store_true", help="end with exit status 1 on warnings as well"
        )

    def handle(self, *args: Any, app: str, is_json: bool, strict: bool, **options: Any) -> None:
        """Check, print, and set the exit status."""
        escape_unknown()
        try:
            application = find_application(app, package=_project())
            load_tasks(application)
            facts = inspection.everything(application, has_agent=is_attached(application))
        except JobsError as error:
            raise CommandError(str(error)) from error
        findings = check(facts)
        if is_json:
            self.stdout.write(json.dumps(report.as_json(facts, findings), indent=2))
        else:
            self.stdout.write(report.text(facts, findings))
        bad = count(findings, Level.ERROR) + (count(findings, Level.WARNING) if strict else 0)
        if bad:
            self.stdout.flush()
            raise SystemExit(1)


def _project() -> str:
    """Return the package of the project's settings, where its Celery application usually is."""
    name = str(getattr(settings, "SETTINGS_MODULE", "") or os.environ.get("DJANGO_SETTINGS_MODULE", ""))
    return name.partition(".")[0]
