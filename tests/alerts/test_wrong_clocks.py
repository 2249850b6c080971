"""A clock that was ahead, and is right again, silences nothing until the time it told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from jobs.alerts.evaluating import evaluate
from jobs.alerts.sending import CAP_SECONDS, claim, send_due
from jobs.core.words import AlertKind, AlertState, SampleLevel
from jobs.models import Alert, AlertRule, Notification, QueueSample
from tests.factories import NOW
from tests.mail_server import MailServer

pytestmark = pytest.mark.django_db

AHEAD = NOW + timedelta(days=3_650)
Make = Callable[..., AlertRule]


def judge(ready: int, *, at) -> None:
    """Count a queue at a moment, and judge."""
    QueueSample.objects.all().delete()
    QueueSample.objects.create(
        level=SampleLevel.SAMPLE, queue="critical", at=at, ready=ready, ready_max=ready, consumers=1
    )
    evaluate(now=at)


def test_a_rule_fires_after_the_clock_was_ahead(only_rule: Make) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10)
    judge(0, at=AHEAD)

    judge(500, at=NOW)

    assert Alert.objects.get().state == AlertState.FIRING


@pytest.mark.parametrize("hold_seconds", [0, 30])
def test_what_began_and_ended_while_the_clock_was_ahead_holds_nothing_back(
    only_rule: Make, hold_seconds: int
) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10, hold_seconds=hold_seconds, cool_down_seconds=60)
    # Fired and recovered, and pending again, in the future.
    for seconds, ready in ((0, 500), (30, 500), (60, 0), (90, 500)):
        judge(ready, at=AHEAD + timedelta(seconds=seconds))

    for seconds in range(0, 121, 30):
        judge(500, at=NOW + timedelta(seconds=seconds))

    assert Alert.objects.filter(state=AlertState.FIRING).count() == 1


def test_what_fired_while_the_clock_was_ahead_ends_and_collects_nothing_for_years(only_rule: Make) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10, recovery_hold_seconds=30, cool_down_seconds=60)
    judge(500, at=AHEAD)
    judge(0, at=AHEAD + timedelta(seconds=5))

    for seconds in (0, 30):
        judge(0, at=NOW + timedelta(seconds=seconds))

    assert Alert.objects.get().state == AlertState.RESOLVED


def test_a_mail_that_was_written_or_claimed_by_a_clock_that_was_ahead_is_sent_now(
    only_rule: Make, mail_server: MailServer
) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10)
    judge(500, at=AHEAD)
    row = Notification.objects.get()
    assert claim(row.pk, now=AHEAD) is not None

    sent = send_due(uniform=lambda low, high: high, clock=lambda: NOW, check=lambda: None)

    assert (sent.sent, len(mail_server.received)) == (1, 1)


def test_a_mail_that_waits_for_its_next_try_still_waits(only_rule: Make, mail_server: MailServer) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10)
    judge(500, at=NOW)
    Notification.objects.update(due_at=NOW + timedelta(seconds=CAP_SECONDS))

    sent = send_due(uniform=lambda low, high: high, clock=lambda: NOW, check=lambda: None)

    assert sent.sent == 0
