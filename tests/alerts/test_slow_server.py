"""A mail server that is slow or drips: everybody is told once, and nobody waits long for others."""

from __future__ import annotations

import smtplib
import socket
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.mail.backends.smtp import EmailBackend

from console.email_url import email_settings
from jobs.alerts import sending, smtp, telling, testing, webhooks
from jobs.audit import Actor
from jobs.core.words import AlertKind, NotificationState
from jobs.models import AlertRule, Notification
from jobs.runops import STUCK_SECONDS
from tests.alerts.answering import SLOW_TLS, answering
from tests.alerts.conftest import Hook
from tests.factories import NOW
from tests.mail_server import MailServer
from tests.stubborn_mail_server import StubbornMailServer

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
    monkeypatch.setattr(smtp, "SERVER_SECONDS", 0.2)
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = silent.getsockname()
        settings.EMAIL_TIMEOUT = None

        sent = sending.send_due(uniform=lambda _low, high: high, clock=lambda: NOW, check=lambda: None)

    assert sent == sending.Sent(failed=1)
    assert Notification.objects.get().last_error.startswith("The mail server did not take it: ")


@pytest.fixture
def mails_to(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets Django mail to a server, with so many seconds for each part of a conversation, and ten for each answer."""

    def point(server: StubbornMailServer | MailServer, *, seconds: float) -> None:
        monkeypatch.setattr(sending, "MAIL_SECONDS", seconds)
        for name, value in email_settings(server.url).items():
            setattr(settings, name, value)
        assert settings.EMAIL_TIMEOUT == 10

    return point


def send(now: datetime = NOW) -> sending.Sent:
    """Send what is due at a moment."""
    return sending.send_due(uniform=lambda _low, high: high, clock=lambda: now, check=lambda: None)


@pytest.mark.parametrize("step", ["GREETING", "EHLO", "MAIL", "RCPT", "DATA", "CONTENT"])
def test_a_server_that_drips_is_cut_off_and_what_else_is_due_is_sent(
    step: str, only_rule: Callable[..., AlertRule], mails_to: Callable[..., None], hook: Hook
) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, webhook_url=hook.url)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with StubbornMailServer(dripped=step) as server:
        mails_to(server, seconds=0.5)
        began = time.monotonic()

        sent = send()
        took = time.monotonic() - began

    assert took < 5
    assert sent == sending.Sent(sent=1, failed=1)
    assert len(hook.got) == 1
    mail = Notification.objects.get(channel="email")
    assert (mail.state, mail.attempts, mail.claimed_until) == (NotificationState.WAITING, 1, None)
    assert mail.last_error == "The mail server had not taken it after 0.5 s."
    assert mail.due_at == NOW + timedelta(seconds=11)


def test_a_server_that_drips_before_anything_is_said_is_cut_off_with_tls_too(
    only_rule: Callable[..., AlertRule], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MAIL_SECONDS", 0.5)
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with answering(*SLOW_TLS, every_seconds=0.05, keeps_open=True) as port:
        for name, value in email_settings(f"smtps://127.0.0.1:{port}").items():
            setattr(settings, name, value)
        began = time.monotonic()
        sent = send()
        took = time.monotonic() - began

    assert took < 5
    assert sent == sending.Sent(failed=1)
    assert Notification.objects.get().last_error == "The mail server had not taken it after 0.5 s."


def test_a_mail_is_sent_once_its_server_no_longer_drips(
    only_rule: Callable[..., AlertRule], mail_server: MailServer, mails_to: Callable[..., None]
) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with StubbornMailServer(dripped="RCPT") as server:
        mails_to(server, seconds=0.5)
        assert send() == sending.Sent(failed=1)
    mails_to(mail_server, seconds=30)

    sent = send(NOW + timedelta(minutes=1))

    assert sent == sending.Sent(sent=1)
    assert len(mail_server.received) == 1


def test_a_server_that_drips_its_goodbye_has_taken_the_mail(
    only_rule: Callable[..., AlertRule], mails_to: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "GOODBYE_SECONDS", 0.3)
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with StubbornMailServer(dripped="QUIT") as server:
        mails_to(server, seconds=30)
        began = time.monotonic()
        sent = send()
        took = time.monotonic() - began

    assert took < 5
    assert sent == sending.Sent(sent=1)
    assert server.taken == [["oncall@shop.example"]]


def test_each_recipient_has_the_whole_time_for_itself(
    only_rule: Callable[..., AlertRule], mails_to: Callable[..., None]
) -> None:
    people = [f"{name}@shop.example" for name in "abcd"]
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, recipients=people)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    # All four take longer than one may.
    with StubbornMailServer(slow="CONTENT", slow_seconds=1) as server:
        mails_to(server, seconds=3.5)
        sent = send()

    assert sent == sending.Sent(sent=1)
    assert server.taken == [[each] for each in people]


def test_a_server_that_drips_for_one_recipient_keeps_nobody_else_from_being_told(
    only_rule: Callable[..., AlertRule], mails_to: Callable[..., None]
) -> None:
    """Each try began with the one for whom it was cut off, until the mail was given up."""
    people = [f"{name}@shop.example" for name in "abc"]
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, recipients=people)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with StubbornMailServer(dripped="RCPT", dripped_for="a@shop.example") as server:
        mails_to(server, seconds=1.5)
        for number in range(2):
            assert send(NOW + timedelta(hours=number)) == sending.Sent(failed=1)

    assert server.taken == [["b@shop.example"], ["c@shop.example"]]
    assert Notification.objects.get().body["accepted"] == ["b@shop.example", "c@shop.example"]


class ConnectionOfOnesOwn(smtplib.SMTP):
    """Says another name of this machine."""

    def ehlo(self, name: str = "") -> tuple[int, bytes]:
        return super().ehlo(name or "of-ones-own")


class BackendOfOnesOwn(EmailBackend):
    """A project's backend, made of Django's."""

    connection_class = ConnectionOfOnesOwn


def test_a_backend_of_ones_own_that_is_made_of_djangos_is_cut_off_too(
    only_rule: Callable[..., AlertRule], mails_to: Callable[..., None], settings: Any
) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    with StubbornMailServer(dripped="MAIL") as server:
        # It has to come as far as its greeting.
        mails_to(server, seconds=1.5)
        settings.EMAIL_BACKEND = f"{__name__}.BackendOfOnesOwn"
        began = time.monotonic()
        sent = send()
        took = time.monotonic() - began

    assert took < 5
    assert sent == sending.Sent(failed=1)
    assert server.hosts == ["of-ones-own"]


def test_a_round_that_takes_long_ends_before_all_is_tried(
    only_rule: Callable[..., AlertRule], mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "ROUND_SECONDS", -1)
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    for number in range(3):
        telling.write_test(rule, asked_by="Mara", now=NOW - timedelta(seconds=number))

    assert [send().sent for _ in range(4)] == [1, 1, 1, 0]
    assert len(mail_server.received) == 3


def test_no_mail_takes_longer_than_its_claim_and_no_round_as_long_as_one_that_is_stuck() -> None:
    first = 2 * sending.MAIL_SECONDS
    last = sending.MAILING_SECONDS + sending.MAIL_SECONDS
    longest = max(first, last, webhooks.CALL_SECONDS) + sending.GOODBYE_SECONDS

    assert longest < sending.CLAIM.total_seconds()
    assert sending.ROUND_SECONDS + longest < STUCK_SECONDS
