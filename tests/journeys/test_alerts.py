"""From jobs that die to a mail, and back: real runops processes, a real mail server, a real page."""

from __future__ import annotations

import re
import urllib.parse
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from django.test import Client
from django.utils import timezone

from jobs.audit import Actor
from jobs.core.words import AlertKind, LetterState
from jobs.models import Alert, DeadLetter, Notification
from jobs.operations import Selection, start_replay
from tests.journeys.alert_place import (
    AlertPlace,
    Watch,
    deaths,
    send_jobs,
    wait_a_few_rounds,
    worker_on_critical,
)
from tests.servers import wait_until

pytestmark = pytest.mark.worker


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


def test_letters_grow_and_are_replayed_and_each_is_one_mail(place: AlertPlace, watch: Watch) -> None:
    """Jobs die and are replayed in a real worker, and the rules are judged as often as they are by default."""
    User.objects.create_superuser("mara", "", "x")
    # Fires with the last of the thirty: a judgement may come while they are still dying.
    watch(AlertKind.LETTERS_GROWING, threshold=29, window_minutes=1)
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
        a_minute_passes()
        wait_until(lambda: len(place.mails.received) == 2, seconds=30, what="the recovery mail")

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


def a_minute_passes() -> None:
    """Date the deaths and the alert a minute back: to runops the window of the rule is over."""
    minute = timedelta(minutes=1)
    with transaction.atomic():
        DeadLetter.objects.update(died_at=F("died_at") - minute, first_died_at=F("first_died_at") - minute)
        alert = Alert.objects.get()
        since = datetime.fromisoformat(alert.details["since"]) - minute
        Alert.objects.update(details={**alert.details, "since": since.isoformat()})


def fix(place: AlertPlace) -> None:
    """Put the shop right, so that its jobs succeed."""
    (place.directory / "fixed").touch()


def replay(query: str) -> None:
    """Start the replay of what a search finds, as the page does."""
    now = timezone.now()
    selection = Selection.of_query(query, now=now)
    start_replay(selection=selection, actor=Actor(name="Mara"), why="The relay is back.", now=now)


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
