"""Sends a test of a rule, so that a wrong address is found before the night."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from jobs import audit
from jobs.alerts import telling
from jobs.audit import Actor
from jobs.core.words import NotificationState
from jobs.errors import AlertRefused
from jobs.models import AlertRule, Notification


def send_test(*, rule: AlertRule, actor: Actor, now: datetime) -> list[Notification]:
    """Write a test for each way of a rule, to be sent by runops; audited. Waits for nothing.

    The rows say what became of it: their state, and ``last_error``. Silences do not count.

    Raises:
        AlertRefused: when a test of the rule is still on its way.
    """
    with transaction.atomic():
        waiting = Notification.objects.filter(rule=rule, alert=None, state=NotificationState.WAITING).first()
        if waiting is not None:
            raise AlertRefused(
                f"A test of “{rule.name}” is on its way since {waiting.created_at:%H:%M:%S} UTC"
                f"{': ' + waiting.last_error if waiting.last_error else '. Wait for its outcome.'}"
            )
        rows = telling.write_test(rule, asked_by=str(actor), now=now)
        audit.record(
            actor=actor,
            action="alert_test",
            text=f"sent a test of the alert rule “{rule.name}”",
            details={"rule": rule.pk, "notifications": [row.pk for row in rows]},
            now=now,
        )
    return rows
