"""When people are told, and what they were told."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState, Severity
from jobs.fields import JSONTextField


class AlertRule(models.Model):
    """A condition that is watched, and who is told. ``core.alerts.KINDS`` says what each kind measures.

    ``key`` names the rules that the first migration makes; an operator's own have none. An empty ``task``
    or ``queue`` is all of them.
    """

    key = models.CharField(max_length=64, blank=True)
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=32, choices=[(each.value, each.value) for each in AlertKind])
    is_enabled = models.BooleanField(default=True)
    severity = models.CharField(
        max_length=16, choices=[(each.value, each.value) for each in Severity], default=Severity.WARNING
    )
    task = models.CharField(max_length=255, blank=True)
    queue = models.CharField(max_length=255, blank=True)
    # In the kind's unit: letters a minute, messages, seconds, per cent.
    threshold = models.FloatField(default=0)
    # Recovered at or below it; null is the threshold itself.
    recovery_threshold = models.FloatField(null=True, blank=True)
    # How far the kind looks back; ignored where it looks at this moment.
    window_minutes = models.PositiveIntegerField(default=5)
    # Of a failure rate or a percentile: with fewer finished attempts there is no verdict.
    minimum_attempts = models.PositiveIntegerField(default=0)
    percentile = models.PositiveSmallIntegerField(default=95)
    # How long the condition must last before it fires, and be over before it is resolved.
    hold_seconds = models.PositiveIntegerField(default=0)
    recovery_hold_seconds = models.PositiveIntegerField(default=300)
    # After it was resolved it does not fire again for so long.
    cool_down_seconds = models.PositiveIntegerField(default=600)
    # While it fires, one reminder each so long; 0 is none.
    reminder_seconds = models.PositiveIntegerField(default=14400)
    # E-mail addresses; empty is ALERT_EMAILS, or else the active administrators.
    recipients = models.JSONField(default=list, blank=True)
    webhook_url = models.CharField(max_length=500, blank=True)
    runbook_url = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    changed_at = models.DateTimeField(auto_now=True)
    # When it was last judged, and what hindered that; empty when it could be.
    evaluated_at = models.DateTimeField(null=True, blank=True)
    trouble = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("name", "id")
        constraints = (models.UniqueConstraint(fields=["key"], name="alert_rule_key", condition=~Q(key="")),)
        permissions = (("test_alertrule", "Can send a test of an alert rule"),)

    def __str__(self) -> str:
        return self.name


class Alert(models.Model):
    """A period in which a rule's condition held for one subject: pending → firing → resolved.

    A pending one whose condition ends before the hold time is deleted. ``subject`` is the queue or the
    failure group that it is about where the rule watches each by itself, else "".
    """

    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="alerts")
    subject = models.CharField(max_length=255, blank=True)
    # Those of one rule that fire together are told of together, by the notifications of one of them.
    lead = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="bundle")
    state = models.CharField(max_length=16, choices=[(each.value, each.value) for each in AlertState])
    # When the condition began to hold, when it fired, and when it was over.
    began_at = models.DateTimeField()
    fired_at = models.DateTimeField(null=True, blank=True)
    # Since when it has been below the recovery threshold.
    recovering_since = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    # In the rule's unit: newest, highest, and what it was before it began.
    value = models.FloatField(null=True, blank=True)
    peak = models.FloatField(null=True, blank=True)
    before = models.FloatField(null=True, blank=True)
    measured_at = models.DateTimeField(null=True, blank=True)
    # The rule as it was when it fired, and what the mails tell: numbers, groups, the query of the letters.
    details = JSONTextField(default=dict)
    reminders = models.PositiveIntegerField(default=0)
    told_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-began_at", "-id")
        constraints = (
            models.UniqueConstraint(
                fields=["rule", "subject"],
                name="alert_open_once",
                condition=Q(state__in=[AlertState.PENDING.value, AlertState.FIRING.value]),
            ),
        )
        indexes = (models.Index(fields=["state", "-began_at"], name="alert_state"),)

    def __str__(self) -> str:
        return f"{self.rule} {self.state}"


class Silence(models.Model):
    """For a time nobody is told of a rule, or of any; alerts still fire and are seen on the pages."""

    # Null is every rule.
    rule = models.ForeignKey(
        AlertRule, null=True, blank=True, on_delete=models.CASCADE, related_name="silences"
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField(db_index=True)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor = models.CharField(max_length=255)
    why = models.CharField(max_length=2000, blank=True)

    def __str__(self) -> str:
        return f"silence until {self.ends_at:%Y-%m-%d %H:%M}"


class Notification(models.Model):
    """One e-mail or webhook call. The row is there before it is sent, so a crash does not forget it, and it is
    sent again only where nobody can know that the other side has it; see ``alerts.sending``.

    waiting → sent, or given up after many tries; silenced ones are kept and not sent.
    """

    alert = models.ForeignKey(
        Alert, null=True, blank=True, on_delete=models.CASCADE, related_name="notifications"
    )
    # Of a test there is no alert.
    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="notifications")
    kind = models.CharField(max_length=16, choices=[(each.value, each.value) for each in NotificationKind])
    # Of several reminders.
    number = models.PositiveIntegerField(default=0)
    channel = models.CharField(max_length=16, choices=[("email", "email"), ("webhook", "webhook")])
    # Addresses, or the one URL.
    recipients = models.JSONField(default=list)
    state = models.CharField(
        max_length=16,
        choices=[(each.value, each.value) for each in NotificationState],
        default=NotificationState.WAITING,
    )
    message_id = models.CharField(max_length=255, unique=True)
    subject = models.CharField(max_length=255)
    text = models.TextField(blank=True)
    html = models.TextField(blank=True)
    # The body of a webhook call.
    body = JSONTextField(default=dict)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    # While somebody sends it.
    claimed_until = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    last_error = models.CharField(max_length=2000, blank=True)
    sent_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at", "-id")
        constraints = (
            models.UniqueConstraint(
                fields=["alert", "kind", "number", "channel"],
                name="notification_once",
                condition=Q(alert__isnull=False),
            ),
        )
        indexes = (
            models.Index(
                fields=["due_at"],
                name="notification_waiting",
                condition=Q(state=NotificationState.WAITING.value),
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} by {self.channel}"
