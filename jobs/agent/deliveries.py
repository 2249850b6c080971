"""Counts how often a job came back after it had started, in a place the whole fleet shares.

A job that kills its worker is put back by Celery, or by the broker when the whole worker went with
it, and would be for ever. Only starts count: what a dying worker had fetched and not started comes
back as well, and did nothing wrong. So RabbitMQ's ``x-delivery-count`` will not do, which counts both.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from kombu import Exchange, Producer, Queue

from . import messages
from .agent import Agent
from .sender import BrokerAway
from .wire import DELIVERIES_HEADER, PUBLICATION_HEADER

logger = logging.getLogger(__name__)

# A count outlives any visibility timeout in use. It is removed when its job ends.
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
    """The counter of one agent: on Redis a key a job; on RabbitMQ a queue a job, whose length is the
    count; elsewhere, or where that is not allowed, a header on a copy that takes the message's place."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._driver: str | None = None

    def comebacks(self, request: Any) -> int:
        """Return how often this job has started again after it had come back."""
        publication = self._agent.publication_of(request)
        counted = messages.counted_comebacks(messages.headers_of(request.message), publication)
        sender = self._agent.sender
        try:
            if self._is("redis"):
                found = sender.with_redis(lambda client, prefix: client.get(_key(prefix, publication)))
                return max(counted, int(found or 0))
            if self._is("amqp"):
                return max(counted, sender.with_channel(lambda channel: _declare(channel, publication)))
        except BrokerAway as away:
            logger.warning("The comebacks of job %s cannot be looked up: %s.", request.id, away)
        return counted

    def count_start(self, request: Any) -> None:
        """Count the start of a job that had come back."""
        publication = self._agent.publication_of(request)
        try:
            if self._is("redis"):
                self._agent.sender.with_redis(
                    lambda client, prefix: _count(client, _key(prefix, publication))
                )
            elif self._is("amqp"):
                self._agent.sender.with_channel(lambda channel: _add(channel, publication))
        except BrokerAway as away:
            logger.warning("Job %s came back and could not be counted: %s.", request.id, away)

    def forget(self, request: Any) -> None:
        """Remove the count of a job that has ended."""
        publication = self._agent.publication_of(request)
        try:
            if self._is("redis"):
                self._agent.sender.with_redis(
                    lambda client, prefix: client.expire(_key(prefix, publication), 0)
                )
            elif self._is("amqp"):
                self._agent.sender.with_channel(lambda channel: channel.queue_delete(_marker(publication)))
        except BrokerAway as away:
            logger.debug("The count of job %s stays until it expires: %s.", request.id, away)

    def put_back_counted(self, request: Any) -> bool:
        """Publish a copy that carries one comeback more; return whether it takes the original's place.

        False where the broker keeps the count: the original goes back as it is.
        """
        if self._is("redis") or self._is("amqp"):
            return False
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

    def _is(self, driver: str) -> bool:
        if self._driver is None:
            transport = self._agent.app.connection_for_write().transport
            self._driver = str(getattr(transport, "driver_type", ""))
        return self._driver == driver


def _key(prefix: str, publication: str) -> str:
    # kombu's client puts the global prefix before the commands it uses itself. GET, INCR and EXPIRE
    # are not among them; DEL is, so a count is removed by EXPIRE.
    return f"{prefix}jobs.deliveries.{publication}"


def _count(client: Any, key: str) -> None:
    client.incr(key)
    client.expire(key, KEPT_SECONDS)


def _marker(publication: str) -> str:
    # A publication id may hold an application's own job id, of any length.
    return f"jobs.deliveries.{hashlib.sha256(publication.encode('utf-8', 'replace')).hexdigest()[:32]}"


def _declare(channel: Any, publication: str) -> int:
    name = _marker(publication)
    queue = Queue(name, exchange=Exchange(""), routing_key=name, durable=True, expires=KEPT_SECONDS)
    queue(channel).queue_declare()
    # Declared twice: the first answer after a creation carries no count on some brokers.
    return int(channel.queue_declare(name, passive=True).message_count)


def _add(channel: Any, publication: str) -> None:
    _declare(channel, publication)
    Producer(channel, auto_declare=False).publish(
        b"1",
        content_type="application/octet-stream",
        content_encoding="binary",
        exchange="",
        routing_key=_marker(publication),
        retry=False,
    )
