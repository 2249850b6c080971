"""What lies in queues: how much, since when, and which messages, on every transport.

``Meter`` counts, ``Lifted`` takes what waits out of a queue and keeps it until it is archived, ``peek`` looks.
On Redis all read kombu's lists and hashes themselves; elsewhere what AMQP tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from kombu import Connection

from jobs.broker.inbox import REDIS_TRANSPORTS
from jobs.broker.outages import outages, translated
from jobs.broker.publish import open_channel

NOT_DECLARED = "The broker has no queue of this name."
# What AMQP answers to a question about a queue: it is not there, or belongs to one connection alone.
NOT_FOUND, LOCKED = "404", "405"


@dataclass(frozen=True, slots=True)
class Measured:
    """What the broker tells of a queue; what it does not tell is None.

    ``waiting_since`` is when the oldest waiting message was published, or was due if that is later, in
    seconds since the epoch. ``trouble`` is a sentence, "" when all is well.
    """

    ready: int | None = None
    unacknowledged: int | None = None
    consumers: int | None = None
    waiting_since: float | None = None
    trouble: str = ""
    # On Redis how many were delivered more than a minute ago, and when the first of these is delivered again unless
    # it is acknowledged, in seconds since the epoch.
    delivered_long_ago: int = 0
    returns_at: float | None = None
    # On Redis how many are on each of its lists, that of the highest priority first.
    sizes: tuple[int, ...] = ()


class _Driver(Protocol):
    def measure(self, queues: Collection[str]) -> dict[str, Measured]: ...
    def delayed(self) -> int: ...
    def declared_waiting(self) -> set[str]: ...
    def close(self) -> None: ...


class Meter:
    """Counts queues over one connection, which it keeps; remembers what need not be asked twice.

    Every method raises ``BrokerUnavailable`` when the broker does not answer; the next call connects anew.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver: _Driver | None = None

    def measure(self, queues: Collection[str]) -> dict[str, Measured]:
        """Count each of the queues; none is declared, changed or consumed from."""
        with translated(self._connection, "counting queues", close=self.close):
            return self._connected().measure(queues)

    def delayed(self) -> int:
        """Count what the broker itself holds for later, of all queues together: it does not tell of which."""
        with translated(self._connection, "counting what is held for later", close=self.close):
            return self._connected().delayed()

    def declared_waiting(self) -> set[str]:
        """Return queues that were declared and have messages, as far as this call came; empty where unknown.

        Each call looks at a part of the keys, the next one at the next part.
        """
        with translated(self._connection, "looking for queues", close=self.close):
            return self._connected().declared_waiting()

    def close(self) -> None:
        """Let go of the connection."""
        driver, self._driver = self._driver, None
        with contextlib.suppress(*outages(self._connection)):
            if driver is not None:
                driver.close()
            self._connection.release()

    def _connected(self) -> _Driver:
        if self._driver is None:
            open_channel(self._connection)
            from jobs.broker.amqp_queues import AmqpQueues
            from jobs.broker.redis_queues import RedisQueues

            kind: Any = RedisQueues if is_redis(self._connection) else AmqpQueues
            self._driver = kind(self._connection)
        assert self._driver is not None  # noqa: S101 - it was made above
        return self._driver


def is_redis(connection: Connection) -> bool:
    """Say whether the queues are lists of one Redis."""
    return connection.transport_cls in REDIS_TRANSPORTS


def on_redis(broker_url: str) -> bool:
    """Say the same of an address; nobody is asked."""
    return is_redis(Connection(broker_url.split(";")[0]))


def code_of(error: BaseException) -> str:
    """Return AMQP's number of an error, "" when it has none."""
    return str(getattr(error, "code", None) or getattr(error, "reply_code", None) or "")


def is_missing(error: BaseException) -> bool:
    """Say whether a channel failed because the queue is not there."""
    return code_of(error) == NOT_FOUND
