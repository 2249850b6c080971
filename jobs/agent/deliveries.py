"""Counts how often a job came back after it had started, in a place the whole fleet shares.

A job that kills its worker is put back by Celery, or by the broker when the whole worker went with
it, and would do so for ever. Only starts count: a message that a dying worker had fetched and not
started comes back as well, and did nothing wrong.
"""

from __future__ import annotations

import logging
from typing import Any

from . import messages
from .agent import Agent
from .sender import BrokerAway
from .wire import DELIVERIES_HEADER, PUBLICATION_HEADER

logger = logging.getLogger(__name__)

# A count outlives any visibility timeout in use; it is one small key of a job that came back.
KEPT_SECONDS = 7 * 24 * 3600
_BROKER_HEADERS = (
    "x-death",
    "x-first-death-",
    "x-last-death-",
    "x-delivery-count",
    "redelivered",
    "compression",
)


class Deliveries:
    """The counter of one agent. On Redis a key a job, on quorum queues the broker's own header,
    elsewhere a header on a copy that takes the message's place."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._driver: str | None = None

    def comebacks(self, request: Any) -> int:
        """Return how often this job has started again after it had come back."""
        headers = messages.headers_of(request.message)
        by_broker = messages.whole(headers.get("x-delivery-count"))
        if by_broker is not None:
            return by_broker
        publication = self._agent.publication_of(request)
        if not self._is_redis():
            return messages.counted_comebacks(headers, publication)
        try:
            found = self._agent.sender.with_redis(
                lambda client, prefix: client.get(_key(prefix, publication))
            )
        except BrokerAway:
            # It is the broker that keeps the count: nothing comes back before it does.
            return 0
        return int(found) if found is not None else 0

    def count_start(self, request: Any) -> None:
        """Count the start of a redelivered job, where the count is not in the message."""
        if not self._is_redis():
            return
        publication = self._agent.publication_of(request)

        def count(client: Any, prefix: str) -> None:
            key = _key(prefix, publication)
            client.incr(key)
            client.expire(key, KEPT_SECONDS)

        try:
            self._agent.sender.with_redis(count)
        except BrokerAway as away:
            logger.warning("Job %s came back and could not be counted: %s.", request.id, away)

    def needs_copy(self, request: Any) -> bool:
        """Return whether only a copy of the message can carry the count."""
        headers = messages.headers_of(request.message)
        return messages.whole(headers.get("x-delivery-count")) is None and not self._is_redis()

    def put_back_counted(self, request: Any) -> bool:
        """Publish a copy that carries one comeback more; return whether it can take the original's place."""
        message = request.message
        publication = self._agent.publication_of(request)
        headers = {
            name: value
            for name, value in messages.headers_of(message).items()
            # The body is not compressed any more, and the broker's own marks belong to the original.
            if not str(name).startswith(_BROKER_HEADERS)
        }
        headers[PUBLICATION_HEADER] = publication
        headers[DELIVERIES_HEADER] = f"{self.comebacks(request) + 1}:{publication}"
        properties = message.properties if isinstance(message.properties, dict) else {}
        kept = ("priority", "correlation_id", "reply_to", "delivery_mode", "message_id", "type", "app_id")
        queue = self._agent.queue_of(message)
        delivery = message.delivery_info if isinstance(message.delivery_info, dict) else {}
        try:
            self._agent.sender.publish_copy(
                message.body,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers=headers,
                exchange="" if queue else messages.text(delivery.get("exchange")),
                routing_key=queue or messages.text(delivery.get("routing_key")),
                **{name: properties[name] for name in kept if properties.get(name) is not None},
            )
        except BrokerAway as away:
            logger.warning("Job %s comes back uncounted: %s.", request.id, away)
            return False
        return True

    def _is_redis(self) -> bool:
        if self._driver is None:
            transport = self._agent.app.connection_for_write().transport
            self._driver = str(getattr(transport, "driver_type", ""))
        return self._driver == "redis"


def _key(prefix: str, publication: str) -> str:
    # kombu's client puts the global prefix before the commands it uses itself; these are not among them.
    return f"{prefix}jobs.deliveries.{publication}"
