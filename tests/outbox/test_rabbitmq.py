"""The outbox on a real RabbitMQ: declared, confirmed, and nothing lost without a word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import amqp.exceptions
import pytest
from celery import Celery
from django.db import transaction
from django.utils import timezone
from kombu import Connection, Exchange, Queue

from jobs.broker import connect
from jobs.core.words import OutboxState, Reason
from jobs.errors import BrokerUnavailable
from jobs.models import DeadLetter, OutboxMessage
from jobs.outbox import OutboxProducer, commit
from jobs.outbox.relay import Relayed, relay_batch
from tests.outbox.shop import create
from tests.rabbit import VirtualHost

pytestmark = pytest.mark.django_db(transaction=True)

PENDING, PUBLISHED, GAVE_UP = OutboxState.PENDING, OutboxState.PUBLISHED, OutboxState.GAVE_UP
QUEUES = ("celery", "fresh", "events", "short", "limited")


@pytest.fixture
def shop(rabbit: VirtualHost, settings) -> Iterator[Celery]:
    settings.BROKER_URL = rabbit.url
    # The most that the grace allows: the broker shares a full machine.
    settings.JOBS_OUTBOX_TIMEOUT_SECONDS = 4
    settings.JOBS_OUTBOX_GRACE_SECONDS = 30
    commit.forget()
    with Connection(rabbit.url) as connection:
        for name in QUEUES:
            connection.default_channel.queue_delete(name)
    yield create(rabbit.url)
    commit.forget()


def enqueue(shop: Celery, number: int, **options: Any) -> None:
    shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer(), **options)


def received(rabbit: VirtualHost, queue: str = "celery") -> list[Any]:
    """Take everything that is on a queue."""
    found = []
    with Connection(rabbit.url) as connection:
        channel = connection.default_channel
        with suppress(amqp.exceptions.NotFound):
            while (message := channel.basic_get(queue, no_ack=True)) is not None:
                found.append(message)
    return found


def numbers(rabbit: VirtualHost, queue: str = "celery") -> list[int]:
    return [json.loads(message.body)[0][0] for message in received(rabbit, queue)]


def leave(shop: Celery, number: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Write a row that the fast way does not send."""
    with monkeypatch.context() as patch:
        patch.setattr(commit, "_leave", lambda *_, **__: None)
        enqueue(shop, number, **options)


def run(*, later: float = 31, rounds: int = 5) -> list[Relayed]:
    now = timezone.now() + timedelta(seconds=later)
    with connect() as broker:
        done = [relay_batch(broker, now=now) for _ in range(rounds)]
    return [each for each in done if each.total]


def test_a_queue_that_nobody_has_declared_is_declared_as_celery_does(shop, rabbit) -> None:
    with transaction.atomic():
        enqueue(shop, 1, queue="fresh")
        enqueue(shop, 2, queue="fresh", priority=3)

    assert OutboxMessage.objects.filter(state=PUBLISHED).count() == 2
    first, second = received(rabbit, "fresh")
    assert (first.properties["delivery_mode"], second.properties["priority"]) == (2, 3)
    assert first.headers["task"] == "outbox.add"


def test_the_relay_declares_it_too(shop, rabbit, monkeypatch) -> None:
    leave(shop, 1, monkeypatch, queue="fresh")

    done = run()

    assert [each.sent for each in done] == [1]
    assert numbers(rabbit, "fresh") == [1]


def test_a_queue_that_was_deleted_meanwhile_is_declared_anew(shop, rabbit, monkeypatch) -> None:
    leave(shop, 1, monkeypatch, queue="fresh")
    now = timezone.now()
    with connect() as broker:
        relay_batch(broker, now=now + timedelta(seconds=31))
        with Connection(rabbit.url) as other:
            other.default_channel.queue_delete("fresh")
        leave(shop, 2, monkeypatch, queue="fresh")
        first = relay_batch(broker, now=now + timedelta(seconds=62))
        second = relay_batch(broker, now=now + timedelta(seconds=93))

    assert ((first.refused, first.sent), (second.refused, second.sent)) == ((1, 0), (0, 1))
    assert numbers(rabbit, "fresh") == [2]


def test_row_81_a_message_that_no_queue_gets_is_refused_and_becomes_a_dead_letter(
    shop, rabbit, settings, monkeypatch
) -> None:
    settings.JOBS_OUTBOX_MAX_ATTEMPTS = 2
    exchange = Exchange("shop.topics", type="topic", durable=True)
    with Connection(rabbit.url) as connection:
        exchange(connection.default_channel).declare()
    leave(shop, 1, monkeypatch, exchange=exchange, routing_key="nobody.listens", declare=[])
    leave(shop, 2, monkeypatch)

    done = [each for hour in range(3) for each in run(later=3600 * (hour + 1), rounds=1)]

    assert [(each.sent, each.refused, each.gave_up) for each in done] == [(1, 1, 0), (0, 0, 1)]
    assert numbers(rabbit) == [2]
    letter = DeadLetter.objects.get()
    assert letter.reason == Reason.PUBLISH_FAILED
    assert (
        "No queue is bound to the exchange shop.topics for the routing key 'nobody.listens'" in letter.error
    )


def test_a_named_exchange_reaches_the_queue_that_is_declared_with_it(shop, rabbit) -> None:
    exchange = Exchange("shop.events", type="topic", durable=True)
    queue = Queue("events", exchange, routing_key="order.#", durable=True)

    with transaction.atomic():
        enqueue(shop, 1, exchange=exchange, routing_key="order.paid", declare=[queue])

    (message,) = received(rabbit, "events")
    assert message.delivery_info["exchange"] == "shop.events"
    assert message.delivery_info["routing_key"] == "order.paid"


def test_an_exchange_that_is_not_there_refuses_its_own_message_only(shop, rabbit, monkeypatch) -> None:
    leave(shop, 1, monkeypatch)
    leave(shop, 2, monkeypatch, exchange="nowhere", routing_key="x", declare=[])
    leave(shop, 3, monkeypatch)

    (done,) = run(rounds=1)

    assert (done.sent, done.refused) == (2, 1)
    assert numbers(rabbit) == [1, 3]
    assert OutboxMessage.objects.get(state=PENDING).last_error.startswith(
        "The broker has no exchange nowhere: Exchange.declare: (404) NOT_FOUND"
    )


def test_a_queue_that_cannot_be_declared_refuses_its_own_messages_only(shop, rabbit, monkeypatch) -> None:
    with Connection(rabbit.url) as connection:
        connection.default_channel.queue_declare("limited", durable=False, auto_delete=False)
    for number, queue in enumerate(("celery", "limited", "celery", "limited")):
        leave(shop, number, monkeypatch, queue=queue)

    (done,) = run(rounds=1)

    assert (done.sent, done.refused) == (2, 2)
    assert numbers(rabbit) == [0, 2]
    errors = set(OutboxMessage.objects.filter(state=PENDING).values_list("last_error", flat=True))
    assert len(errors) == 1
    assert errors.pop().startswith("The broker refused to declare limited: Queue.declare: (406)")


def test_a_full_queue_that_rejects_is_a_refusal_and_nothing_is_sent_twice(shop, rabbit, monkeypatch) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    limited = Queue("limited", Exchange("limited"), routing_key="limited", queue_arguments=arguments)
    leave(shop, 1, monkeypatch)
    for number in (2, 3):
        leave(shop, number, monkeypatch, queue=limited)

    (done,) = run(rounds=1)

    assert (done.sent, done.refused) == (2, 1)
    assert (numbers(rabbit), numbers(rabbit, "limited")) == ([1], [2])
    assert OutboxMessage.objects.get(state=PENDING).last_error == (
        "The broker did not take it for the queue limited: it is full, or the broker has an error of its own."
    )


def test_row_37_an_expired_message_is_not_handed_to_a_broker_that_drops_it(shop, rabbit, monkeypatch) -> None:
    leave(shop, 1, monkeypatch, expires=20)
    leave(shop, 2, monkeypatch, expires=7200)

    run(later=31)

    (message,) = received(rabbit)
    assert json.loads(message.body)[0][0] == 2
    assert 7_000_000 < int(message.properties["expiration"]) <= 7_200_000
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.queue) == (Reason.EXPIRED, "celery")


def test_row_82_a_broker_that_was_started_anew_gets_every_message(shop, rabbit, monkeypatch) -> None:
    """The connection is broken without a word: an unconfirmed publish on it would be lost."""
    with connect() as broker:
        leave(shop, 1, monkeypatch)
        relay_batch(broker, now=timezone.now() + timedelta(seconds=31))
        # As a load balancer does that forgets a connection.
        broker.connection.transport.sock.shutdown(2)
        leave(shop, 2, monkeypatch)
        with pytest.raises(BrokerUnavailable):
            relay_batch(broker, now=timezone.now() + timedelta(seconds=31))
        again = relay_batch(broker, now=timezone.now() + timedelta(seconds=32))

    assert again.sent == 1
    assert numbers(rabbit) == [1, 2]
    assert not OutboxMessage.objects.exclude(state=PUBLISHED).exists()


def test_a_message_larger_than_the_broker_takes_refuses_only_itself(shop, rabbit, monkeypatch) -> None:
    from jobs.broker import confirmed

    sent: list[int] = []
    real = confirmed._send

    def closing(connection, messages, positions, *rest) -> None:
        # RabbitMQ's answer to a message above max_message_size, which is too large to send here.
        sent.append(len(positions))
        if 1 in positions:
            raise amqp.exceptions.PreconditionFailed(
                "message size 134217729 is larger than configured max size"
            )
        real(connection, messages, positions, *rest)

    monkeypatch.setattr(confirmed, "_send", closing)
    for number in range(3):
        leave(shop, number, monkeypatch)

    (done,) = run(rounds=1)

    assert (done.sent, done.refused, sent) == (2, 1, [3, 1, 1, 1])
    assert numbers(rabbit) == [0, 2]
