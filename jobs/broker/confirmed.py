"""A batch on AMQP: everything declared, every message mandatory, all of them confirmed together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kombu import Connection
from kombu.common import maybe_declare

from jobs.agent.wire import PUBLICATION_HEADER
from jobs.broker.outgoing import NO_FORM, Outgoing, PublishResult, no_form, no_queue, prepare


def publish_confirmed(
    connection: Connection, messages: Sequence[Outgoing], *, confirm_seconds: float
) -> PublishResult:
    """Publish all, then wait for all confirms: one round trip a batch instead of one a message.

    A queue that cannot be declared, an exchange that is not there and a message that no queue gets
    refuse the messages concerned and hold up no other.
    """
    # No read of the client library ends by itself: a broker that stops answering would hold it for ever.
    with connection.connection.transport.having_timeout(confirm_seconds):
        refused = _declare(connection, messages)
        refused.update(_without_exchange(connection, messages, refused))
        left = [position for position in range(len(messages)) if position not in refused]
        confirmed = _Confirms()
        try:
            _send(connection, messages, left, confirmed, refused, confirm_seconds)
        except connection.channel_errors:
            # One of them made the broker close the channel: it is larger than the broker takes, say.
            _send_each(connection, messages, left, confirmed, refused, confirm_seconds)
    for position in confirmed.nacked:
        refused[position] = (
            f"The broker did not take it for the queue {messages[position].queue}: it is full, or the broker has an"
            " error of its own."
        )
    for position in confirmed.returned:
        refused[position] = no_queue(messages[position])
        # Somebody deleted what was declared: the next try declares it anew.
        for entity in messages[position].declare:
            _declared(connection).discard(hash(entity))
    return PublishResult(refused=refused)


def _declare(connection: Connection, messages: Sequence[Outgoing]) -> dict[int, str]:
    """Declare what is not declared yet; return why messages cannot be sent whose queue the broker refuses."""
    refused: dict[int, str] = {}
    failed: dict[tuple[Any, ...], str] = {}
    seen: set[int] = set()
    channel: Any = None
    try:
        for position, message in enumerate(messages):
            declare = message.declare
            if not declare or id(declare) in seen:
                continue
            if declare in failed:
                refused[position] = failed[declare]
                continue
            try:
                for entity in declare:
                    if hash(entity) not in _declared(connection):
                        channel = channel or connection.channel()
                        maybe_declare(entity, channel)
            except connection.channel_errors as error:
                # The broker has closed this channel.
                channel = None
                failed[declare] = refused[position] = (
                    f"The broker refused to declare {', '.join(each.name for each in declare)}: {_text(error)}"
                )
            else:
                seen.add(id(declare))
    finally:
        if channel is not None:
            channel.close()
    return refused


def _without_exchange(
    connection: Connection, messages: Sequence[Outgoing], refused: dict[int, str]
) -> dict[int, str]:
    """Ask for the named exchanges: a message to one that is missing would close the channel of all."""
    missing: dict[str, str] = {}
    asked: set[str] = set()
    found: dict[int, str] = {}
    for position, message in enumerate(messages):
        exchange = message.exchange
        if not exchange or position in refused:
            continue
        if exchange not in asked:
            asked.add(exchange)
            channel: Any = connection.channel()
            try:
                channel.exchange_declare(exchange=exchange, type="", passive=True)
            except connection.channel_errors as error:
                missing[exchange] = f"The broker has no exchange {exchange}: {_text(error)}"
            else:
                channel.close()
        if exchange in missing:
            found[position] = missing[exchange]
    return found


def _send(
    connection: Connection,
    messages: Sequence[Outgoing],
    positions: Sequence[int],
    confirmed: _Confirms,
    refused: dict[int, str],
    confirm_seconds: float,
) -> None:
    """Send the messages at these positions on one channel, and wait until all are confirmed."""
    channel: Any = connection.channel()
    try:
        # The class's own method: with confirm_publish the instance's waits after each message.
        send: Any = getattr(channel, "_basic_publish", channel.basic_publish)
        channel.confirm_select()
        confirmed.begin()
        channel.events["basic_ack"].add(confirmed.on_ack)
        channel.events["basic_nack"].add(confirmed.on_nack)
        channel.events["basic_return"].clear()
        channel.events["basic_return"].add(confirmed.on_return)
        for position in positions:
            message = messages[position].opened()
            confirmed.expect(position, message.headers.get(PUBLICATION_HEADER))
            try:
                send(
                    prepare(channel, message),
                    exchange=message.exchange,
                    routing_key=message.key,
                    mandatory=True,
                )
            except NO_FORM as error:
                confirmed.withdraw()
                refused[position] = no_form(error)
        deadline = time.monotonic() + confirm_seconds
        while confirmed.waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"{len(confirmed.waiting)} messages were not confirmed in {confirm_seconds:g} s"
                )
            connection.drain_events(timeout=left)
    finally:
        channel.close()


def _send_each(
    connection: Connection,
    messages: Sequence[Outgoing],
    positions: Sequence[int],
    confirmed: _Confirms,
    refused: dict[int, str],
    confirm_seconds: float,
) -> None:
    """Send what is not confirmed yet one by one, so that the one which is to blame refuses only itself."""
    for position in positions:
        if position in confirmed.done or position in refused:
            continue
        try:
            _send(connection, messages, [position], confirmed, refused, confirm_seconds)
        except connection.channel_errors as error:
            refused[position] = f"The broker closed the channel over it: {_text(error)}"


def _declared(connection: Connection) -> set[Any]:
    """Return the hashes of what kombu has declared on this connection."""
    declared = connection.declared_entities
    return set() if declared is None else declared


def _text(error: BaseException) -> str:
    return str(error).rstrip(".")[:500] + "."


class _Confirms:
    """Collects the broker's answers; the tags of a fresh channel run from 1."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.done: set[int] = set()
        # By publication id: the broker hands an unroutable message back whole, without a tag.
        self.positions: dict[str | None, int] = {}
        self.returned: set[int] = set()
        self.nacked: set[int] = set()
        self._tag = 0

    def begin(self) -> None:
        """Start with a fresh channel: what an older one did not answer is not known."""
        self.waiting.clear()
        self._tag = 0

    def expect(self, position: int, publication_id: str | None) -> None:
        """Wait for one more, with the next tag."""
        self._tag += 1
        self.waiting[self._tag] = position
        self.positions[publication_id] = position

    def withdraw(self) -> None:
        """Give the last tag back: its message did not go out."""
        del self.waiting[self._tag]
        self._tag -= 1

    def on_ack(self, delivery_tag: int, multiple: bool) -> None:
        self.done.update(self._settle(delivery_tag, multiple))

    def on_nack(self, delivery_tag: int, multiple: bool) -> None:
        answered = self._settle(delivery_tag, multiple)
        self.done.update(answered)
        self.nacked.update(answered)

    def on_return(self, _exception: object, _exchange: str, _routing_key: str, message: Any) -> None:
        self.returned.add(self.positions[message.headers.get(PUBLICATION_HEADER)])

    def _settle(self, delivery_tag: int, multiple: bool) -> list[int]:
        if not multiple:
            return [self.waiting.pop(delivery_tag)] if delivery_tag in self.waiting else []
        return [self.waiting.pop(tag) for tag in [tag for tag in self.waiting if tag <= delivery_tag]]
