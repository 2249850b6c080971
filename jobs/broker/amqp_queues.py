"""Queues as AMQP tells of them: a passive declaration each. Also of kombu's other transports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection
from typing import Any

from kombu import Connection

from jobs.broker.queues import LOCKED, NOT_DECLARED, Measured, code_of, is_missing

# Celery's queues for native delayed delivery, one for each power of two of seconds.
DELAYED_QUEUES = tuple(f"celery_delayed_{level}" for level in range(28))
# While there are none they are looked for so often only: a queue that is missing costs a channel.
_LOOK_AGAIN_SECONDS = 60.0


class AmqpQueues:
    """Counts queues over one connection and a channel of its own, which a missing queue closes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel: Any = None
        # kombu's virtual transports answer that nobody consumes, whoever does.
        self._is_amqp = getattr(connection.transport, "driver_type", "") == "amqp"
        self._no_delayed_since: float | None = None

    def measure(self, queues: Collection[str]) -> dict[str, Measured]:
        """Count queues, a round trip each."""
        return {queue: self._measure(queue) for queue in queues}

    def delayed(self) -> int:
        """Count what Celery's queues of native delayed delivery hold, 28 round trips where there are any."""
        if not self._is_amqp:
            return 0
        if self._no_delayed_since is not None:
            if time.monotonic() - self._no_delayed_since < _LOOK_AGAIN_SECONDS:
                return 0
            self._no_delayed_since = None
        total = 0
        for name in reversed(DELAYED_QUEUES):
            found = self._measure(name)
            if found.ready is None:
                self._no_delayed_since = time.monotonic()
                return 0
            total += found.ready
        return total

    def declared_waiting(self) -> set[str]:
        """Return nothing: AMQP lists no queues."""
        return set()

    def close(self) -> None:
        """Close the channel."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _measure(self, queue: str) -> Measured:
        errors: Any = self._connection.channel_errors
        if self._channel is None:
            self._channel = self._connection.channel()
        try:
            declared = self._channel.queue_declare(queue, passive=True)
        except errors as error:
            with contextlib.suppress(*errors):
                self._channel.close()
            self._channel = None
            if is_missing(error):
                return Measured(trouble=NOT_DECLARED)
            if code_of(error) == LOCKED:
                return Measured(trouble="It belongs to one connection alone, and nobody else may count it.")
            raise
        return Measured(
            ready=int(declared.message_count),
            consumers=int(declared.consumer_count) if self._is_amqp else None,
        )
