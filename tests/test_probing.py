"""What those do who write to a broker that takes nothing more, while reading from it works all the same."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from jobs.agent.sender import BrokerAway, Sender
from jobs.agent.settings import read_settings
from jobs.agent.wire import RUNS_QUEUE
from jobs.broker import connect, probing
from jobs.broker.inbox import Inbox
from jobs.errors import BrokerUnavailable
from tests.applications import Application
from tests.rabbit import RabbitServer, VirtualHost, rabbit_server
from tests.servers import RedisServer, wait_until


def inbox_of(connection: Connection) -> Iterator[Inbox]:
    inbox = Inbox(connection, RUNS_QUEUE)
    yield inbox
    inbox.close()


@pytest.fixture
def on_redis(broker: RedisServer) -> Iterator[Inbox]:
    yield from inbox_of(connect())


@pytest.fixture
def on_rabbit(rabbit: VirtualHost, settings: Any) -> Iterator[Inbox]:
    settings.BROKER_URL = rabbit.url
    yield from inbox_of(connect())


@pytest.fixture
def on_files(tmp_path: Any) -> Iterator[Inbox]:
    folders = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), str(tmp_path))
    yield from inbox_of(Connection("filesystem://", transport_options=folders))


@pytest.mark.parametrize("place", ["on_redis", "on_rabbit", "on_files"])
def test_a_probe_comes_out_of_the_queue_and_is_known_by_its_kind(
    place: str, request: pytest.FixtureRequest
) -> None:
    inbox: Inbox = request.getfixturevalue(place)
    assert inbox.take(10, 0) == []

    inbox.probe()
    inbox.probe()
    taken = [one for _ in range(4) for one in inbox.take(1, 5) if inbox.ack([one]) is None]

    # A broker of files knows no order within a second.
    assert sorted(one.body for one in taken) == [probing.AHEAD] * 2 + [probing.PROOF] * 2
    assert {(one.content_type, one.problem) for one in taken} == {(probing.CONTENT_TYPE, "")}
    assert inbox.depth() == 0


def test_a_redis_that_is_full_takes_none_and_takes_one_when_it_has_room(
    on_redis: Inbox, broker: RedisServer
) -> None:
    with broker.client() as client:
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(BrokerUnavailable, match=r"took no message for jobs\.runs: .*maxmemory"):
                on_redis.probe()
            assert on_redis.take(10, 0) == []
        finally:
            client.config_set("maxmemory", "0")

    on_redis.probe()

    assert [one.body for one in on_redis.take(10, 1)] == [probing.AHEAD, probing.PROOF]


def test_a_queue_of_rabbitmq_that_refuses_what_is_published_takes_none(
    on_rabbit: Inbox, rabbit: VirtualHost
) -> None:
    refusing = {"x-max-length": 0, "x-overflow": "reject-publish"}
    with Connection(rabbit.url) as connection, connection.channel() as channel:
        queue = Queue(RUNS_QUEUE, Exchange(""), routing_key=RUNS_QUEUE, queue_arguments=refusing)(channel)
        queue.delete()
        queue.declare()
    try:
        assert on_rabbit.take(10, 0) == []

        with pytest.raises(BrokerUnavailable, match=r"took no message for jobs\.runs: MessageNacked"):
            on_rabbit.probe()

        assert on_rabbit.take(10, 0) == []
    finally:
        with Connection(rabbit.url) as connection, connection.channel() as channel:
            queue(channel).delete()


DISK_IS_FULL = "rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []})"
DISK_HAS_ROOM = "rabbit_alarm:clear_alarm({resource_limit, disk, node()})"
TIMEOUT_SECONDS = 2


@pytest.fixture(scope="module")
def rabbit_of_the_module() -> Iterator[RabbitServer]:
    with rabbit_server() as server:
        yield server


@pytest.fixture
def own_rabbit(rabbit_of_the_module: RabbitServer) -> Iterator[RabbitServer]:
    yield rabbit_of_the_module
    rabbit_of_the_module.evaluate(DISK_HAS_ROOM)


def test_a_rabbitmq_without_room_on_its_disk_is_found_out_soon_and_is_read_meanwhile(
    own_rabbit: RabbitServer, settings: Any
) -> None:
    """It reads nothing any more from those that publish, and says nothing to them."""
    settings.BROKER_URL = own_rabbit.url
    inbox = Inbox(connect(), RUNS_QUEUE)
    # Which declares the queue.
    assert inbox.take(10, 0) == []
    inbox.probe()
    assert has_proof(inbox)
    own_rabbit.evaluate(DISK_IS_FULL)

    def is_refused() -> bool:
        with contextlib.suppress(BrokerUnavailable):
            inbox.probe()
            return False
        return True

    wait_until(is_refused, what="the connection that was there before to be stopped")
    has_proof(inbox)

    # Of a new connection it takes the first message, and no other.
    before = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="timed out"):
        inbox.probe()
    # To close it as AMQP wants took ten seconds more.
    assert time.monotonic() - before < 4 * probing.PROBE_SECONDS
    assert not has_proof(inbox)

    own_rabbit.evaluate(DISK_HAS_ROOM)
    inbox.probe()
    assert has_proof(inbox)
    inbox.close()


def test_an_agent_waits_twice_for_a_rabbitmq_without_room_and_takes_no_leave_of_it(
    own_rabbit: RabbitServer, tmp_path: Path
) -> None:
    """What a worker's loop sends holds up its jobs meanwhile."""
    app = Application("alarmed", broker=own_rabbit.url, set_as_current=False)
    sender = Sender(app, read_settings(spool_directory=tmp_path, timeout_seconds=TIMEOUT_SECONDS))
    sender.publish_batch(b"before")
    own_rabbit.evaluate(DISK_IS_FULL)

    before = time.monotonic()
    with pytest.raises(BrokerAway, match="timed out"):
        sender.publish_batch(b"meanwhile")

    # On the connection that it had and on a new one; two goodbyes that nobody hears would take as long again.
    assert time.monotonic() - before < 3 * TIMEOUT_SECONDS
    own_rabbit.evaluate(DISK_HAS_ROOM)
    sender.resume()
    sender.publish_batch(b"after")
    sender.close()


def has_proof(inbox: Inbox) -> bool:
    """Take what comes within a second, and say whether a proof is among it."""
    bodies = set()
    while taken := inbox.take(10, 1):
        inbox.ack(taken)
        bodies |= {one.body for one in taken}
    return probing.PROOF in bodies
