"""Deployments, as the charts draw them: a line at their time with their name."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from jobs import audit
from jobs.audit import Actor
from jobs.core.cleaning import clean_name
from jobs.core.windows import Window
from jobs.errors import DeployRefused
from jobs.models import Deploy

NAME_LENGTH = 100
# Clocks of two machines differ.
_AHEAD = timedelta(minutes=5)
_MOST = 50


def mark_deploy(name: str, *, at: datetime, actor: Actor, now: datetime) -> Deploy:
    """Keep a deployment and write it into the audit, in one transaction.

    Raises:
        DeployRefused: when the name is empty, too long or no line of text, or the time lies ahead; says what to do.
    """
    name = name.strip()
    if not name:
        raise DeployRefused("A deployment needs a name: its version or the hash of its commit.")
    if len(name) > NAME_LENGTH:
        raise DeployRefused(
            f"The name has {len(name):,} characters and may have {NAME_LENGTH}. Use the version or the short hash."
        )
    if clean_name(name) != name:
        raise DeployRefused("The name is no line of printable text. Use the version or the short hash.")
    if at > now + _AHEAD:
        raise DeployRefused(
            f"The time {at:%Y-%m-%d %H:%M:%S} UTC lies ahead. Mark a deployment when it is done, or leave --at out."
        )
    with transaction.atomic():
        deploy = Deploy.objects.create(name=name, at=at)
        audit.record(
            actor=actor,
            action="deploy",
            text=f"marked the deployment {name} at {at:%Y-%m-%d %H:%M:%S} UTC",
            now=now,
        )
    return deploy


def deploys_in(window: Window) -> list[Deploy]:
    """Return the newest deployments of a window, by time. One query."""
    found = Deploy.objects.filter(at__gte=window.start, at__lt=window.end).order_by("-at", "-pk")[:_MOST]
    return list(reversed(found))
