"""The duty of queues in real processes of runops: it counts by itself, and a purge outlives who began it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from django.utils import timezone

from jobs.audit import Actor
from jobs.core.words import LetterState, QueueActionState
from jobs.models import DeadLetter, Death, QueueAction
from jobs.queues import actions, reading
from tests.postgres import PostgresServer
from tests.queues.messages import publisher, send
from tests.runops_place import RunopsPlace, kill
from tests.servers import wait_until

MARA = Actor(name="mara")
MESSAGES = 4_000


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request, django_db_setup, django_db_blocker) -> Iterator[RunopsPlace]:
    url = ""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_migrated_database(f"queues_{time.monotonic_ns()}")
    with django_db_blocker.unblock(), RunopsPlace(url).entered() as entered:
        yield entered


def test_a_purge_of_thousands_survives_kill_9_and_keeps_each_message_once(place: RunopsPlace) -> None:
    with publisher(place.redis.url) as app:
        send(app, count=3)
    with place.redis.client() as client, client.pipeline(transaction=False) as pipeline:
        [item, *_] = client.lrange("critical", 0, 0)
        for number in range(MESSAGES - 3):
            pipeline.lpush(
                "critical", item.replace(b'"jobs-publication": "', b'"jobs-publication": "%d-' % number)
            )
        pipeline.execute()
    action = actions.purge("critical", expected=MESSAGES, actor=MARA, why="", now=timezone.now())

    for threshold in (1, MESSAGES // 3, MESSAGES // 2):
        process = place.start_runops()
        wait_until(
            lambda at=threshold: QueueAction.objects.get(pk=action.pk).taken >= at,
            seconds=40,
            what=f"{threshold} messages purged (see {place.directory})",
        )
        kill(process)
    with publisher(place.redis.url) as app:
        later = send(app, count=2)
    place.start_runops()
    wait_until(
        lambda: QueueAction.objects.get(pk=action.pk).state == QueueActionState.FINISHED,
        seconds=60,
        what="the purge to end",
    )

    assert QueueAction.objects.get(pk=action.pk).taken == MESSAGES
    assert DeadLetter.objects.filter(state=LetterState.PURGED).count() == Death.objects.count() == MESSAGES
    assert [message["headers"]["id"] for message in place.queued()] == later
    wait_until(
        lambda: (found := reading.now_of("critical", now=timezone.now())) and found.ready == 2,
        seconds=20,
        what="the queue to be counted",
    )
