"""Sends a message of no meaning to a queue, to see that it takes any.

Whoever reads a queue and finds nothing cannot tell whether nobody writes or nobody is let write: a RabbitMQ without
room on its disk stops those that publish and serves those that read, and so do a Redis that is full and a queue with
a limit.
"""

from __future__ import annotations

import contextlib

from kombu import Connection, Producer

from jobs.broker.publish import open_channel
from jobs.errors import BrokerUnavailable

CONTENT_TYPE = "application/vnd.jobs.probe"
# RabbitMQ takes the first message of a connection also when it is full, and stops the connection after it. So one
# goes ahead that proves nothing, and only the second does.
AHEAD, PROOF = b"ahead", b"proof"
# For the broker to take it; the duty that asks does nothing else meanwhile.
PROBE_SECONDS = 2.0


class Prober:
    """Writes to one queue, through a connection of its own, which is opened when it is first needed.

    RabbitMQ stops reading from a connection that has published while it is full, acknowledgements included.
    """

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection = connection.clone()
        self._queue = queue
        self._producer: Producer | None = None

    def send(self) -> None:
        """Send a message with PROOF for a body, after one with AHEAD; it is another matter whether it arrives.

        Raises:
            BrokerUnavailable: when the broker does not take them; says why.
        """
        try:
            if self._producer is None:
                self._producer = Producer(open_channel(self._connection), auto_declare=False)
            for body in (AHEAD, PROOF):
                self._producer.publish(
                    body,
                    exchange="",
                    routing_key=self._queue,
                    content_type=CONTENT_TYPE,
                    content_encoding="binary",
                    delivery_mode=1,  # it need not outlive the broker
                    retry=False,
                    timeout=PROBE_SECONDS,
                    confirm_timeout=PROBE_SECONDS,
                )
        except Exception as error:
            # Whatever it is, it shows that nothing gets through; a refusal by RabbitMQ is no error of kombu's.
            self._producer = None
            with contextlib.suppress(Exception):
                # Not a release: a RabbitMQ that reads nothing would be waited for another ten seconds.
                self._connection.collect()
            why = str(error).rstrip(".") or type(error).__name__
            raise BrokerUnavailable(
                f"The broker {self._connection.as_uri()} took no message for {self._queue}: {why}. "
                "Look at its memory, its disk and the limits of the queue."
            ) from error

    def close(self) -> None:
        """Let go of the connection; the next message opens one."""
        self._producer = None
        with contextlib.suppress(Exception):
            self._connection.release()
