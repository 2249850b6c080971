"""From jobs that die to a mail, and back: real runops processes, a real mail server, a real page."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobs.agent.wire import Record
from jobs.audit import Actor
from jobs.core.words import AlertKind, AlertState, LetterState, NotificationState
from jobs.models import Alert, AlertRule, DeadLetter, Notification, WorkerBoot
from jobs.operations import Selection, start_replay
from tests.factories import make_record
from tests.mail_server import MailServer
from tests.runops_place import ROOT, RunopsPlace, kill
from tests.servers import running, wait_until

pytestmark = pytest.mark.worker


class AlertPlace(RunopsPlace):
    """A place whose runops judge each half second and mail to ``mails``."""

    def __init__(self) -> None:
        super().__init__()
        self.mails = MailServer()
        self.every_seconds = "0.5"

    @property
    def env(self) -> dict[str, str]:
        return {
            **super().env,
            "EMAIL_URL": self.mails.url,
            "ALERT_EMAILS": "oncall@shop.example",
            "CONSOLE_URL": "http://testserver",
            "JOBS_ENVIRONMENT": "production",
            "JOBS_ALERT_EVERY_SECONDS": self.every_seconds,
        }


@pytest.fixture
def place(django_db_setup, django_db_blocker) -> Iterator[AlertPlace]:
    place = AlertPlace()
    with django_db_blocker.unblock(), place.entered(), ExitStack() as stack:
        place.mails.start()
        stack.callback(place.mails.stop)
        yield place


@pytest.fixture
def watch(place: AlertPlace) -> Callable[..., AlertRule]:
    """Makes a rule that is the only one; it recovers and fires again at once unless the test says otherwise."""

    def make(kind: AlertKind, **fields: Any) -> AlertRule:
        AlertRule.objects.update(is_enabled=False)
        quick = {"recovery_hold_seconds": 0, "cool_down_seconds": 0, "reminder_seconds": 0}
        return AlertRule.objects.create(name="Watched", kind=kind, **{**quick, **fields})

    return make


def deaths(count: int, *, seconds_ago: float = 0.0) -> list[Record]:
    """Return what an agent reports of so many jobs that died of one thing."""
    at = timezone.now().timestamp() - seconds_ago
    return [
        make_record(
            kwargs={"order_id": number},
            error_type="smtplib.SMTPServerDisconnected",
            error="Connection unexpectedly closed",
            at=at,
        )
        for number in range(count)
    ]


def letters_on(address: str) -> set[str]:
    """Open the page that a mail links to, logged in, and return the ids of the letters it lists."""
    client = Client()
    client.force_login(User.objects.get(username="mara"))
    parts = urllib.parse.urlsplit(address)
    answer = client.get(f"{parts.path}?{parts.query}")
    assert answer.status_code == 200
    return set(re.findall(r'data-row-of="([0-9a-f-]{36})"', answer.content.decode()))


def link(text: str) -> str:
    """Return the address of a mail's list of letters."""
    found = re.search(r"http://testserver/dead-letters/\S+", text)
    assert found is not None
    return found[0]


def test_letters_grow_and_are_replayed_and_each_is_one_mail(
    place: AlertPlace, watch: Callable[..., AlertRule]
) -> None:
    """Jobs die and are replayed in a real worker, and the rules are judged as often as they are by default."""
    User.objects.create_superuser("mara", "", "x")
    watch(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=1)
    place.every_seconds = "5"
    place.start_runops()
    # What died before, and is no part of it.
    place.report(deaths(5, seconds_ago=7200))
    wait_until(lambda: DeadLetter.objects.count() == 5, seconds=30, what="the older letters")
    with worker_on_critical(place):
        began = timezone.now()
        send_jobs(place, 30, queue="critical")
        wait_until(lambda: place.mails.received, seconds=30, what="the mail")

        assert timezone.now() - began < timedelta(seconds=30)
        (fired,) = place.mails.received
        assert re.fullmatch(
            r"\[production\] Dead letters grow by 30 a minute since \d\d:\d\d UTC", fired.subject
        )
        young = DeadLetter.objects.filter(first_died_at__gte=began - timedelta(minutes=1))
        assert young.count() == 30
        assert letters_on(link(fired.text)) == {str(letter.uuid) for letter in young}
        assert link(fired.text) in fired.html.replace("&amp;", "&")

        fix(place)
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(link(fired.text)).query)["q"][0]
        replay(query)
        wait_until(
            lambda: DeadLetter.objects.filter(state=LetterState.RESOLVED).count() == 30,
            seconds=30,
            what="outcomes",
        )
        wait_until(lambda: len(place.mails.received) == 2, seconds=90, what="the recovery mail")

        recovered = place.mails.received[1]
        assert re.fullmatch(
            r"\[production\] Recovered after .*: dead letters no longer grow", recovered.subject
        )
        assert recovered.message["References"] == fired.message["Message-ID"]
        text = " ".join(recovered.text.split())
        assert "30 jobs died. None of them waits any more; 5 dead letters still wait for someone." in text
        assert "Mara started to replay 30 letters" in text
        wait_a_few_rounds(place, 2)
        assert len(place.mails.received) == 2


def fix(place: AlertPlace) -> None:
    """Put the shop right, so that its jobs succeed."""
    (place.directory / "fixed").touch()


def replay(query: str) -> None:
    """Start the replay of what a search finds, as the page does."""
    now = timezone.now()
    selection = Selection.of_query(query, now=now)
    start_replay(selection=selection, actor=Actor(name="Mara"), why="The relay is back.", now=now)


def wait_a_few_rounds(place: AlertPlace, rounds: int = 4) -> None:
    """Wait until the rules were judged, and what is due sent, so many times more."""
    for _ in range(rounds):
        before = timezone.now()
        wait_until(
            lambda before=before: AlertRule.objects.filter(evaluated_at__gt=before).exists(),
            seconds=20,
            what="another judgement",
        )


def grows(place: AlertPlace) -> None:
    """Let 30 jobs die, and wait until that is known."""
    place.report(deaths(30))
    wait_until(lambda: Alert.objects.filter(state=AlertState.FIRING).exists(), seconds=30, what="the alert")


def test_a_steady_three_dead_letters_send_nothing_under_the_rules_of_a_fresh_installation(
    place: AlertPlace,
) -> None:
    place.start_runops()
    for _ in range(3):
        place.report(deaths(1))
        wait_a_few_rounds(place, 2)
    wait_until(lambda: DeadLetter.objects.count() == 3, seconds=30, what="the letters")
    wait_a_few_rounds(place)

    assert not Notification.objects.exists()
    assert place.mails.received == []


def test_while_the_mail_server_is_down_the_mail_waits_and_comes_once_though_runops_was_killed_meanwhile(
    place: AlertPlace, watch: Callable[..., AlertRule]
) -> None:
    watch(AlertKind.LETTERS_GROWING, threshold=2, window_minutes=10)
    place.mails.stop()
    process = place.start_runops()
    grows(place)
    wait_until(lambda: Notification.objects.get().last_error, seconds=30, what="a try that failed")
    kill(process)
    waiting = Notification.objects.get()
    assert (waiting.state, waiting.sent_at) == (NotificationState.WAITING, None)

    place.mails.start()
    place.start_runops()
    wait_until(lambda: place.mails.received, seconds=60, what="the mail")
    wait_until(
        lambda: Notification.objects.get().state == NotificationState.SENT, seconds=10, what="its mark"
    )
    wait_a_few_rounds(place, 6)

    assert len(place.mails.received) == 1
    assert Notification.objects.count() == 1


def test_runops_that_is_restarted_again_and_again_tells_once(
    place: AlertPlace, watch: Callable[..., AlertRule]
) -> None:
    watch(AlertKind.LETTERS_GROWING, threshold=2, window_minutes=10)
    process = place.start_runops()
    grows(place)
    for _ in range(3):
        kill(process)
        process = place.start_runops()
        wait_a_few_rounds(place, 2)

    wait_until(lambda: place.mails.received, seconds=150, what="the mail")
    wait_a_few_rounds(place)
    # One that was killed between the server's yes and its mark sends it again, under the same id.
    assert len({mail.message["Message-ID"] for mail in place.mails.received}) == 1
    assert Notification.objects.count() == 1


def test_two_runops_send_one_mail(place: AlertPlace, watch: Callable[..., AlertRule]) -> None:
    watch(AlertKind.LETTERS_GROWING, threshold=2, window_minutes=10)
    for _ in range(2):
        place.start_runops()
    grows(place)
    wait_until(lambda: place.mails.received, seconds=30, what="the mail")
    wait_a_few_rounds(place, 6)

    assert len(place.mails.received) == 1


@contextmanager
def worker_on_critical(place: AlertPlace) -> Iterator[subprocess.Popen[bytes]]:
    """Run a real worker that consumes the queue critical and has reported."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "tests.journeys.shop", "worker"),
        *("-c", "1", "-Q", "critical", "-n", "only@one"),
    ]
    env = {**place.env, "SHOP_SWITCH": str(place.directory / "fixed"), "JOBS_PREFLIGHT": "off"}
    with running(command, env=env, log=place.directory / "worker.log", cwd=ROOT) as worker:
        wait_until(
            lambda: WorkerBoot.objects.filter(hostname="only@one").exists(), seconds=60, what="the worker"
        )
        yield worker


def send_jobs(place: AlertPlace, count: int, *, queue: str) -> None:
    with Celery("publisher", broker=place.redis.url, set_as_current=False) as app:
        for number in range(count):
            app.send_task(
                "shop.tasks.send_receipt", kwargs={"order_id": number}, queue=queue, ignore_result=True
            )


def test_row_101_a_queue_whose_name_is_wrong_is_a_mail_though_workers_live(
    place: AlertPlace, watch: Callable[..., AlertRule]
) -> None:
    watch(AlertKind.NO_CONSUMER)
    place.start_runops()
    with worker_on_critical(place):
        send_jobs(place, 3, queue="critcal")
        # Queues that no worker names are looked for once a minute.
        wait_until(lambda: place.mails.received, seconds=120, what="the mail")

    (mail,) = place.mails.received
    assert mail.subject.startswith("[production] Nobody works on queue critcal since ")
    assert "3 messages wait; 1 worker online, none on it." in " ".join(mail.text.split())


def test_all_workers_gone_is_a_mail_though_no_worker_can_run_anything(
    place: AlertPlace, watch: Callable[..., AlertRule]
) -> None:
    watch(AlertKind.NO_CONSUMER)
    place.start_runops()
    with worker_on_critical(place) as worker:
        kill(worker)
    send_jobs(place, 7, queue="critical")

    wait_until(lambda: place.mails.received, seconds=90, what="the mail")

    (mail,) = place.mails.received
    assert mail.subject.startswith("[production] Nobody works on queue critical since ")
    text = " ".join(mail.text.split())
    assert "7 messages wait; no worker is online." in text
    assert "/queues/one/?name=critical" in text
