"""Looking at what waits takes nothing and changes nothing, whatever lies there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs.broker import connect
from jobs.errors import BrokerUnavailable, QueueRefused
from jobs.queues import actions
from jobs.queues.actions import MOST_LOOKED_AT
from tests.queues.messages import publish_old, publisher, send

ODD = {
    "garbage": b"garbage",
    "without properties": b'{"body":"e30=","headers":{}}',
    "no text": b"\xff\xfe\x00",
    "nested deep": b"[" * 100_000,
    "not an object": b'"x"',
    "without a task": json.dumps(
        {"body": "e30=", "headers": {}, "properties": {"body_encoding": "base64"}}
    ).encode(),
}


def test_messages_are_shown_as_workers_would_take_them_and_stay(broker):
    with publisher(broker.url) as app:
        eta = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
        low = send(app, count=2, priority=9)
        high = send(app, count=2, priority=0, eta=eta)
    with broker.client() as client:
        before = {key: client.lrange(key, 0, -1) for key in client.keys("critical*")}

        found = actions.peek("critical", limit=3)

        assert {key: client.lrange(key, 0, -1) for key in client.keys("critical*")} == before
    assert found.total == 4
    assert [message.task_id for message in found.messages] == [*high, low[0]]
    first = found.messages[0]
    assert (first.task, first.eta, first.priority, first.problem) == ("shop.tasks.send_receipt", eta, 0, "")
    assert json.loads(first.body)[1] == {"order_id": 48000}
    assert abs((datetime.now(UTC) - first.published_at).total_seconds()) < 20


@pytest.mark.parametrize("item", ODD.values(), ids=ODD)
def test_rows_12_and_13_an_item_that_is_no_message_is_shown_as_such(broker, item):
    with broker.client() as client:
        client.lpush("critical", item)
    with publisher(broker.url) as app:
        [sent] = send(app)

    odd, good = actions.peek("critical").messages

    assert odd.problem
    assert (good.task_id, good.problem) == (sent, "")


def test_what_is_too_large_is_counted_and_not_fetched(broker):
    with publisher(broker.url) as app:
        [small] = send(app)
    with connect() as connection:
        publish_old(connection, "critical", seconds_ago=1, headers={"large": "x" * 1_200_000})

    found = actions.peek("critical")

    assert [message.task_id for message in found.messages] == [small]
    assert (found.total, found.left_out) == (2, 1)


def test_a_redis_that_forbids_scripts_shows_the_same(broker):
    with publisher(broker.url) as app:
        ids = send(app, count=3)
    with broker.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-eval")
    try:
        found = actions.peek("critical", limit=2)
    finally:
        with broker.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "+eval")

    assert [message.task_id for message in found.messages] == ids[:2]


def test_a_queue_that_is_empty_or_no_list_shows_nothing(broker):
    with broker.client() as client:
        client.set("odd", "x")

    assert actions.peek("odd").messages == actions.peek("empty").messages == []


def test_hostile_names_and_numbers_are_refused_before_anybody_is_asked(broker):
    for queue, limit in (
        ("a\x00b", 5),
        ("jobs.runs", 5),
        ("", 5),
        ("critical", 0),
        ("critical", MOST_LOOKED_AT + 1),
    ):
        with pytest.raises(QueueRefused):
            actions.peek(queue, limit=limit)


def test_a_broker_that_is_away_is_said(settings):
    settings.BROKER_URL = "redis://127.0.0.1:1/0"

    with pytest.raises(BrokerUnavailable):
        actions.peek("critical")
