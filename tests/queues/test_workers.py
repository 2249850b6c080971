"""Queues with real workers, on Redis and on RabbitMQ: what is counted, what a pause does, what a purge leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from django.utils import timezone
from kombu import Exchange, Queue
from kombu.transport.native_delayed_delivery import declare_native_delayed_delivery_exchanges_and_queues

from jobs.audit import Actor
from jobs.broker import connect
from jobs.broker.lifting import Lifted
from jobs.core.words import LetterState, QueueActionState
from jobs.errors import QueueRefused
from jobs.models import AuditEntry, DeadLetter, QueueAction, StoppedConsumer
from jobs.queues import actions, pausing, purging, reading
from tests.queues.messages import send
from tests.queues.place import QueuePlace, lines
from tests.rabbit import virtual_host
from tests.servers import RedisServer, wait_until

MARA = Actor(name="mara")
T = TypeVar("T")
pytestmark = [pytest.mark.worker, pytest.mark.django_db]


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def broker_url(request) -> Iterator[str]:
    if request.param == "redis":
        server = RedisServer().start()
        yield server.url
        server.remove()
    else:
        yield virtual_host().url


@pytest.fixture
def place(broker_url: str, settings, tmp_path: Path) -> Iterator[QueuePlace]:
    settings.BROKER_URL = broker_url
    place = QueuePlace(broker_url, tmp_path)
    yield place
    place.stop()


def test_row_67_jobs_in_the_memory_of_workers_are_counted_and_not_called_waiting(place: QueuePlace):
    place.start()
    for number in range(300):
        place.send(place.queue, place.directory / "never", str(number), countdown=3_600)

    place.until(lambda: place.now().held_by_workers == 300, what="300 held jobs")

    found = place.now()
    assert (found.ready, found.unacknowledged, found.consumers) == (0, 300, 1)
    assert found.is_told_by_workers == place.broker_url.startswith("amqp")


def test_row_68_messages_of_all_priorities_are_one_depth(place: QueuePlace):
    queue = Queue(place.queue, Exchange(""), routing_key=place.queue, queue_arguments={"x-max-priority": 9})
    with connect() as connection, connection.Producer() as producer:
        for priority in (0, 1, 3, 5, 6, 9):
            producer.publish("x", routing_key=place.queue, priority=priority, declare=[queue])

    # RabbitMQ counts what it was sent a moment later.
    wait_until(lambda: _ready(place) == 6, seconds=10, what="six messages of six priorities")


def test_what_a_worker_fetched_ahead_is_unacknowledged_and_not_waiting(place: QueuePlace):
    place.start(pool="prefork", concurrency=1)
    started, go = place.directory / "started", place.directory / "go"
    for _ in range(12):
        place.app.send_task("shop.wait_late", (str(started), str(go)), queue=place.queue)

    place.until(lambda: place.now().unacknowledged == 4, what="4 messages in the worker")

    # Four times the processes is what it fetches ahead.
    assert (place.now().ready, place.now().held_by_workers) == (8, 0)
    assert place.now().oldest_age_seconds is None or place.now().oldest_age_seconds < 60
    go.touch()
    place.until(lambda: (place.now().ready, place.now().unacknowledged) == (0, 0), what="all to be done")


def test_a_paused_queue_keeps_its_messages_whatever_worker_starts_and_runs_them_once_it_is_resumed(
    place: QueuePlace, monkeypatch
):
    first = place.start()
    place.until(lambda: place.now().consumers == 1, what="a consumer")

    paused = with_patience(
        monkeypatch,
        lambda: actions.pause(place.queue, actor=MARA, why="the relay is down", now=timezone.now()),
    )

    assert (len(paused.told), paused.silent, paused.trouble) == (1, [], "")
    path = place.directory / "mark"
    place.send(place.queue, path, "a", "b")
    place.until(lambda: (place.now().consumers, place.now().ready) == (0, 2), what="nobody to consume")
    second = place.start()
    first.stop()
    first.start()
    # The first in both of its lives, and the second.
    place.until(lambda: StoppedConsumer.objects.count() >= 3, what="the new workers to be told")
    place.until(lambda: place.now().consumers == 0, what="nobody to consume again")
    place.send(place.queue, path, "c")
    place.send(place.other, place.directory / "fence", "fence")
    place.until(lambda: lines(place.directory / "fence"), what="the other queue to go on")
    ran_before = lines(path)
    assert "c" not in ran_before

    resumed = with_patience(monkeypatch, lambda: actions.resume(place.queue, actor=MARA, now=timezone.now()))

    assert len(resumed.told) >= 2
    place.until(lambda: sorted(lines(path)) == ["a", "b", "c"], what="the jobs to run")
    place.until(lambda: not StoppedConsumer.objects.exists(), what="all to consume again")
    assert place.now().consumers == 2
    assert second.is_alive
    assert list(AuditEntry.objects.order_by("pk").values_list("action", "text", "why")) == [
        ("pause_queue", f"paused the queue {place.queue}", "the relay is down"),
        ("resume_queue", f"resumed the queue {place.queue}", ""),
    ]


def test_a_pause_without_workers_counts_for_the_one_that_starts(place: QueuePlace):
    paused = actions.pause(place.queue, actor=MARA, why="", now=timezone.now())
    assert (paused.told, paused.silent, paused.held) == ([], [], 0)

    place.start(queues=place.queue)

    place.until(lambda: StoppedConsumer.objects.exists(), what="the worker to be told")
    place.until(lambda: place.now().consumers == 0, what="nobody to consume")
    assert place.now().is_paused
    with pytest.raises(QueueRefused, match="paused already by mara"):
        actions.pause(place.queue, actor=MARA, why="", now=timezone.now())
    actions.resume(place.queue, actor=MARA, now=timezone.now())
    with pytest.raises(QueueRefused, match="not paused"):
        actions.resume(place.queue, actor=MARA, now=timezone.now())
    place.until(lambda: place.now().consumers == 1, what="the worker to consume again")
    place.send(place.queue, place.directory / "mark", "a")
    place.until(lambda: lines(place.directory / "mark") == ["a"], what="the job to run")


def test_row_75_a_purge_leaves_what_workers_have(place: QueuePlace):
    place.start()
    for number in range(20):
        place.send(place.queue, place.directory / "never", str(number), countdown=3_600)
    place.until(lambda: place.now().held_by_workers == 20, what="20 held jobs")
    actions.pause(place.queue, actor=MARA, why="", now=timezone.now())
    place.until(lambda: place.now().consumers == 0, what="nobody to consume")
    ids = send(place.app, place.queue, count=5)
    place.until(lambda: place.now().ready == 5, what="5 waiting messages")

    action = actions.purge(place.queue, expected=5, actor=MARA, why="", now=timezone.now())

    assert (action.unacknowledged, action.held_by_workers) == (20, 20)
    place.until(lambda: not place.purger.step(now=timezone.now(), lease=place.lease), what="the purge to end")
    letters = DeadLetter.objects.filter(state=LetterState.PURGED)
    assert set(letters.values_list("task_id", flat=True)) == set(ids)
    place.round()
    assert (place.now().ready, place.now().held_by_workers) == (0, 20)


def with_patience(monkeypatch: pytest.MonkeyPatch, act: Callable[[], T]) -> T:
    """Tell workers that all answer; on a busy machine not each does within the second that a page waits."""
    with monkeypatch.context() as patch:
        patch.setattr(pausing, "ANSWER_SECONDS", 5.0)
        return act()


class Crash(Exception):
    """The process ended."""


def test_a_purge_that_is_cut_off_after_each_batch_takes_each_message_once(place: QueuePlace, monkeypatch):
    ids = send(place.app, place.queue, count=20)
    monkeypatch.setattr(purging, "BATCH", 6)
    action = actions.purge(place.queue, expected=15, actor=MARA, why="", now=datetime.now(UTC))
    place.purger.step(now=timezone.now(), lease=place.lease)

    def crash(*_: object) -> None:
        raise Crash

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Lifted, "forget", crash)
            patch.setattr(purging, "BrokerUnavailable", Crash)
            with pytest.raises(Crash):
                place.purger.step(now=timezone.now(), lease=place.lease)
        # What was stored comes again, and goes.
        place.purger.step(now=timezone.now(), lease=place.lease)
    place.until(lambda: not place.purger.step(now=timezone.now(), lease=place.lease), what="the purge to end")

    action.refresh_from_db()
    assert (action.state, action.taken) == (QueueActionState.FINISHED, 15)
    letters = DeadLetter.objects.filter(state=LetterState.PURGED)
    assert set(letters.values_list("task_id", flat=True)) == set(ids[:15])
    place.until(lambda: _ready(place) == 5, what="5 messages to be left")


def _ready(place: QueuePlace) -> int | None:
    return place._meter.measure([place.queue])[place.queue].ready


def test_a_connection_that_was_let_go_of_is_opened_again(place: QueuePlace):
    send(place.app, place.queue, count=2)

    for _ in range(2):
        assert _ready(place) == 2
        place._meter.close()


def test_looking_into_a_queue_takes_nothing_or_is_refused_where_that_cannot_be(place: QueuePlace):
    ids = send(place.app, place.queue, count=3)

    if place.broker_url.startswith("redis"):
        assert [message.task_id for message in actions.peek(place.queue).messages] == ids
    else:
        with pytest.raises(QueueRefused, match="only by delivering it"):
            actions.peek(place.queue)

    assert _ready(place) == 3


def test_row_83_what_rabbitmq_itself_delays_is_counted_as_held_by_the_broker(place: QueuePlace):
    if place.broker_url.startswith("redis"):
        place.round()
        assert place._meter.delayed() == 0
        return
    with connect() as connection:
        # As a worker with quorum queues declares them at its start; of these the longest takes four years.
        declare_native_delayed_delivery_exchanges_and_queues(connection, "classic")
        with connection.Producer() as producer:
            for _ in range(3):
                producer.publish("x", exchange="celery_delayed_27", routing_key=".".join(["1"] * 28) + ".low")
    send(place.app, place.queue)

    place.until(lambda: place._meter.delayed() == 3, what="three held messages")

    place.until(lambda: place.now(reading.DELAYED).held_by_broker == 3, what="the row of what is delayed")
    place.start()
    place.until(lambda: place.now().consumers == 1, what="the queue to be counted")
    # The broker does not tell which queue they are for.
    assert place.now().held_by_broker is None


def test_a_purge_amid_traffic_loses_and_doubles_no_job(place: QueuePlace):
    path, go = place.directory / "ran", place.directory / "go"
    started = [place.directory / f"started-{number}" for number in range(2)]
    names = [str(number) for number in range(900)]
    with place.app.connection_for_write() as connection:
        producer = place.app.amqp.Producer(connection)
        place.send(place.queue, path, *names[:40], producer=producer)
        for each in started:
            place.app.send_task("shop.wait", (str(each), str(go)), queue=place.queue, producer=producer)
        place.send(place.queue, path, *names[40:600], producer=producer)
        place.start(concurrency=2)
        # Until the purge has begun, or on a busy machine nothing would be left for it.
        place.until(
            lambda: all(each.exists() for each in started), seconds=60, what="both threads to be busy"
        )
        waiting = _ready(place)
        assert waiting
        actions.purge(place.queue, expected=waiting, actor=MARA, why="", now=timezone.now())
        place.send(place.queue, path, *names[600:], producer=producer)
        place.purger.step(now=timezone.now(), lease=place.lease)
        go.touch()
        place.purger.step(now=timezone.now(), lease=place.lease)
    place.until(lambda: QueueAction.objects.get().state == QueueActionState.FINISHED, what="the purge to end")
    place.until(
        lambda: (place.now().ready, place.now().unacknowledged) == (0, 0), seconds=60, what="all to be done"
    )

    purged = [
        json.loads(bytes(letter.message.body))[0][1]
        for letter in DeadLetter.objects.filter(state=LetterState.PURGED).select_related("message")
    ]
    assert len(purged) == QueueAction.objects.get().taken > 0
    assert sorted([*lines(path), *purged]) == sorted(names)
    # What came after the confirmation has run.
    assert set(names[600:]) <= set(lines(path))


def test_workers_without_the_agent_are_counted_paused_and_resumed_too(place: QueuePlace, monkeypatch):
    # Asked again and again: Redis keeps no question for a worker that says it is ready and does not listen yet.
    place.start(application="tests.queues.plain_shop")
    place.until(lambda: place.ask() or place.now().consumers == 1, what="a consumer")
    assert place.now().held_by_workers is None

    paused = with_patience(
        monkeypatch, lambda: actions.pause(place.queue, actor=MARA, why="", now=timezone.now())
    )

    assert (len(paused.told), paused.held) == (1, None)
    path = place.directory / "mark"
    place.send(place.queue, path, "a")
    place.until(
        lambda: place.ask() or (place.now().consumers, place.now().ready) == (0, 1), what="nobody to consume"
    )
    actions.resume(place.queue, actor=MARA, now=timezone.now())
    place.until(lambda: lines(path) == ["a"], what="the job to run")
    place.until(
        lambda: place.ask() or not StoppedConsumer.objects.exists(), what="the worker to consume again"
    )
