"""Batches on a real RabbitMQ: confirmed, and never into a queue that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kombu import Connection, Queue

from jobs.broker import connect
from jobs.broker.publish import publish
from jobs.errors import BrokerUnavailable
from tests.rabbit import VirtualHost
from tests.servers import free_port
from tests.test_publish import outgoing


@pytest.fixture
def queue(rabbit: VirtualHost, settings) -> Iterator[str]:
    settings.BROKER_URL = rabbit.url
    with Connection(rabbit.url) as connection:
        declared = Queue("critical", durable=True)(connection.default_channel)
        declared.declare()
        yield "critical"
        declared.delete()


def test_a_batch_is_confirmed_and_arrives_in_its_order(rabbit, queue) -> None:
    messages = [outgoing(number, priority=number % 3) for number in range(500)]

    with connect() as connection:
        result = publish(connection, messages, batch_key="jobs.sent.1.1")

    assert (result.refused, result.exactly_once, result.already_sent) == ({}, False, False)
    with Connection(rabbit.url) as connection:
        channel = connection.default_channel
        received = [channel.basic_get(queue, no_ack=True) for _ in range(500)]
        assert channel.basic_get(queue, no_ack=True) is None
    assert [bytes(r.body, "utf-8") if isinstance(r.body, str) else r.body for r in received] == [
        m.body for m in messages
    ]
    assert received[4].headers["id"] == "id-4"
    assert received[4].properties["priority"] == 1
    assert received[4].properties["delivery_mode"] == 2


def test_messages_to_a_queue_that_is_not_there_are_named_and_the_others_go(rabbit, queue) -> None:
    messages = [outgoing(0), outgoing(1, queue="typo"), outgoing(2), outgoing(3, queue="typo")]

    with connect() as connection:
        result = publish(connection, messages)

        no_queue = "The broker has no queue typo."
        assert result.refused == {1: no_queue, 3: no_queue}
        # Nothing was declared on the way.
        assert publish(connection, [outgoing(4, queue="typo")]).refused == {0: no_queue}
        assert connection.default_channel.queue_declare(queue, passive=True).message_count == 2


def test_a_rabbit_that_is_away_is_said_at_once(settings) -> None:
    settings.BROKER_URL = f"amqp://guest:guest@127.0.0.1:{free_port()}//"

    with connect() as connection, pytest.raises(BrokerUnavailable, match="cannot be reached"):
        publish(connection, [outgoing()])
