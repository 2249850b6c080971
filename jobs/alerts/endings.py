"""Alerts that end because their rule does, and not because the condition is over."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Q

from jobs.core.words import AlertState, NotificationState
from jobs.models import Alert, AlertRule, Notification

OPEN = (AlertState.PENDING, AlertState.FIRING)


def end_open(rule: AlertRule, *, because: str, now: datetime) -> int:
    """Resolve the firing alerts of a rule and forget the pending ones; return how many there were.

    Nobody is told, and what was not sent yet is not sent any more. Call it within a transaction.
    """
    forgotten, _ = Alert.objects.filter(rule=rule, state=AlertState.PENDING).delete()
    ended = 0
    for alert in Alert.objects.filter(rule=rule, state=AlertState.FIRING):
        alert.details = {**alert.details, "ended_because": because}
        alert.state = AlertState.RESOLVED
        alert.resolved_at = now
        alert.save(update_fields=["details", "state", "resolved_at"])
        ended += 1
    Notification.objects.filter(
        Q(claimed_until=None) | Q(claimed_until__lte=now),
        rule=rule,
        alert__isnull=False,
        state=NotificationState.WAITING,
    ).update(state=NotificationState.GAVE_UP, last_error=f"Not sent: {because}."[:2000])
    return forgotten + ended
