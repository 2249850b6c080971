"""The agent's own connection to the broker."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from celery import Celery
from kombu import Connection, Producer

from .batches import CONTENT_TYPE as BATCH_CONTENT_TYPE
from .settings import AgentSettings
from .wire import CONTENT_TYPE, DEAD_QUEUE, RUNS_QUEUE

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Connections inherited through a fork. Never closed and never collected: the collector would shut
# down a socket that the parent still uses.
_inherited: list[object] = []


class BrokerAway(Exception):
    """The broker did not take a message, or was not asked because it did not take the last one."""


class Sender:
    """Publishes records, one connection a process, opened when first needed.

    After a failure it does not try again for ``pause_seconds``: a worker whose broker is down must
    not pay a timeout for each of its jobs. Bounded by ``timeout_seconds`` for a connection and
    for a write.
    """

    def __init__(
        self, app: Celery, settings: AgentSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._pid = os.getpid()
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        # The connection on which the queue of batches was declared.
        self._runs_on: Connection | None = None
        self._paused_until = float("-inf")

    @property
    def is_paused(self) -> bool:
        """Whether a publish would fail at once because the last one failed."""
        return self._clock() < self._paused_until

    def resume(self) -> None:
        """Forget the last failure: the worker's own connection is back."""
        self._paused_until = float("-inf")

    def publish_record(self, body: bytes) -> None:
        """Publish one record to ``jobs.dead``.

        Raises:
            BrokerAway: when it was not taken.
        """
        self._run(
            lambda producer: producer.publish(
                body,
                content_type=CONTENT_TYPE,
                content_encoding="utf-8",
                exchange="",
                routing_key=DEAD_QUEUE,
                retry=False,
                timeout=self._settings.timeout_seconds,
            )
        )

    def publish_batch(self, body: bytes) -> None:
        """Publish one batch to ``jobs.runs``.

        Raises:
            BrokerAway: when it was not taken, or perhaps taken and the answer lost.
        """

        def publish(producer: Producer) -> None:
            if self._runs_on is not self._connection:
                self._declare_runs(producer)
            producer.publish(
                body,
                content_type=BATCH_CONTENT_TYPE,
                content_encoding="binary",
                exchange="",
                routing_key=RUNS_QUEUE,
                retry=False,
                timeout=self._settings.timeout_seconds,
            )

        self._run(publish)

    def runs_waiting(self) -> int:
        """Return how many batches wait on ``jobs.runs``, which is declared first.

        Raises:
            BrokerAway: when the broker does not answer.
        """
        return self._run(self._declare_runs)

    def publish_copy(self, body: Any, **how: Any) -> None:
        """Publish a job's message again, its body untouched; ``how`` is what kombu's producer takes.

        Raises:
            BrokerAway: when it was not taken.
        """
        self._run(
            lambda producer: producer.publish(
                body, retry=False, timeout=self._settings.timeout_seconds, **how
            )
        )

    def with_redis(self, call: Callable[[Any, str], T]) -> T:
        """Run ``call(client, key prefix)`` on the Redis that is the broker.

        Raises:
            BrokerAway: when it does not answer.
        """

        def on_channel(producer: Any) -> T:
            channel = producer.channel
            return call(channel.client, getattr(channel, "global_keyprefix", "") or "")

        return self._run(on_channel)

    def with_channel(self, call: Callable[[Any], T]) -> T:
        """Run ``call(channel)`` on a channel of its own: a refusal closes an AMQP channel.

        Raises:
            BrokerAway: when it fails.
        """

        def on_channel(_: Producer) -> T:
            connection: Any = self._connection  # open where there is a producer
            with connection.channel() as channel:
                return call(channel)

        return self._run(on_channel)

    def close(self) -> None:
        """Close the connection; the next publish opens one."""
        connection = self._let_go()
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.release()

    def _abandon(self) -> None:
        """Close the connection that failed, on AMQP without a word to the broker.

        RabbitMQ stops reading from whoever publishes while it is short of memory or disk. It would not hear a
        goodbye, and to wait for its answer would cost the time-out once more.
        """
        connection = self._let_go()
        if connection is not None:
            with contextlib.suppress(Exception):
                # Elsewhere kombu's collect() would change the time-out of the whole process's new sockets meanwhile.
                is_amqp = getattr(connection.transport, "driver_type", "") == "amqp"
                (connection.collect if is_amqp else connection.release)()

    def _let_go(self) -> Connection | None:
        connection, self._connection, self._producer = self._connection, None, None
        self._runs_on = None
        return connection

    def _run(self, call: Callable[[Producer], T]) -> T:
        me = threading.get_ident()
        if self._pid != os.getpid():
            self._leave_parent()
        if self._owner == me:
            # A signal handler (cold shutdown) interrupted this thread in the middle of a publish.
            raise BrokerAway("the agent's connection is in use")
        if self.is_paused:
            raise BrokerAway("the broker did not answer a moment ago")
        if not self._lock.acquire(timeout=2 * self._settings.timeout_seconds):
            raise BrokerAway("the agent's connection is in use")
        self._owner = me
        try:
            return self._run_held(call)
        except Exception as error:
            self._abandon()
            self._paused_until = self._clock() + self._settings.pause_seconds
            raise BrokerAway(f"{type(error).__name__}: {error}") from error
        except BaseException:
            # gevent.Timeout or a shutdown: nobody knows what was half written.
            self._abandon()
            raise
        finally:
            self._owner = None
            self._lock.release()

    def _run_held(self, call: Callable[[Producer], T]) -> T:
        if self._producer is not None:
            try:
                return call(self._producer)
            except Exception as error:  # noqa: BLE001 (raised again when it happens twice)
                # Opened before the broker restarted, perhaps: once more on a fresh connection.
                logger.debug("The agent's connection broke (%r); opening another.", error)
                self._abandon()
        return call(self._open())

    def _open(self) -> Producer:
        connection = self._app.connection_for_write(
            connect_timeout=self._settings.timeout_seconds, heartbeat=0
        )
        options = dict(connection.transport_options or {})
        options.update(self._bounds(str(getattr(connection.transport, "driver_type", ""))))
        connection.transport_options = options
        self._connection = connection
        # Twice without a pause in between: kombu's connect() would sleep for two seconds.
        connection.ensure_connection(
            max_retries=1, interval_start=0, interval_step=0, interval_max=0, reraise_as_library_errors=False
        )
        self._declare(connection, DEAD_QUEUE)
        channel = connection.channel()
        _write_through_one_client(channel)
        self._producer = Producer(channel, auto_declare=False)
        return self._producer

    def _bounds(self, driver: str) -> dict[str, Any]:
        seconds = self._settings.timeout_seconds
        if driver == "redis":
            return {"socket_timeout": seconds, "socket_connect_timeout": seconds, "health_check_interval": 0}
        if driver == "amqp":
            return {"confirm_publish": True, "read_timeout": seconds, "write_timeout": seconds}
        return {}

    def _declare_runs(self, producer: Any) -> int:
        connection: Any = self._connection  # open where there is a producer
        if getattr(connection.transport, "driver_type", "") == "amqp":
            waiting = self._declare(connection, RUNS_QUEUE)
        else:
            # A channel costs more than the question, and no refusal closes this one.
            waiting = _declare_on(producer.channel, RUNS_QUEUE)
        self._runs_on = connection
        return waiting

    def _declare(self, connection: Connection, name: str) -> int:
        """Declare a queue and return its length; one with other arguments (a limit, say) is used as it is."""
        with connection.channel() as channel:
            try:
                return _declare_on(channel, name)
            except connection.channel_errors as error:
                refusal = error
        with connection.channel() as channel:
            waiting = _declare_on(channel, name, passive=True)
        logger.info("The queue %s exists with arguments of its own: %s", name, refusal)
        return waiting

    def _leave_parent(self) -> None:
        _inherited.append((self._connection, self._producer))
        self._connection = self._producer = self._runs_on = None
        self._lock = threading.Lock()
        self._owner = None
        self._pid = os.getpid()


def _declare_on(channel: Any, name: str, *, passive: bool = False) -> int:
    declared = channel.queue_declare(
        queue=name, durable=True, exclusive=False, auto_delete=False, passive=passive
    )
    return int(declared.message_count)


def _write_through_one_client(channel: Any) -> None:
    """Let our own Redis channel write through the client it has.

    Kombu makes a client for each write, which costs the worker's loop more than the write itself
    (50 µs of 170 a record, measured); the connections are pooled either way.
    """
    if hasattr(channel, "conn_or_acquire") and hasattr(channel, "client"):
        own = channel.client
        channel.conn_or_acquire = lambda client=None: contextlib.nullcontext(client or own)
