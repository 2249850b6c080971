"""What lies in a queue is counted as it is, on each kind of broker."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from kombu import Connection, Exchange, Queue

from jobs.agent.wire import DEAD_QUEUE
from jobs.broker import connect
from jobs.broker.queues import NOT_DECLARED, Meter, on_redis
from jobs.errors import BrokerUnavailable
from tests.queues.messages import publish_old, publisher, send
from tests.servers import RedisServer


@pytest.fixture
def meter(broker: RedisServer):
    meter = Meter(connect())
    yield meter
    meter.close()


@pytest.mark.parametrize(
    "options", [{}, {"global_keyprefix": "shop:"}, {"priority_steps": [0, 5], "sep": ":"}]
)
def test_row_68_the_lists_of_all_priorities_are_one_queue(broker, settings, options):
    settings.BROKER_TRANSPORT_OPTIONS = options
    with publisher(broker.url, broker_transport_options=options) as app:
        for priority in (0, 1, 3, 5, 6, 9):
            send(app, priority=priority)
    meter = Meter(connect())

    measured = meter.measure(["critical", "empty"])

    meter.close()
    with broker.client() as client:
        assert client.llen(f"{options.get('global_keyprefix', '')}critical") < 6
    assert measured["critical"].ready == 6
    assert (measured["empty"].ready, measured["empty"].unacknowledged) == (0, 0)


def test_the_age_is_of_the_oldest_message_of_all_priorities(broker, meter):
    with connect() as connection:
        publish_old(connection, "critical", seconds_ago=60)
        publish_old(connection, "critical", seconds_ago=5)
        publish_old(connection, "critical", seconds_ago=600, priority=9)

    since = meter.measure(["critical"])["critical"].waiting_since

    assert time.time() - since == pytest.approx(600, abs=5)


def test_a_message_with_an_eta_waits_from_its_eta_on(broker, meter):
    eta = datetime.now(UTC) - timedelta(seconds=30)
    with connect() as connection:
        publish_old(connection, "critical", seconds_ago=600, headers={"eta": eta.isoformat()})

    assert meter.measure(["critical"])["critical"].waiting_since == pytest.approx(eta.timestamp())


def test_a_message_of_50_mb_is_measured_without_holding_redis_up(broker, meter):
    """Redis does nothing else meanwhile: it took 0.8 s of each 5 s, and under load, seconds on end."""
    published_at = time.time() - 600
    with connect() as connection:
        publish_old(connection, "critical", seconds_ago=600, body=b"x" * 50_000_000)
    with broker.client() as client:
        before = client.info("cpu")["used_cpu_user"]

        measured = meter.measure(["critical"])["critical"]

        # It was 0.7 s, and is 0.04 s.
        assert client.info("cpu")["used_cpu_user"] - before < 0.3
    assert measured.waiting_since == pytest.approx(published_at, abs=60)
    assert (measured.ready, measured.trouble) == (1, "")


@pytest.mark.parametrize("is_body_last", [False, True])
def test_a_large_message_tells_its_age_in_whatever_order_its_parts_are(broker, meter, is_body_last):
    published_at = time.time() - 600
    with connect() as connection:
        publish_old(connection, "critical", seconds_ago=600, body=b"x" * 1_000_000)
    with broker.client() as client:
        envelope = json.loads(client.lpop("critical"))
        parts = sorted(envelope, key=lambda name: (name == "body") == is_body_last)
        client.lpush("critical", json.dumps({name: envelope[name] for name in parts}))

    measured = meter.measure(["critical"])["critical"]

    assert measured.waiting_since == pytest.approx(published_at, abs=5)
    assert measured.trouble == ""


def test_the_age_is_unknown_where_the_publisher_has_no_agent(broker, meter):
    with connect() as connection, connection.Producer() as producer:
        producer.publish(
            [[], {}, {}], serializer="json", headers={"task": "a", "id": "b"}, routing_key="critical"
        )

    measured = meter.measure(["critical"])["critical"]

    assert (measured.ready, measured.waiting_since) == (1, None)


def test_what_a_message_says_in_its_arguments_is_not_taken_for_its_age(broker, meter):
    with publisher(broker.url) as app:
        send(app, argsrepr='", "jobs-published-at": 1, "eta": "1970-01-01T00:00:00+00:00", "')

    assert time.time() - meter.measure(["critical"])["critical"].waiting_since < 10


def test_delivered_messages_count_for_the_queue_they_came_from(broker, meter):
    exchange = Exchange("orders", type="topic")
    bound = Queue("invoices", exchange, routing_key="order.#")
    with connect() as connection:
        with connection.Producer() as producer:
            for _ in range(3):
                producer.publish("x", exchange=exchange, routing_key="order.paid.now", declare=[bound])
            producer.publish("x", routing_key="critical")
        channel = connection.default_channel
        for _ in range(2):
            channel.basic_get("invoices")
        channel.basic_get("critical")

        measured = meter.measure(["invoices", "critical"])
        again = meter.measure(["invoices", "critical"])

        assert {queue: (found.ready, found.unacknowledged) for queue, found in measured.items()} == {
            "invoices": (1, 2),
            "critical": (0, 1),
        }
        assert again == measured


@pytest.mark.parametrize(
    "item",
    [b"garbage", b"\xff\xfe", b'{"body":"e30=","headers":{}}'],
    ids=["no json", "no text", "without properties"],
)
def test_rows_12_and_13_an_item_that_would_end_a_worker_is_told(broker, meter, item):
    with broker.client() as client:
        client.lpush("critical", item)

    measured = meter.measure(["critical"])["critical"]

    assert measured.ready == 1
    assert "ends the worker" in measured.trouble


def test_a_key_that_is_no_list_is_told_and_hinders_no_other_queue(broker, meter):
    with broker.client() as client:
        client.set("odd", "x")
        client.lpush("critical", json.dumps({"headers": {}, "properties": {"a": 1}}))

    measured = meter.measure(["odd", "critical"])

    assert "no list" in measured["odd"].trouble
    assert measured["critical"].ready == 1


def test_a_redis_that_forbids_scripts_is_counted_the_same(broker, meter, monkeypatch):
    with publisher(broker.url) as app:
        send(app, count=2)
    with connect() as connection:
        connection.default_channel.basic_get("critical")
        publish_old(connection, "critical", seconds_ago=100)
        with broker.client() as client:
            client.lpush("bad", b"garbage")
        with_scripts = meter.measure(["critical", "bad"])
        meter.close()
        with broker.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "-eval")
        try:
            without = meter.measure(["critical", "bad"])
        finally:
            with broker.client() as client:
                client.execute_command("ACL", "SETUSER", "default", "+eval")

    assert without == with_scripts
    assert without["critical"].unacknowledged == 1


def test_queues_that_nobody_told_of_are_found_while_messages_wait(broker, meter):
    with publisher(broker.url) as app:
        send(app, "mistyped")
        send(app, "empty")
    with connect() as connection:
        message = connection.default_channel.basic_get("empty")
        connection.default_channel.basic_ack(message.delivery_tag)

    assert meter.declared_waiting() == {"mistyped"}


def test_what_the_collector_has_taken_counts_as_its_backlog(broker, meter):
    with broker.client() as client:
        client.lpush(f"{DEAD_QUEUE}.taken", b"{}")
        client.lpush(DEAD_QUEUE, b"{}", b"{}")

    assert meter.measure([DEAD_QUEUE])[DEAD_QUEUE].ready == 3


def test_a_broker_that_is_away_is_said_and_works_again_afterwards(settings):
    server = RedisServer().start()
    settings.BROKER_URL = server.url
    meter = Meter(connect())
    try:
        assert meter.measure(["critical"])["critical"].ready == 0
        server.stop()
        with pytest.raises(BrokerUnavailable):
            meter.measure(["critical"])
        server.start()
        assert meter.measure(["critical"])["critical"].ready == 0
    finally:
        meter.close()
        server.remove()


def test_other_transports_count_what_waits_and_leave_the_rest_unknown():
    connection = Connection("memory://")
    with connection.clone() as sender, sender.Producer() as producer:
        queue = Queue("counted", Exchange(""), routing_key="counted")
        producer.publish("x", routing_key="counted", declare=[queue])
        meter = Meter(connection)

        measured = meter.measure(["counted", "never-declared"])

        meter.close()
        sender.default_channel.queue_delete("counted")
    assert (measured["counted"].ready, measured["counted"].consumers) == (1, None)
    assert measured["counted"].unacknowledged is None
    assert measured["never-declared"].trouble == NOT_DECLARED


def test_addresses_of_redis_are_known_without_asking():
    assert on_redis("redis://nowhere:1/0")
    assert not on_redis("amqp://nowhere//")


def test_row_66_what_was_delivered_long_ago_is_counted_with_the_time_of_its_return(broker, meter):
    with publisher(broker.url) as app:
        send(app, count=3)
    with connect() as connection:
        for _ in range(3):
            connection.default_channel.basic_get("critical")
        with broker.client() as client:
            tag = client.zrange("unacked_index", 0, 0)[0]
            client.zadd("unacked_index", {tag: time.time() - 600})

        measured = meter.measure(["critical"])["critical"]

    assert (measured.unacknowledged, measured.delivered_long_ago) == (3, 1)
    assert measured.returns_at - time.time() == pytest.approx(3_000, abs=5)
