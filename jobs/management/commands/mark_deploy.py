"""The command ``manage.py mark_deploy``."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from jobs.audit import Actor
from jobs.checks import SETTINGS_TAG
from jobs.errors import DeployRefused
from jobs.management.printing import escape_unknown
from jobs.metrics.deploys import mark_deploy


class Command(BaseCommand):
    """Marks a deployment, so that the charts show what came after it."""

    help = "Marks a deployment: the charts draw a line at its time, with its name."
    requires_system_checks = (SETTINGS_TAG,)

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("name", metavar="NAME", help="version or short hash, as people know it")
        parser.add_argument(
            "--at", default="", metavar="TIME", help="when it was, as 2026-11-12T02:38Z (default: now)"
        )
        parser.add_argument(
            "--actor", default="", help="who deployed, for the audit (default: the login name)"
        )

    def handle(self, *args: Any, name: str, at: str, actor: str, **options: Any) -> None:
        """Write it, and say what was written."""
        escape_unknown()
        now = timezone.now()
        try:
            deploy = mark_deploy(
                name,
                at=_moment(at) if at else now,
                actor=Actor(name=f"{actor or _login()} (command)"),
                now=now,
            )
        except DeployRefused as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Marked {deploy.name} at {deploy.at:%Y-%m-%d %H:%M:%S} UTC.")


def _moment(text: str) -> datetime:
    try:
        found = parse_datetime(text.strip())
        if found is not None:
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # said below
    raise CommandError(f"The time {text[:40]!r} cannot be read. Write it as 2026-11-12T02:38Z.")


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "somebody"
