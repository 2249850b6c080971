"""The agent's connection and the guard of its pools, alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.agent.guard import guard_pool
from jobs.agent.sender import BrokerAway, Sender
from jobs.agent.settings import read_settings
from tests.applications import Application
from tests.servers import RedisServer, wait_until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.remove()


@pytest.fixture
def sender(server: RedisServer, clock: Clock, tmp_path: Path) -> Iterator[Sender]:
    app = Application("sender", broker=server.url, set_as_current=False)
    sender = Sender(app, read_settings(spool_directory=tmp_path, timeout_seconds=0.5), clock=clock)
    yield sender
    sender.close()


def length(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.llen("jobs.dead"))


def test_a_broker_that_restarted_is_written_to_at_once(sender: Sender, server: RedisServer) -> None:
    sender.publish_record(b"one")
    server.stop()
    server.start()

    sender.publish_record(b"two")

    assert length(server) == 2


def test_a_broker_that_is_away_is_tried_again_only_after_a_pause(
    sender: Sender, server: RedisServer, clock: Clock
) -> None:
    server.stop()
    with pytest.raises(BrokerAway, match="refused"):
        sender.publish_record(b"one")
    server.start()

    with pytest.raises(BrokerAway, match="a moment ago"):
        sender.publish_record(b"one")
    clock.now += 3
    sender.publish_record(b"one")

    assert length(server) == 1


def test_the_pause_ends_when_the_worker_has_reconnected(sender: Sender, server: RedisServer) -> None:
    server.stop()
    with pytest.raises(BrokerAway):
        sender.publish_record(b"one")
    server.start()

    sender.resume()
    sender.publish_record(b"one")

    assert length(server) == 1


def test_a_signal_handler_in_the_middle_of_a_write_does_not_write_into_it(sender: Sender) -> None:
    def interrupted(client: Any, prefix: str) -> None:
        with pytest.raises(BrokerAway, match="in use"):
            sender.publish_record(b"from the handler")

    sender.with_redis(interrupted)


def test_a_thread_does_not_wait_for_ever_for_another(sender: Sender) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold(client: Any, prefix: str) -> None:
        entered.set()
        leave.wait(10)

    holder = threading.Thread(target=lambda: sender.with_redis(hold))
    holder.start()
    entered.wait(10)
    try:
        with pytest.raises(BrokerAway, match="in use"):
            sender.publish_record(b"one")
    finally:
        leave.set()
        holder.join()


def test_what_ends_a_greenlet_goes_through_and_leaves_a_usable_connection(
    sender: Sender, server: RedisServer
) -> None:
    def killed(client: Any, prefix: str) -> None:
        raise GeneratorExit

    with pytest.raises(GeneratorExit):
        sender.with_redis(killed)
    sender.publish_record(b"one")

    assert length(server) == 1


def test_a_child_opens_a_connection_of_its_own(sender: Sender, server: RedisServer) -> None:
    sender.publish_record(b"parent")

    child = os.fork()
    if child == 0:
        try:
            sender.publish_record(b"child")
            os._exit(0)
        except BaseException:  # noqa: BLE001 (a forked child must end here)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    sender.publish_record(b"parent again")

    wait_until(lambda: length(server) == 3, seconds=5)


def test_a_broker_that_does_not_answer_costs_the_timeout(clock: Clock, tmp_path: Path) -> None:
    import socket
    import time

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        app = Application("silent", broker=f"redis://127.0.0.1:{port}/0", set_as_current=False)
        sender = Sender(app, read_settings(spool_directory=tmp_path, timeout_seconds=0.3), clock=clock)
        started = time.monotonic()

        with pytest.raises(BrokerAway):
            sender.publish_record(b"one")

        assert time.monotonic() - started < 3
        sender.close()


class InlinePool:
    """A pool that does what Celery's in-process pools do."""

    def on_apply(
        self, target: Any, args: Any = None, kwargs: Any = None, callback: Any = None, **_: Any
    ) -> None:
        callback(target(*(args or ()), **(kwargs or {})))


def test_a_call_without_callbacks_is_left_alone() -> None:
    pool = InlinePool()
    guard_pool(pool)
    results: list[Any] = []

    pool.on_apply(lambda: 5, (), {}, results.append)

    assert results == [5]


def test_a_pool_is_guarded_once() -> None:
    pool = InlinePool()
    guard_pool(pool)
    guarded = pool.on_apply
    guard_pool(pool)

    assert pool.on_apply is guarded


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), ConnectionError("backend"), GeneratorExit()]
)
def test_whatever_escapes_is_given_to_the_request_and_never_to_the_worker(error: BaseException) -> None:
    pool = InlinePool()
    guard_pool(pool)
    results: list[Any] = []
    failures: list[Any] = []

    def target() -> None:
        raise error

    pool.on_apply(target, (), {}, callback=results.append, error_callback=failures.append)  # type: ignore[call-arg]

    assert results == []
    assert len(failures) == 1


def test_a_worker_that_is_told_to_stop_stops() -> None:
    from celery.exceptions import WorkerShutdown

    pool = InlinePool()
    guard_pool(pool)

    def target() -> None:
        raise WorkerShutdown(0)

    with pytest.raises(WorkerShutdown):
        pool.on_apply(target, (), {}, callback=print, error_callback=print)  # type: ignore[call-arg]


def test_what_ends_a_greenlet_belongs_to_the_pool() -> None:
    import gevent
    from greenlet import GreenletExit

    pool = InlinePool()
    guard_pool(pool)
    for error in (GreenletExit(), gevent.Timeout(1)):

        def target(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)):
            pool.on_apply(target, (), {}, callback=print, error_callback=print)  # type: ignore[call-arg]
