"""A purge of a queue is found among the operations, and is undone from there."""

from __future__ import annotations

import pytest
from django.urls import reverse
from django.utils import timezone

from jobs import leases
from jobs.audit import Actor
from jobs.broker import connect
from jobs.core.words import LetterState
from jobs.models import DeadLetter
from jobs.queues import actions
from jobs.queues.purging import Purger
from tests.queues.messages import publisher, send
from tests.web.acting import client_of, person, text_of

pytestmark = pytest.mark.django_db


def test_the_operation_of_a_queue_purge_says_what_it_was_and_offers_its_undoing(broker):
    with publisher(broker.url) as app:
        send(app, count=3)
    now = timezone.now()
    action = actions.purge("critical", expected=3, actor=Actor(name="mara"), why="sent twice", now=now)
    purger, lease = Purger(connect()), leases.acquire(duty="queues", holder="runops-1", seconds=60)
    while purger.step(now=now, lease=lease):
        pass
    action.refresh_from_db()
    client = client_of(person())

    page = client.get(reverse("console:operation", args=[action.operation.pk]))

    text = text_of(page)
    assert page.status_code == 200
    assert "Messages that waited on the queue critical" in text
    assert "sent twice" in text
    assert "Took 3 waiting messages off the queue critical" in text
    assert "3 messages are purged letters now" in text
    assert "Restore" in text
    letter = DeadLetter.objects.filter(state=LetterState.PURGED)[0]
    shown = text_of(client.get(reverse("console:letter", args=[letter.uuid])))
    assert "It was purged from the queue critical while it waited there. It never ran." in shown
