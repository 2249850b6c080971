"""Batches on a real Redis: the bytes that kombu writes, once."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest
from kombu import Connection, Producer

from jobs.broker import connect
from jobs.broker.publish import JSONText, Outgoing, publish
from jobs.errors import BrokerUnavailable
from tests.servers import RedisServer, free_port


def outgoing(number: int = 0, **fields: Any) -> Outgoing:
    values: dict[str, Any] = {
        "body": json.dumps([[], {"n": number}, {}]).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": {"task": "t", "id": f"id-{number}", "jobs-publication": f"p-{number}"},
        "properties": {"correlation_id": f"id-{number}"},
        "queue": "critical",
        "priority": None,
    }
    return Outgoing(**{**values, **fields})


def keys(server: RedisServer) -> dict[str, list[Any]]:
    with server.client() as client:
        lists = {
            key.decode(): client.lrange(key, 0, -1) for key in client.keys("*") if client.type(key) == b"list"
        }
    return {key: [json.loads(item) for item in reversed(items)] for key, items in lists.items()}


def without_tags(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Each publication gets a delivery tag of its own."""
    for items in found.values():
        for item in items:
            assert item["properties"].pop("delivery_tag")
    return found


@pytest.mark.parametrize(
    "options", [{}, {"global_keyprefix": "shop:"}, {"priority_steps": [0, 5], "sep": ":"}]
)
def test_a_batch_leaves_the_lists_that_kombu_leaves(broker, settings, options) -> None:
    settings.BROKER_TRANSPORT_OPTIONS = options
    messages = [
        outgoing(0),
        outgoing(1, priority=0),
        outgoing(2, priority=3),
        outgoing(3, priority=9),
        outgoing(
            4,
            queue="low",
            body="é\ud800".encode("utf-8", "surrogatepass"),
            content_type="application/x-bytes",
        ),
        outgoing(5, priority=3, headers={"task": "t", "id": "5", "text": "é\ud800\x00", "n": 2**70}),
        outgoing(6),
    ]
    with connect() as connection:
        producer = Producer(connection)
        for message in messages:
            producer.publish(
                message.body,
                exchange="",
                routing_key=message.queue,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers=message.headers,
                priority=message.priority,
                **message.properties,
            )
    expected = without_tags(keys(broker))
    with broker.client() as client:
        client.flushall()

    with connect() as connection:
        result = publish(connection, messages)

    assert without_tags(keys(broker)) == expected
    assert (result.already_sent, result.exactly_once) == (False, False)


@pytest.mark.parametrize("properties", [{}, {"correlation_id": "é"}, {"message_id": "m", "delivery_mode": 1}])
@pytest.mark.parametrize("priority", [None, 0, 3])
def test_a_message_is_written_with_the_bytes_that_kombu_writes(broker, properties, priority) -> None:
    headers = {"task": "t", "id": "1", "text": 'é\ud800\x00"', "n": 2**70, "x": [None, {"y": 1.5}]}
    message = outgoing(headers=headers, properties=properties, priority=priority)
    # The first of a kind is kombu's own work, the second written alike, the third copied.
    as_text = message._replace(
        headers=JSONText(json.dumps(headers)),
        properties=JSONText(json.dumps({"delivery_mode": 2, **properties})),
    )
    with connect() as connection:
        publish(connection, [message, message, as_text])

    with broker.client() as client:
        (key,) = client.keys("critical*")
        texts = {re.sub(rb'"delivery_tag": "[^"]{36}"', b"", item) for item in client.lrange(key, 0, -1)}
    assert len(texts) == 1


def test_headers_given_as_text_go_over_other_transports_too() -> None:
    message = outgoing(
        1, headers=JSONText('{"task": "t", "id": "1"}'), properties=JSONText('{"correlation_id": "1"}')
    )
    with Connection("memory://") as connection:
        publish(connection, [message])

        queue = connection.SimpleQueue("critical")
        received = queue.get(timeout=1)
        queue.close()

    assert (received.headers, received.properties["correlation_id"]) == ({"task": "t", "id": "1"}, "1")


def test_header_values_that_json_has_no_word_for_are_written_as_kombu_does(broker) -> None:
    from datetime import UTC, datetime

    headers = {"task": "t", "id": "1", "at": datetime(2026, 11, 12, tzinfo=UTC), "raw": b"\xff"}

    with connect() as connection:
        publish(connection, [outgoing(1, headers=headers), outgoing(2, headers=headers)])

    first, second = (item["headers"] for item in keys(broker)["critical"])
    assert first == second
    assert "2026" in json.dumps(first["at"])


def test_a_batch_with_a_key_is_sent_once(broker) -> None:
    messages = [outgoing(number) for number in range(3)]
    with connect() as connection:
        first = publish(connection, messages, batch_key="jobs.sent.1.1")
        second = publish(connection, messages, batch_key="jobs.sent.1.1")
        other = publish(connection, messages[:1], batch_key="jobs.sent.1.2")

    assert (first.already_sent, first.exactly_once) == (False, True)
    assert second.already_sent
    assert not other.already_sent
    assert len(keys(broker)["critical"]) == 4
    with broker.client() as client:
        assert 6.9 * 86400 < client.ttl("jobs.sent.1.1") <= 7 * 86400


def test_two_runners_that_send_one_batch_at_the_same_moment_send_it_once(broker) -> None:
    messages = [outgoing(number) for number in range(200)]
    results = []
    gate = threading.Barrier(4)

    def send() -> None:
        with connect() as connection:
            connection.default_channel  # noqa: B018 - connected before the race begins
            gate.wait()
            results.append(publish(connection, messages, batch_key="jobs.sent.9.1"))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(result.already_sent for result in results) == [False, True, True, True]
    assert len(keys(broker)["critical"]) == 200


def test_the_marker_bears_the_key_prefix(broker, settings) -> None:
    settings.BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": "shop:"}
    with connect() as connection:
        publish(connection, [outgoing()], batch_key="jobs.sent.1.1")
        again = publish(connection, [outgoing()], batch_key="jobs.sent.1.1")

    assert again.already_sent
    with broker.client() as client:
        assert client.exists("shop:jobs.sent.1.1")


def test_nothing_is_declared(broker) -> None:
    with connect() as connection:
        publish(connection, [outgoing()])

    with broker.client() as client:
        assert client.keys("_kombu*") == []


def test_a_broker_that_is_away_is_named_and_the_next_try_works(settings) -> None:
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    connection = connect()
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        publish(connection, [outgoing()])

    server = RedisServer(port=int(settings.BROKER_URL.rpartition(":")[2].split("/")[0])).start()
    try:
        publish(connection, [outgoing()])
        assert len(keys(server)["critical"]) == 1
    finally:
        connection.release()
        server.remove()


def test_another_transport_sends_one_by_one() -> None:
    with Connection("memory://") as connection:
        result = publish(connection, [outgoing(1), outgoing(2)], batch_key="jobs.sent.1.1")

        queue = connection.SimpleQueue("critical")
        received = [queue.get(timeout=1) for _ in range(2)]
        queue.close()

    assert [message.headers["id"] for message in received] == ["id-1", "id-2"]
    assert not result.exactly_once


def test_an_empty_batch_is_nothing(broker) -> None:
    with connect() as connection:
        assert not publish(connection, [], batch_key="jobs.sent.1.1").already_sent

    assert keys(broker) == {}
