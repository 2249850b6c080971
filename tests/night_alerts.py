"""The alerts of the night of the design pictures: what fires, what recovered, a silence, and what was told.

``seed(now=…)`` comes after ``night.seed``; the rules that the migrations make are used where they are there.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState, Severity

ONCALL = "oncall@shop.example"


def seed(*, now: datetime) -> None:
    """Write rules, alerts, notifications and a silence."""
    from jobs.models import Alert, AlertRule, Silence

    growing = _rule(
        AlertKind.LETTERS_GROWING,
        "Dead letters grow",
        threshold=20,
        window_minutes=5,
        severity=Severity.CRITICAL,
        recipients=[ONCALL],
        runbook_url="https://wiki.shop.example/runbooks/dead-letters",
    )
    depth = _rule(AlertKind.QUEUE_DEPTH, "A queue is long", threshold=1_000, hold_seconds=600)
    lost = _rule(AlertKind.WORKER_LOST, "A worker was lost", window_minutes=60)
    AlertRule.objects.update(evaluated_at=now - timedelta(seconds=3))
    began = now - timedelta(minutes=31)
    details: Any = {
        "since": began.isoformat(),
        "sentence": "533 jobs died within 5 minutes, and 1,040 dead letters waited in all.",
        "letters": f"state:any since:{began:%Y-%m-%dT%H:%M}Z",
    }
    firing = Alert.objects.create(
        rule=growing,
        state=AlertState.FIRING,
        began_at=began,
        fired_at=now - timedelta(minutes=26),
        told_at=now - timedelta(minutes=26),
        value=125,
        peak=129,
        before=4,
        measured_at=now - timedelta(seconds=3),
        details=details,
    )
    _notification(
        firing,
        NotificationKind.FIRED,
        at=now - timedelta(minutes=26),
        subject="Dead letters grow by 125 a minute",
    )
    _alert(depth, AlertState.PENDING, now, minutes=4, value=1_610, subject="critical")
    lost_alert = _alert(
        lost,
        AlertState.RESOLVED,
        now,
        minutes=200,
        lasted=62,
        value=1,
        subject="celery@img-2",
        letters="worker:celery@img-2",
    )
    _notification(
        lost_alert, NotificationKind.FIRED, at=lost_alert.began_at, subject="Worker celery@img-2 was lost"
    )
    earlier = _alert(
        growing,
        AlertState.RESOLVED,
        now,
        minutes=314,
        lasted=22,
        value=31,
        letters="task:charge_card state:any since:6h until:4h",
    )
    for kind, minutes in ((NotificationKind.FIRED, 314), (NotificationKind.RECOVERED, 292)):
        _notification(earlier, kind, at=now - timedelta(minutes=minutes), subject="Dead letters grow")
    Silence.objects.create(
        rule=lost,
        starts_at=now - timedelta(minutes=18),
        ends_at=now + timedelta(hours=4, minutes=48),
        actor="Ines Okafor",
        why="img-2 gets more memory tonight",
    )


def _rule(kind: AlertKind, name: str, **fields: Any) -> Any:
    from jobs.models import AlertRule

    rule, _ = AlertRule.objects.update_or_create(kind=kind, name=name, defaults=fields)
    return rule


def _alert(
    rule: Any,
    state: AlertState,
    now: datetime,
    *,
    minutes: float,
    value: float,
    lasted: float = 0,
    subject: str = "",
    letters: str = "",
) -> Any:
    from jobs.models import Alert

    began = now - timedelta(minutes=minutes)
    details: Any = {"letters": letters} if letters else {}
    is_over = state == AlertState.RESOLVED
    return Alert.objects.create(
        rule=rule,
        subject=subject,
        state=state,
        began_at=began,
        fired_at=began + timedelta(seconds=rule.hold_seconds) if is_over else None,
        resolved_at=began + timedelta(minutes=lasted) if is_over else None,
        value=0 if is_over else value,
        peak=value,
        measured_at=now - timedelta(seconds=3),
        details=details,
    )


def _notification(alert: Any, kind: NotificationKind, *, at: datetime, subject: str) -> None:
    from jobs.models import Notification

    Notification.objects.create(
        alert=alert,
        rule=alert.rule,
        kind=kind,
        channel="email",
        recipients=[ONCALL],
        state=NotificationState.SENT,
        message_id=f"<alert-{alert.pk}-{kind}@night>",
        subject=subject,
        created_at=at,
        due_at=at,
        attempts=1,
        sent_at=at + timedelta(seconds=1),
    )
