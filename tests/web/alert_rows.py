"""Rules, alerts and what was told of them, for the tests of their pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.urls import reverse

from jobs.alerts import rules
from jobs.audit import Actor
from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState
from jobs.models import Alert, AlertRule, Notification
from tests.factories import NOW
from tests.web.people import tags

ONCALL = "oncall@shop.example"
SCRIPT = "<script>alert(1)</script>\u202e"


def make_rule(kind: AlertKind = AlertKind.LETTERS_GROWING, **values: Any) -> AlertRule:
    """Make a rule that was judged a moment ago; what is not given is as its kind usually is."""
    state = {name: values.pop(name) for name in ("is_enabled", "evaluated_at", "trouble") if name in values}
    values.setdefault("recipients", [ONCALL])
    rule = rules.create(kind=kind, values=values, actor=Actor(name="the test"), now=NOW)
    rule.evaluated_at = NOW - timedelta(seconds=3)
    for name, value in state.items():
        setattr(rule, name, value)
    rule.save()
    return rule


def make_alert(rule: AlertRule | None = None, **fields: Any) -> Alert:
    """Make an alert that fires since 02:41."""
    values: dict[str, Any] = {
        "state": AlertState.FIRING,
        "began_at": NOW - timedelta(minutes=31),
        "fired_at": NOW - timedelta(minutes=26),
        "value": 125.0,
        "peak": 129.0,
        "measured_at": NOW - timedelta(seconds=3),
    }
    return Alert.objects.create(rule=rule or make_rule(), **(values | fields))


def make_over(rule: AlertRule | None = None, *, minutes: float = 26, **fields: Any) -> Alert:
    """Make an alert that recovered at 03:07 after so many minutes, unless said otherwise."""
    began = NOW - timedelta(minutes=minutes + 5)
    over: dict[str, Any] = {
        "state": AlertState.RESOLVED,
        "began_at": began,
        "fired_at": began,
        "resolved_at": began + timedelta(minutes=minutes),
    }
    return make_alert(rule, **(over | fields))


def make_notification(alert: Alert | None, rule: AlertRule | None = None, **fields: Any) -> Notification:
    """Make an e-mail that was sent at 02:46."""
    at = NOW - timedelta(minutes=26)
    values: dict[str, Any] = {
        "kind": NotificationKind.FIRED,
        "channel": "email",
        "recipients": [ONCALL],
        "state": NotificationState.SENT,
        "message_id": f"<{Notification.objects.count()}@test>",
        "subject": "Dead letters grow",
        "created_at": at,
        "due_at": at,
        "attempts": 1,
        "sent_at": at,
    }
    values |= fields
    if values["state"] != NotificationState.SENT:
        values["sent_at"] = None
    return Notification.objects.create(alert=alert, rule=alert.rule if alert else rule, **values)


# What the form of growing letters sends when nothing is typed.
FIELDS = {
    "name": "Dead letters grow",
    "severity": "critical",
    "task": "",
    "queue": "",
    "threshold": "20",
    "recovery_threshold": "",
    "window_minutes": "5",
    "hold_seconds": "0",
    "recovery_hold_seconds": "5 min",
    "cool_down_seconds": "10 min",
    "reminder_seconds": "4 h",
    "recipients": "",
    "webhook_url": "",
    "runbook_url": "",
}


def rule_address(rule: AlertRule, action: str = "") -> str:
    return reverse(f"console:alert-rule{action}", args=[rule.pk])


def fields_of(response: Any) -> dict[str, str]:
    """Return what a form would send unchanged."""
    found = tags(response)
    form = {
        str(each["name"]): str(each.get("value") or "") for each in found.all("input") if each.get("name")
    }
    html = response.content.decode()
    for select in found.all("select"):
        part = html.split(f'name="{select["name"]}"', 1)[1].split("</select>", 1)[0]
        (chosen,) = [each for each in part.split("<option") if " selected" in each]
        form[str(select["name"])] = chosen.split('value="', 1)[1].split('"', 1)[0]
    part = html.split('name="recipients"', 1)[1].split("</textarea>", 1)[0]
    return form | {"recipients": part.split(">", 1)[1]}
