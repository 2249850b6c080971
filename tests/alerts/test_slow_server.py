"""A mail server that is slow gets a mail for many in several rounds, and everybody gets it once."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobs.alerts import sending, testing
from jobs.audit import Actor
from jobs.core.words import AlertKind, NotificationState
from jobs.models import AlertRule, Notification
from tests.factories import NOW
from tests.mail_server import MailServer

pytestmark = pytest.mark.django_db


def test_what_a_slow_server_has_not_taken_follows_later_and_nobody_gets_it_twice(
    only_rule: Callable[..., AlertRule], mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MAILING_SECONDS", -1)
    people = [f"{name}@shop.example" for name in ("a", "b", "c")]
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, recipients=people)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)

    said = []
    for minutes in range(4):
        now = NOW + timedelta(minutes=10 * minutes)
        sending.send_due(uniform=lambda _low, high: high, clock=lambda now=now: now, check=lambda: None)
        said.append(Notification.objects.get().last_error)

    assert [received.recipients for received in mail_server.received] == [[each] for each in people]
    assert Notification.objects.get().state == NotificationState.SENT
    assert said[0] == "The mail server is slow: 2 of 3 have yet to get it."


def test_a_server_that_never_answers_is_left_though_the_project_sets_no_timeout(
    only_rule: Callable[..., AlertRule], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SERVER_SECONDS", 0.2)
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = silent.getsockname()
        settings.EMAIL_TIMEOUT = None

        sent = sending.send_due(uniform=lambda _low, high: high, clock=lambda: NOW, check=lambda: None)

    assert sent == sending.Sent(failed=1)
    assert Notification.objects.get().last_error.startswith("The mail server did not take it: ")
