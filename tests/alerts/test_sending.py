"""What is told reaches a real mail server or a real webhook: once, later, or not, and the row says which."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from jobs.alerts import sending, telling, testing
from jobs.alerts.evaluating import evaluate
from jobs.alerts.sending import CLAIM, NO_MAIL_SERVER, send_due
from jobs.alerts.webhooks import WebhookFailed, call
from jobs.audit import Actor
from jobs.core.words import AlertKind, NotificationState
from jobs.errors import AlertRefused
from jobs.models import Alert, AlertRule, AuditEntry, Notification, QueueSample
from jobs.queues import sampling
from tests.alerts.conftest import Hook
from tests.factories import NOW
from tests.mail_server import MailServer
from tests.servers import free_port

pytestmark = pytest.mark.django_db

MARA = Actor(name="Mara")
SECOND = timedelta(seconds=1)
Make = Callable[..., AlertRule]


def send(now: datetime, *, wait: float = 1.0) -> sending.Sent:
    """Send what is due at a moment; each wait is its longest times ``wait``."""
    return send_due(uniform=lambda _low, high: high * wait, clock=lambda: now, check=lambda: None)


def written(rule: AlertRule, **fields: Any) -> Notification:
    """Write a test of a rule, with other columns."""
    (row,) = testing.send_test(rule=rule, actor=MARA, now=NOW)
    Notification.objects.filter(pk=row.pk).update(**fields)
    return row


@pytest.fixture
def rule(only_rule: Make) -> AlertRule:
    return only_rule(AlertKind.LETTERS_GROWING, threshold=20)


def test_a_mail_is_sent_once_and_says_who_sends_it_and_that_no_person_does(
    rule: AlertRule, mail_server: MailServer
) -> None:
    row = written(rule)

    assert send(NOW) == sending.Sent(sent=1)
    assert send(NOW + SECOND) == sending.Sent()

    row.refresh_from_db()
    assert (row.state, row.sent_at, row.attempts, row.last_error) == (NotificationState.SENT, NOW, 1, "")
    (mail,) = mail_server.received
    assert mail.recipients == ["oncall@shop.example"]
    assert mail.subject == "[production] Test of the rule “Watched”"
    assert mail.message["Message-ID"] == row.message_id
    assert mail.message["Auto-Submitted"] == "auto-generated"
    assert "Nothing is wrong" in mail.text
    assert "Nothing is wrong" in mail.html


def test_while_the_mail_server_is_down_it_waits_longer_each_time_and_then_sends_once_and_says_that_it_is_late(
    rule: AlertRule, mail_server: MailServer
) -> None:
    row = written(rule)
    mail_server.stop()
    now, waits = NOW, []

    for _ in range(8):
        send(now)
        row.refresh_from_db()
        waits.append((row.due_at - now).total_seconds())
        assert send(now + SECOND / 2) == sending.Sent(), "it is not due yet"
        now = row.due_at
    assert waits == sorted(waits)
    assert waits[-1] == 301
    assert row.state == NotificationState.WAITING
    assert "refused" in row.last_error.lower()

    mail_server.start()
    assert send(now).sent == 1
    assert send(now + timedelta(hours=1)).sent == 0
    (mail,) = mail_server.received
    assert mail.text.startswith("This comes ")
    assert "Its figures are those of 03:12 UTC" in " ".join(mail.text.split())
    assert "Its figures are those of 03:12 UTC" in mail.html


def test_after_a_day_it_is_given_up(rule: AlertRule, mail_server: MailServer) -> None:
    mail_server.stop()
    row = written(rule, created_at=NOW - timedelta(hours=24))

    assert send(NOW).gave_up == 1

    row.refresh_from_db()
    assert row.state == NotificationState.GAVE_UP


def test_without_a_mail_server_it_is_given_up_at_once_and_says_what_to_set(rule: AlertRule, settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    row = written(rule)

    assert send(NOW).gave_up == 1

    row.refresh_from_db()
    assert (row.state, row.last_error, row.sent_at) == (NotificationState.GAVE_UP, NO_MAIL_SERVER, None)


def test_one_address_that_is_refused_for_good_keeps_nobody_else_from_being_told(
    rule: AlertRule, mail_server: MailServer
) -> None:
    row = written(rule, recipients=["gone@shop.example", "mara@shop.example"])
    mail_server.refusals["gone@shop.example"] = "550 no such user"

    send(NOW)

    row.refresh_from_db()
    assert row.state == NotificationState.SENT
    assert "gone@shop.example" in row.last_error
    assert [mail.recipients for mail in mail_server.received] == [["mara@shop.example"]]
    assert mail_server.received[0].message["To"] == "gone@shop.example, mara@shop.example"


def test_an_address_that_is_to_be_tried_later_is_and_nobody_gets_it_twice(
    rule: AlertRule, mail_server: MailServer
) -> None:
    row = written(rule, recipients=["mara@shop.example", "slow@shop.example"])
    mail_server.refusals["slow@shop.example"] = "451 try again later"

    send(NOW)
    row.refresh_from_db()
    assert row.state == NotificationState.WAITING
    mail_server.refusals.clear()
    send(row.due_at)

    row.refresh_from_db()
    assert row.state == NotificationState.SENT
    assert [mail.recipients for mail in mail_server.received] == [
        ["mara@shop.example"],
        ["slow@shop.example"],
    ]


def test_a_server_that_refuses_the_content_is_asked_again(rule: AlertRule, mail_server: MailServer) -> None:
    row = written(rule)
    mail_server.answer = "554 looks like spam"

    send(NOW)

    row.refresh_from_db()
    assert row.state == NotificationState.WAITING
    assert "looks like spam" in row.last_error


def test_what_somebody_else_has_claimed_is_left_alone_until_the_claim_runs_out(
    rule: AlertRule, mail_server: MailServer
) -> None:
    """A process that died while it sent: the same Message-ID goes out again, after its claim."""
    row = written(rule)
    assert sending.claim(row.pk, now=NOW) is not None

    assert sending.claim(row.pk, now=NOW) is None
    assert send(NOW + CLAIM - SECOND) == sending.Sent()
    assert send(NOW + CLAIM + SECOND).sent == 1

    assert [mail.message["Message-ID"] for mail in mail_server.received] == [row.message_id]


def test_a_server_that_breaks_off_after_it_took_a_mail_gets_it_again_under_the_same_id(
    rule: AlertRule, mail_server: MailServer
) -> None:
    row = written(rule)
    mail_server.breaks_off = True
    send(NOW)
    row.refresh_from_db()
    assert row.state == NotificationState.WAITING

    mail_server.breaks_off = False
    send(row.due_at)

    assert len({mail.message["Message-ID"] for mail in mail_server.received}) == 1
    row.refresh_from_db()
    assert row.state == NotificationState.SENT


def test_flapping_around_a_threshold_sends_no_more_mails_than_the_cool_down_allows(
    only_rule: Make, mail_server: MailServer
) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10, cool_down_seconds=900)
    for number in range(0, 3600, 30):
        now = NOW + number * SECOND
        is_above = number % 60 > 0
        sample = QueueSample(queue="critical", ready=11 if is_above else 9, consumers=1)
        sampling.write([sample], now=now)
        evaluate(now=now)
        send(now)

    fired = [mail for mail in mail_server.received if "Recovered" not in mail.subject]
    recovered = [mail for mail in mail_server.received if "Recovered" in mail.subject]
    assert 2 <= len(fired) <= 1 + 3600 / 900
    # Each recovery answers one of them, and none is answered twice.
    answered = [mail.message["References"] for mail in recovered]
    assert len(set(answered)) == len(answered)
    assert set(answered) <= {mail.message["Message-ID"] for mail in fired}


def test_a_recovery_answers_the_mail_that_said_it_fires(rule: AlertRule, mail_server: MailServer) -> None:
    row = written(rule, body={"references": "<alert-1.fired@jobs.example>"})

    send(NOW)

    message = mail_server.received[0].message
    assert message["References"] == message["In-Reply-To"] == "<alert-1.fired@jobs.example>"
    row.refresh_from_db()
    assert row.state == NotificationState.SENT


@pytest.mark.parametrize("name", ["x\r\nBcc: all@shop.example", "x\nBcc: all@shop.example\n\nhello"])
def test_no_name_adds_a_header(only_rule: Make, mail_server: MailServer, name: str) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, name=name)
    written(rule)

    send(NOW)

    (mail,) = mail_server.received
    assert mail.message["Bcc"] is None
    assert mail.recipients == ["oncall@shop.example"]
    assert "\n" not in mail.subject


def test_who_no_longer_holds_the_duty_sends_nothing_more(rule: AlertRule, mail_server: MailServer) -> None:
    written(rule)

    def lost() -> None:
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError):
        send_due(uniform=lambda *_: 0.0, clock=lambda: NOW, check=lost)
    assert mail_server.received == []


def test_a_new_mail_waits_for_one_webhook_that_hangs_and_not_for_all(
    only_rule: Make, mail_server: MailServer, hook: Hook
) -> None:
    """A chat that is away takes each call's whole time, and every rule may have one."""
    hook.status = 500
    for _ in range(3):
        rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, webhook_url=hook.url)
        testing.send_test(rule=rule, actor=MARA, now=NOW - SECOND)
    Notification.objects.filter(channel="email").delete()
    Notification.objects.update(attempts=3)
    called = []

    def calls_so_far() -> None:
        if not called:
            testing.send_test(rule=only_rule(AlertKind.LETTERS_GROWING), actor=MARA, now=NOW)
        called.append((len(hook.got), len(mail_server.received)))

    sent = send_due(uniform=lambda *_: 1.0, clock=lambda: NOW, check=calls_so_far)

    assert sent == sending.Sent(sent=1, failed=3)
    assert called == [(0, 0), (1, 0), (1, 1), (2, 1)]


def test_a_second_test_waits_for_the_first(rule: AlertRule) -> None:
    testing.send_test(rule=rule, actor=MARA, now=NOW)

    with pytest.raises(AlertRefused, match="is on its way since 03:12:00 UTC"):
        testing.send_test(rule=rule, actor=MARA, now=NOW)

    assert AuditEntry.objects.get().text == "sent a test of the alert rule “Watched”"


def test_the_id_of_a_mail_is_the_same_however_often_it_is_made(rule: AlertRule) -> None:
    alert = Alert.objects.create(rule=rule, state="firing", began_at=NOW)

    first = telling.message_id(rule, alert, "fired", 0, "email", NOW)
    later = telling.message_id(rule, alert, "fired", 0, "email", NOW + SECOND)

    assert first == later
    assert first.endswith("@jobs.shop.example>")


def test_a_webhook_gets_what_slack_reads(only_rule: Make, mail_server: MailServer, hook: Hook) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, webhook_url=hook.url)
    testing.send_test(rule=rule, actor=MARA, now=NOW)

    assert send(NOW).sent == 2

    (body,) = hook.got
    assert body["text"] == "i [production] Test of the rule “Watched”"
    (attachment,) = body["attachments"]
    assert attachment["title"] == "This is a test"
    assert attachment["title_link"] == f"https://jobs.shop.example/alerts/rules/{rule.pk}/"


def test_a_webhook_that_refuses_is_called_again_and_the_row_says_what_it_answered(
    only_rule: Make, mail_server: MailServer, hook: Hook
) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, webhook_url=hook.url)
    rows = testing.send_test(rule=rule, actor=MARA, now=NOW)
    hook.status = 400

    assert send(NOW) == sending.Sent(sent=1, failed=1)

    row = Notification.objects.get(pk=rows[1].pk)
    assert (row.state, row.last_error) == (
        NotificationState.WAITING,
        "It answered 400 Bad Request: invalid_payload",
    )
    assert "secret" not in row.last_error


def test_a_webhook_follows_no_redirect(hook: Hook) -> None:
    hook.status, hook.location = 302, hook.url

    with pytest.raises(WebhookFailed, match="It answered 302"):
        call(hook.url, {"text": "x"})
    assert len(hook.got) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
    ],
)
def test_addresses_where_clouds_hand_out_credentials_are_never_called(url: str) -> None:
    with pytest.raises(WebhookFailed, match="never called"):
        call(url, {"text": "x"})


def test_a_webhook_that_cannot_be_reached_says_so_without_its_address() -> None:
    with pytest.raises(WebhookFailed, match="It cannot be reached") as caught:
        call(f"http://127.0.0.1:{free_port()}/secret", {"text": "x"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://a.example/", "https://"])
def test_only_web_addresses_are_called(url: str) -> None:
    with pytest.raises(WebhookFailed, match="does not begin with https"):
        call(url, {"text": "x"})


def test_a_webhook_that_answers_what_no_database_takes_holds_up_nobody(
    only_rule: Make, mail_server: MailServer, hook: Hook
) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, webhook_url=hook.url)
    rows = testing.send_test(rule=rule, actor=MARA, now=NOW)
    hook.status, hook.answer = 500, b"out\x00of\x1border"

    assert send(NOW) == sending.Sent(sent=1, failed=1)

    row = Notification.objects.get(pk=rows[1].pk)
    assert row.last_error == "It answered 500 Internal Server Error: out\ufffdof\ufffdorder"
    assert row.claimed_until is None


def test_a_rule_that_is_deleted_while_its_mail_is_claimed_holds_up_nobody(rule: AlertRule) -> None:
    row = written(rule)

    def deletes_after_the_claim(execute: Any, sql: str, *rest: Any) -> Any:
        result = execute(sql, *rest)
        if sql.startswith("UPDATE"):
            AlertRule.objects.filter(pk=rule.pk).delete()
        return result

    with connection.execute_wrapper(deletes_after_the_claim):
        assert sending.claim(row.pk, now=NOW) is None
