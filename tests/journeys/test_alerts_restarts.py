"""Runops is killed, the mail server is down, two judge at once: people are told once."""

from __future__ import annotations

import pytest

from jobs.core.words import AlertKind, NotificationState
from jobs.models import Notification
from tests.journeys.alert_place import AlertPlace, Watch, grows, wait_a_few_rounds
from tests.runops_place import kill
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def test_while_the_mail_server_is_down_the_mail_waits_and_comes_once_though_runops_was_killed_meanwhile(
    place: AlertPlace, watch: Watch
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


def test_runops_that_is_restarted_again_and_again_tells_once(place: AlertPlace, watch: Watch) -> None:
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


def test_two_runops_send_one_mail(place: AlertPlace, watch: Watch) -> None:
    watch(AlertKind.LETTERS_GROWING, threshold=2, window_minutes=10)
    for _ in range(2):
        place.start_runops()
    grows(place)
    wait_until(lambda: place.mails.received, seconds=30, what="the mail")
    wait_a_few_rounds(place, 6)

    assert len(place.mails.received) == 1
