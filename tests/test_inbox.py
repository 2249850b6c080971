"""Records are taken from the broker without losing one, on Redis by lists and elsewhere through kombu."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection, Exchange, Queue

from jobs.agent.wire import CONTENT_TYPE, DEAD_QUEUE
from jobs.broker import connect
from jobs.broker.inbox import TAKEN_LIST, Inbox, read_envelope
from jobs.errors import BrokerUnavailable
from tests.servers import RedisServer


def send(connection: Connection, *bodies: bytes, priority: int | None = None) -> None:
    """Publish as an agent does, through kombu."""
    queue = Queue(DEAD_QUEUE, exchange=Exchange(""), routing_key=DEAD_QUEUE, durable=True)
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(
                body,
                routing_key=DEAD_QUEUE,
                content_type=CONTENT_TYPE,
                content_encoding="utf-8",
                headers={"n": 1},
                priority=priority,
                declare=[queue],
            )


@pytest.fixture(params=["redis", "memory"])
def inbox(request):
    if request.param == "redis":
        request.getfixturevalue("broker")
        connection = connect()
    else:
        connection = Connection("memory://", transport_options={"polling_interval": 0.01})
        send(connection, b"left over")
        connection.default_channel.queue_purge(DEAD_QUEUE)
    inbox = Inbox(connection)
    inbox.sender = connection.clone()
    yield inbox
    inbox.close()
    inbox.sender.release()


def bodies(taken) -> list[bytes]:
    return [one.body for one in taken]


def test_messages_are_taken_oldest_first_and_whole(inbox):
    send(inbox.sender, b"one", "zw\u00f6lf \x00".encode(), b"\x80\xff")

    taken = inbox.take(10, 1)

    assert bodies(taken) == [b"one", "zw\u00f6lf \x00".encode(), b"\x80\xff"]
    assert taken[0].content_type == CONTENT_TYPE
    assert taken[0].content_encoding == "utf-8"
    assert taken[0].headers["n"] == 1
    assert taken[0].properties["delivery_info"]["routing_key"] == DEAD_QUEUE


def test_no_more_than_the_limit_is_taken(inbox):
    send(inbox.sender, *(str(n).encode() for n in range(5)))

    first = inbox.take(2, 1)
    inbox.ack(first)
    second = inbox.take(2, 1)

    assert bodies(first + second) == [b"0", b"1", b"2", b"3"]


def test_an_empty_queue_is_waited_for_and_gives_nothing(inbox):
    assert inbox.take(10, 0) == []
    assert inbox.take(10, 0.05) == []


def test_what_was_not_acknowledged_is_delivered_again(inbox):
    send(inbox.sender, b"one", b"two")

    first = inbox.take(10, 1)
    again = inbox.take(10, 1)

    assert bodies(again) == bodies(first) == [b"one", b"two"]


def test_what_was_acknowledged_is_gone(inbox):
    send(inbox.sender, b"one", b"two")

    inbox.ack(inbox.take(10, 1))

    assert inbox.take(10, 0.05) == []
    assert inbox.depth() == 0


def test_part_of_a_batch_can_be_acknowledged(inbox):
    send(inbox.sender, b"one", b"two", b"three")

    taken = inbox.take(10, 1)
    inbox.ack(taken[:1])

    assert bodies(inbox.take(10, 1)) == [b"two", b"three"]


def test_the_same_bytes_twice_are_two_messages(inbox):
    send(inbox.sender, b"same", b"same")

    inbox.ack(inbox.take(1, 1))

    assert bodies(inbox.take(10, 1)) == [b"same"]


def test_depth_counts_what_waits_and_what_is_taken(inbox):
    send(inbox.sender, b"one", b"two", b"three")

    inbox.take(2, 1)

    assert inbox.depth() == 3


def test_what_a_crash_left_is_delivered_first(broker):
    send(connect(), b"one", b"two")
    crashed = Inbox(connect())
    crashed.take(1, 1)
    crashed.close()

    taken = Inbox(connect()).take(10, 1)

    assert bodies(taken) == [b"one"]


def test_two_collectors_forget_only_their_own(broker):
    """Their leases overlap for a moment: what one has taken lies among what the other has."""
    send(connect(), *(str(n).encode() for n in range(6)))
    first, second = Inbox(connect()), Inbox(connect())
    assert first.take(0, 0) == second.take(0, 0) == []
    mine = first.take(2, 0)
    others = second.take(2, 0)
    more = first.take(10, 0)

    second.ack(others)

    assert bodies(mine) == [b"0", b"1"]
    assert sorted(bodies(Inbox(connect()).take(10, 0))) == [b"0", b"1"]
    assert more
    first.ack(mine)
    assert first.depth() == 2


@pytest.mark.parametrize("inbox", ["redis", "memory"], indirect=True)
def test_large_records_come_a_few_at_a_time(inbox, monkeypatch):
    monkeypatch.setattr("jobs.broker.inbox.BATCH_BYTES", 400_000)
    large = [bytes([number]) * 150_000 for number in range(5)]
    send(inbox.sender, *large)

    batches = []
    while taken := inbox.take(10, 0.5):
        batches.append(bodies(taken))
        inbox.ack(taken)

    assert [body for batch in batches for body in batch] == large
    assert max(map(len, batches)) <= 3


def test_what_a_crash_left_comes_a_few_at_a_time_too(broker, monkeypatch):
    send(connect(), *[bytes([number]) * 150_000 for number in range(5)])
    crashed = Inbox(connect())
    crashed.take(10, 0)
    crashed.close()
    monkeypatch.setattr("jobs.broker.inbox.BATCH_BYTES", 400_000)
    survivor = Inbox(connect())

    first = survivor.take(10, 0)

    assert [one.body[0] for one in first] == [0]
    survivor.ack(first)
    assert survivor.depth() == 4


def test_one_record_larger_than_a_batch_is_taken(broker, monkeypatch):
    monkeypatch.setattr("jobs.broker.inbox.BATCH_BYTES", 100)
    send(connect(), b"x" * 1_000)

    assert bodies(Inbox(connect()).take(10, 1)) == [b"x" * 1_000]


@pytest.fixture
def full_broker(broker):
    """Redis, and a function that fills it: it then refuses what needs memory."""
    with broker.client() as client:
        yield broker, lambda: client.config_set("maxmemory", 1)
        client.config_set("maxmemory", 0)


def test_a_broker_that_is_full_is_emptied(full_broker):
    _, fill = full_broker
    send(connect(), b"one", b"two", b"three")
    inbox = Inbox(connect())
    fill()

    batches = []
    while taken := inbox.take(2, 0.1):
        batches.append(bodies(taken))
        inbox.ack(taken)

    assert batches == [[b"one", b"two"], [b"three"]]
    assert inbox.depth() == 0


def test_what_was_read_from_a_full_broker_and_not_acknowledged_is_delivered_again(full_broker):
    broker, fill = full_broker
    send(connect(), b"one", b"two")
    inbox = Inbox(connect())
    fill()
    inbox.take(10, 0)

    with broker.client() as client:
        client.config_set("maxmemory", 0)
    again = inbox.take(10, 0)
    inbox.ack(again)

    assert bodies(again) == [b"one", b"two"]
    assert inbox.depth() == 0


@pytest.fixture
def without_scripts(broker, settings):
    with broker.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "noscript", "on", ">secret", "~*", "&*", "+@all", "-@scripting"
        )
    settings.BROKER_URL = broker.url.replace("redis://", "redis://noscript:secret@")
    inbox = Inbox(connect())
    yield inbox
    inbox.close()
    with broker.client() as client:
        client.execute_command("ACL", "DELUSER", "noscript")


def test_records_are_forgotten_where_scripts_are_forbidden(without_scripts):
    send(connect(), b"one", b"two")

    without_scripts.ack(without_scripts.take(10, 0))

    assert without_scripts.depth() == 0


def test_as_many_as_are_asked_for_are_taken_where_scripts_are_forbidden(without_scripts):
    """Whoever got fewer thought that no more waited: workers whose words did wait were given up for lost."""
    names = [b"%d" % number for number in range(150)]
    send(connect(), *names)

    taken = without_scripts.take(120, 0)
    assert bodies(taken) == names[:120]
    without_scripts.close()
    again = without_scripts.take(120, 0)
    assert bodies(again) == names[:120]
    without_scripts.ack(again)
    rest = without_scripts.take(120, 0)
    without_scripts.ack(rest)

    assert bodies(rest) == names[120:]
    assert without_scripts.depth() == 0


def test_large_records_come_in_parts_where_scripts_are_forbidden(without_scripts, monkeypatch):
    monkeypatch.setattr("jobs.broker.inbox.BATCH_BYTES", 100_000)
    send(connect(), *(b"%03d" % number + b"x" * 2_000 for number in range(150)))

    taken = without_scripts.take(120, 0)
    without_scripts.close()
    again = without_scripts.take(120, 0)

    # Their sizes are known once they are here: what is over the limit is one part at most.
    assert len(taken) == len(again) == 50
    assert [body[:3] for body in bodies(again)] == [b"%03d" % number for number in range(50)]


def test_an_item_that_is_no_envelope_stops_nothing(broker):
    send(connect(), b"before")
    with broker.client() as client:
        client.lpush(DEAD_QUEUE, b"garbage \xff", b"[]", b'{"headers": {}}')
    send(connect(), b"after")
    inbox = Inbox(connect())

    taken = inbox.take(10, 1)

    assert bodies(taken) == [b"before", b"garbage \xff", b"[]", b'{"headers": {}}', b"after"]
    assert [bool(one.problem) for one in taken] == [False, True, True, True, False]
    inbox.ack(taken)
    assert inbox.depth() == 0


def test_the_prefix_of_all_keys_is_honoured(broker, settings):
    settings.BROKER_TRANSPORT_OPTIONS = {"global_keyprefix": "shop:"}
    send(connect(), b"one")
    inbox = Inbox(connect())

    taken = inbox.take(10, 1)

    assert bodies(taken) == [b"one"]
    with broker.client() as client:
        assert client.llen(f"shop:{TAKEN_LIST}") == 1
    inbox.ack(taken)
    assert inbox.depth() == 0


def test_messages_of_every_priority_are_taken(broker):
    send(connect(), b"low", priority=9)
    send(connect(), b"high", priority=0)

    assert sorted(bodies(Inbox(connect()).take(10, 1))) == [b"high", b"low"]


def test_a_broker_that_is_away_is_an_error_and_loses_nothing(settings):
    server = RedisServer().start()
    settings.BROKER_URL = server.url
    inbox = Inbox(connect())
    try:
        send(connect(), b"one", b"two")
        assert bodies(inbox.take(1, 1)) == [b"one"]
        server.stop()

        # The second try opens a connection, which fails with another error of kombu's.
        for _ in range(2):
            with pytest.raises(
                BrokerUnavailable, match=r"failed while reading jobs\.dead: .*[^.]\. Nothing is lost"
            ):
                inbox.take(10, 0)

        server.start()
        taken = inbox.take(10, 1)
        inbox.ack(taken)
        assert bodies(taken) + bodies(inbox.take(10, 1)) == [b"one", b"two"]
    finally:
        inbox.close()
        server.remove()


@given(st.binary(max_size=200))
def test_any_bytes_on_the_list_are_read_as_something(item):
    taken = read_envelope(item)

    assert taken.receipt == item
    assert taken.problem == "" or taken.body == item


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "body": st.text() | st.none() | st.integers(),
            "headers": st.dictionaries(st.text(), st.integers()) | st.none() | st.just([1]),
            "properties": st.dictionaries(st.just("body_encoding"), st.sampled_from(["base64", "utf-8"]))
            | st.just("x"),
            "content-type": st.text() | st.integers(),
        },
    )
)
def test_any_object_on_the_list_is_read_as_something(envelope):
    item = json.dumps(envelope).encode()

    taken = read_envelope(item)

    assert taken.problem == "" or taken.body == item


@given(st.binary(max_size=500))
def test_a_body_comes_out_of_its_envelope_byte_for_byte(body):
    envelope = {
        "body": base64.b64encode(body).decode(),
        "properties": {"body_encoding": "base64"},
        "headers": {},
        "content-type": CONTENT_TYPE,
        "content-encoding": "utf-8",
    }

    assert read_envelope(json.dumps(envelope).encode()).body == body
