"""A sender that stands still, as on a machine that swaps, while somebody else sends what it had claimed."""

from __future__ import annotations

import os
import signal
import smtplib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.db import connection
from django.utils import timezone

from console.email_url import email_settings
from jobs.alerts import sending, testing
from jobs.audit import Actor
from jobs.core.words import AlertKind, NotificationState
from jobs.models import AlertRule, Notification
from tests.factories import NOW
from tests.runops_place import ROOT, RunopsPlace
from tests.servers import wait_until
from tests.stubborn_mail_server import StubbornMailServer

CLAIM = timedelta(seconds=4)
# Claims what is due, for four seconds, and sends it.
SENDER = f"""
import datetime, random
import django
django.setup()
from django.utils import timezone
from jobs.alerts import sending
sending.CLAIM = datetime.timedelta(seconds={CLAIM.total_seconds()})
print(sending.send_due(uniform=random.uniform, clock=timezone.now, check=lambda: None))
"""


@pytest.fixture
def place(django_db_setup: None, django_db_blocker: Any) -> Iterator[RunopsPlace]:
    """A database in a file."""
    with django_db_blocker.unblock(), RunopsPlace().entered() as place:
        yield place


@pytest.mark.parametrize("step", ["RCPT", "DATA"])
def test_a_process_that_stands_still_until_its_claim_is_over_sends_nothing_more(
    step: str, place: RunopsPlace, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "CLAIM", CLAIM)
    rule = AlertRule.objects.create(
        name="Watched", kind=AlertKind.LETTERS_GROWING, recipients=["oncall@shop.example"]
    )
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=timezone.now())
    with StubbornMailServer(held=step) as server:
        for name, value in email_settings(server.url).items():
            setattr(settings, name, value)
        stopped = subprocess.Popen(
            [sys.executable, "-c", SENDER],
            env={**os.environ, **place.env, "EMAIL_URL": server.url},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.reached.wait(60)
            os.kill(stopped.pid, signal.SIGSTOP)
            # The answer is there, and read once the process goes on.
            server.let_go.set()
            wait_until(
                lambda: (
                    sending.send_due(
                        uniform=lambda low, _high: low, clock=timezone.now, check=lambda: None
                    ).sent
                ),
                what="the claim to be over",
            )
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
            said, _ = stopped.communicate(timeout=60)

    assert said == "Sent(sent=0, failed=1, gave_up=0)\n"
    assert server.taken == [["oncall@shop.example"]]
    row = Notification.objects.get()
    assert (row.state, row.attempts, row.last_error) == (NotificationState.SENT, 2, "")


@pytest.mark.django_db
def test_nothing_is_sent_by_who_goes_on_before_it_is_cut_off(
    only_rule: Callable[..., AlertRule], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    name_recipient = smtplib.SMTP.rcpt

    def stand_still(connection: smtplib.SMTP, *arguments: Any) -> tuple[int, bytes]:
        answer = name_recipient(connection, *arguments)
        # As long as the claim lasts: to the thread that cuts it off no time has passed.
        monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 120)
        return answer

    monkeypatch.setattr(smtplib.SMTP, "rcpt", stand_still)
    with StubbornMailServer() as server:
        for name, value in email_settings(server.url).items():
            setattr(settings, name, value)

        sent = sending.send_due(uniform=lambda low, _high: low, clock=lambda: NOW, check=lambda: None)

    assert sent == sending.Sent(failed=1)
    assert server.taken == []
    assert Notification.objects.get().last_error == "The mail server had not taken it after 30 s."


class StandsStill(BaseEmailBackend):
    """Fails after somebody else has claimed the mail meanwhile."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        assert sending.claim(Notification.objects.get().pk, now=NOW + sending.CLAIM) is not None
        raise smtplib.SMTPServerDisconnected("Connection unexpectedly closed")


@pytest.mark.django_db
def test_a_process_that_fails_after_it_stood_still_leaves_the_claim_to_whoever_has_it(
    only_rule: Callable[..., AlertRule], settings: Any
) -> None:
    testing.send_test(
        rule=only_rule(AlertKind.LETTERS_GROWING, threshold=20), actor=Actor(name="Mara"), now=NOW
    )
    settings.EMAIL_BACKEND = f"{__name__}.StandsStill"

    sent = sending.send_due(uniform=lambda low, _high: low, clock=lambda: NOW, check=lambda: None)

    row = Notification.objects.get()
    assert sent == sending.Sent(failed=1)
    assert (row.attempts, row.claimed_until) == (2, NOW + 2 * sending.CLAIM)
    assert (row.due_at, row.last_error) == (NOW, "")


@pytest.mark.django_db
def test_a_process_that_stands_still_while_it_claims_has_not_got_what_somebody_else_claimed_meanwhile(
    only_rule: Callable[..., AlertRule],
) -> None:
    testing.send_test(
        rule=only_rule(AlertKind.LETTERS_GROWING, threshold=20), actor=Actor(name="Mara"), now=NOW
    )
    pk = Notification.objects.get().pk
    elsewhere: list[Notification | None] = []

    def stand_still(execute: Callable[..., Any], sql: str, *arguments: Any) -> Any:
        answer = execute(sql, *arguments)
        if sql.startswith("UPDATE") and not elsewhere:
            elsewhere.append(None)
            elsewhere[0] = sending.claim(pk, now=NOW + sending.CLAIM)
        return answer

    with connection.execute_wrapper(stand_still):
        here = sending.claim(pk, now=NOW)

    assert here is None
    assert elsewhere == [Notification.objects.get()]
    assert Notification.objects.get().claimed_until == NOW + 2 * sending.CLAIM


class OthersToldMeanwhile(BaseEmailBackend):
    """Takes a mail for one recipient; somebody else has sent it to another meanwhile."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        (message,) = email_messages
        if message.recipients() != ["a@shop.example"]:
            raise smtplib.SMTPServerDisconnected("Connection unexpectedly closed")
        row = Notification.objects.get()
        row.body = {**row.body, "accepted": ["c@shop.example"]}
        row.save()
        return 1


@pytest.mark.django_db
def test_who_was_told_by_somebody_else_meanwhile_is_not_forgotten(
    only_rule: Callable[..., AlertRule], settings: Any
) -> None:
    people = [f"{name}@shop.example" for name in "abc"]
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, recipients=people)
    testing.send_test(rule=rule, actor=Actor(name="Mara"), now=NOW)
    settings.EMAIL_BACKEND = f"{__name__}.OthersToldMeanwhile"

    sending.send_due(uniform=lambda low, _high: low, clock=lambda: NOW, check=lambda: None)

    assert Notification.objects.get().body["accepted"] == ["a@shop.example", "c@shop.example"]
