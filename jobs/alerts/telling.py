"""Writes what is to be told: one notification for each way to people, in the transaction of the transition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.db.models import Q, QuerySet

from jobs import conf
from jobs.alerts import letter_stories, mails, recipients, state_stories, stories
from jobs.alerts.stories import Story, Tone
from jobs.core import alert_words
from jobs.core.words import NotificationKind, NotificationState
from jobs.models import Alert, AlertRule, Notification

EMAIL, WEBHOOK = "email", "webhook"
NO_RECIPIENTS = (
    "Nobody is to be told: the rule names nobody, ALERT_EMAILS is not set, and no active administrator has an"
    " e-mail address. Set one of them."
)


def tell(
    kind: NotificationKind,
    bundle: Sequence[Alert],
    *,
    number: int = 0,
    kept_back: str = "",
    now: datetime,
) -> Story:
    """Write the notifications of alerts that changed together; the one that led them when they fired holds these.

    Call it within the transaction that changes the alerts. With ``kept_back``, the reason, they are kept and not
    sent. Returns the story, of which the alert's row keeps some.
    """
    # Who led may be over while others still fire.
    lead = bundle[0].lead or bundle[0]
    story = story_of(kind, bundle, now=now)
    for channel in channels(bundle[0].rule):
        if kind is NotificationKind.REMINDER and not kept_back:
            _replace_reminders(lead, channel, now=now)
        row = _notification(bundle[0].rule, story, channel, alert=lead, kind=kind, number=number, now=now)
        if kind is NotificationKind.RECOVERED and (note := _untold(lead, channel, now=now)):
            mails.say_first(row, note)
        if kept_back:
            row.state, row.last_error = NotificationState.SILENCED, kept_back
        elif kind is NotificationKind.RECOVERED and not _was_told(lead):
            row.state = NotificationState.SILENCED
            row.last_error = "Not sent: nobody was told that it fired."
        row.save()
    return story


def story_of(kind: NotificationKind, bundle: Sequence[Alert], *, now: datetime) -> Story:
    """Tell of alerts what a notification of this kind tells."""
    is_about_letters = stories.is_about_letters(bundle[0].rule)
    if kind is NotificationKind.RECOVERED:
        recovered = letter_stories.recovered if is_about_letters else state_stories.recovered
        return recovered(bundle, now=now)
    tone = Tone.STILL if kind is NotificationKind.REMINDER else Tone.FIRING
    firing = letter_stories.firing if is_about_letters else state_stories.firing
    return firing(bundle, tone=tone, now=now)


def channels(rule: AlertRule) -> list[str]:
    """Return the ways on which a rule tells."""
    return [EMAIL, WEBHOOK] if rule.webhook_url else [EMAIL]


def write_test(rule: AlertRule, *, asked_by: str, now: datetime) -> list[Notification]:
    """Write a test for each way of a rule; call it within a transaction."""
    story = stories.test(rule, asked_by=asked_by, now=now)
    rows = [
        _notification(rule, story, channel, alert=None, kind=NotificationKind.TEST, number=0, now=now)
        for channel in channels(rule)
    ]
    for row in rows:
        row.save()
    return rows


def message_id(
    rule: AlertRule, alert: Alert | None, kind: str, number: int, channel: str, now: datetime
) -> str:
    """Return the Message-ID, the same however often a mail is sent, so that readers show it once.

    The moment at which the alert began tells the alerts of two installations on one host apart.
    """
    host = urlsplit(conf.current().console_url).hostname or "localhost"
    host = host if ":" not in host else "localhost"
    began = now if alert is None else alert.began_at
    of = f"rule-{rule.pk}" if alert is None else f"alert-{alert.pk}"
    return f"<{of}.{kind}.{number}.{channel}.{int(began.timestamp() * 1_000_000)}@{host}>"


def _notification(
    rule: AlertRule,
    story: Story,
    channel: str,
    *,
    alert: Alert | None,
    kind: NotificationKind,
    number: int,
    now: datetime,
) -> Notification:
    row = Notification(
        alert=alert,
        rule=rule,
        kind=kind,
        number=number,
        channel=channel,
        message_id=message_id(rule, alert, kind, number, channel, now),
        created_at=now,
        due_at=now,
    )
    if channel == WEBHOOK:
        row.subject = mails.subject_of(story)
        row.recipients = [rule.webhook_url]
        row.body = mails.webhook_body(story)
        return row
    mail = mails.mail(story)
    row.subject, row.text, row.html = mail.subject, mail.text, mail.html
    row.recipients = recipients.of(rule)
    body: dict[str, Any] = {}
    if alert is not None and kind is not NotificationKind.FIRED:
        first = Notification.objects.filter(alert=alert, kind=NotificationKind.FIRED, channel=EMAIL).first()
        if first is not None:
            body["references"] = first.message_id
    row.body = body
    if not row.recipients:
        row.state, row.last_error = NotificationState.GAVE_UP, NO_RECIPIENTS
    return row


def _waiting(
    lead: Alert, channel: str, kinds: Sequence[NotificationKind], *, now: datetime
) -> QuerySet[Notification]:
    """Return what is not sent yet, and not being sent either."""
    return Notification.objects.filter(
        Q(claimed_until=None) | Q(claimed_until__lte=now),
        alert=lead,
        channel=channel,
        kind__in=kinds,
        state=NotificationState.WAITING,
    )


def _replace_reminders(lead: Alert, channel: str, *, now: datetime) -> None:
    """Give up older reminders that still wait: a mail server that is back sends the newest, and not a night of them."""
    _waiting(lead, channel, [NotificationKind.REMINDER], now=now).update(
        state=NotificationState.GAVE_UP, last_error="Not sent: the next reminder tells it."
    )


def _untold(lead: Alert, channel: str, *, now: datetime) -> str:
    """Give up what still waits to say that it fires: the recovery tells both. Return the words for it."""
    waiting = _waiting(lead, channel, [NotificationKind.FIRED, NotificationKind.REMINDER], now=now)
    first = waiting.order_by("created_at").first()
    if first is None:
        return ""
    was_first = first.kind == NotificationKind.FIRED
    waiting.update(
        state=NotificationState.GAVE_UP, last_error="Not sent: the mail that says it is over tells both."
    )
    if not was_first:
        return ""
    at = alert_words.clock(first.created_at, now=now)
    return f"That it fired could not be told at {at} UTC: {first.last_error or 'it was not sent in time'}"


def _was_told(lead: Alert) -> bool:
    """Say whether anything of the alert was sent, waits or was tried, and not only silenced."""
    told = Notification.objects.filter(alert=lead).exclude(kind=NotificationKind.RECOVERED)
    return told.exclude(state=NotificationState.SILENCED).exists()
