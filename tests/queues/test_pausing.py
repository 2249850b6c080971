"""Whom a round of pauses tells, where workers do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from kombu import Connection

from jobs.broker import connect
from jobs.models import QueuePause, StoppedConsumer
from jobs.queues import pausing
from jobs.queues.pausing import enforce
from tests.factories import NOW
from tests.metrics_rows import make_boot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database", "broker")]

SECOND = timedelta(seconds=1)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """Reaches a broker at which nobody listens."""
    monkeypatch.setattr(pausing, "ANSWER_SECONDS", 0.01)
    with connect() as found:
        yield found


def pause(*queues: str) -> None:
    for queue in queues:
        QueuePause.objects.create(queue=queue, paused_at=NOW, actor="mara")


def test_workers_that_never_answer_keep_no_others_from_being_told(connection: Connection) -> None:
    """Those without remote control consume on, and are told again and again."""
    queues = [f"q{number:02}" for number in range(25)]
    pause(*queues)
    make_boot(queues=queues, last_seen_at=NOW + 10 * SECOND)

    told = []
    for seconds in (0, 5, 10):
        enforce(connection, now=NOW + seconds * SECOND)
        told.append(set(StoppedConsumer.objects.values_list("queue", flat=True)))

    assert [len(each) for each in told] == [10, 20, 25]


def test_a_queue_that_is_resumed_waits_for_no_worker_that_never_answers(connection: Connection) -> None:
    paused = [f"a{number:02}" for number in range(12)]
    pause(*paused)
    boot = make_boot(queues=paused, last_seen_at=NOW)
    for seconds in (0, 1):
        enforce(connection, now=NOW + seconds * SECOND)
    StoppedConsumer.objects.create(queue="z", hostname=boot.hostname, boot_id=boot.boot_id, told_at=NOW)

    enforce(connection, now=NOW + 6 * SECOND)

    assert StoppedConsumer.objects.get(queue="z").resumed_at == NOW + 6 * SECOND
