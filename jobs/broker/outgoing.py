"""A message that is ready to be sent, and what became of a batch of them."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amqp.exceptions import FrameSyntaxError

# What encoders raise about a value that has no form in the broker's protocol.
NO_FORM = (TypeError, ValueError, struct.error, FrameSyntaxError)


class JSONText(str):
    """An object as ``json.dumps`` writes it, for a message that is made by copying."""

    __slots__ = ()


class Outgoing(NamedTuple):
    """A message ready to be sent; ``body`` is raw and is never serialised again.

    Headers and properties are dicts, or both ``JSONText``. As text, ``properties`` says its ``delivery_mode``
    and nothing that kombu adds on the way.

    It goes to ``queue`` through the default exchange, or with ``exchange`` through that one by its
    ``routing_key``. ``declare`` are kombu's entities that are declared first, once a connection, as
    Celery does; a replay gives none. Redis needs that for a named exchange only.
    """

    body: bytes
    content_type: str
    content_encoding: str
    headers: Any
    properties: Any
    queue: str
    priority: int | None = None
    exchange: str = ""
    routing_key: str = ""
    declare: tuple[Any, ...] = ()

    @property
    def key(self) -> str:
        """The routing key on the wire."""
        return self.routing_key if self.exchange else self.queue

    def opened(self) -> Outgoing:
        """Return the message with headers and properties as values."""
        if not isinstance(self.headers, JSONText):
            return self
        return self._replace(headers=json.loads(self.headers), properties=json.loads(self.properties))


@dataclass(frozen=True, slots=True)
class PublishResult:
    """What became of a batch.

    ``already_sent`` is True when its key was known, so that nothing was sent now. ``exactly_once``
    is True when the broker guards the batch by its key. ``refused`` says by position why a message
    was not sent: the broker has no such queue, or its protocol has no form for a header.
    ``fenced`` are keys of batches: nothing was sent now, because others sent them, or this one was taken over.
    """

    already_sent: bool = False
    exactly_once: bool = False
    refused: dict[int, str] = field(default_factory=dict)
    fenced: frozenset[str] = frozenset()


def prepare(channel: Any, message: Outgoing) -> Any:
    """Let kombu give a message the form of its transport."""
    message = message.opened()
    properties = {"delivery_mode": 2, **message.properties}
    return channel.prepare_message(
        message.body,
        # None and not 0: kombu then uses the channel's default, as it does for any producer.
        message.priority,
        message.content_type,
        message.content_encoding,
        message.headers,
        properties,
    )


def no_form(error: Exception) -> str:
    """Say that the broker's protocol has no form for a value."""
    return f"A value in its headers has no form in this broker's protocol ({error})."


def no_queue(message: Outgoing) -> str:
    """Say that no queue would get a message."""
    if not message.exchange:
        return f"The broker has no queue {message.queue}."
    return f"No queue is bound to the exchange {message.exchange} for the routing key {message.key!r}."
