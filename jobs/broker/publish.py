"""Sends stored messages again: in batches, confirmed, to queues that are there already.

Messages go through the default exchange with the queue's name. Nothing is declared here.

- Redis: kombu prepares and routes each message (encoding, priority lists, key prefix, queue expiry),
  and the commands it would run are run together in one MULTI. A batch with a key is sent exactly
  once: the MULTI also sets a marker, and does nothing when the marker is there.
- AMQP: one channel in confirm mode, every message mandatory, confirmed together at the end.
- Other transports: one by one.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import redis
from amqp.exceptions import FrameSyntaxError
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps as kombu_dumps

from jobs.agent.wire import PUBLICATION_HEADER
from jobs.errors import BrokerUnavailable

# How long a batch is known to have been sent. A runner that was stopped for longer sends it again.
MARKER_SECONDS = 7 * 24 * 3600
CONFIRM_SECONDS = 30
_WATCH_TRIES = 5


class JSONText(str):
    """An object as ``json.dumps`` writes it, for a message that is made by copying."""

    __slots__ = ()


class Outgoing(NamedTuple):
    """A message ready to be sent; ``body`` is raw and is never serialised again.

    Headers and properties are dicts, or both ``JSONText``. As text, ``properties`` says its ``delivery_mode``
    and nothing that kombu adds on the way.
    """

    body: bytes
    content_type: str
    content_encoding: str
    headers: Any
    properties: Any
    queue: str
    priority: int | None = None

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
    """

    already_sent: bool = False
    exactly_once: bool = False
    refused: dict[int, str] = field(default_factory=dict)


class Batch:
    """Messages in the form in which they go to this broker."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        # Redis only: what goes to which list, by kombu's name for it, and what else kombu would run.
        self.pushes: dict[str, list[str]] = {}
        self.others: dict[tuple[Any, ...], None] = {}
        self.refused: dict[int, str] = {}
        self._last: list[str] = []

    def add(self, name: str, *args: Any) -> None:
        """Take a command that kombu would run, as kombu's own batch does.

        kombu's is a pipeline without MULTI, which a crash can cut in two.
        """
        if name == "lpush":
            key, payload = args
            self._last = self.pushes.setdefault(key, [])
            self._last.append(payload)
        else:
            self.others[(name, *args)] = None

    def encode(self, channel: Any) -> None:
        """Let kombu prepare and route one message of each queue and priority, and write the others alike.

        Where a message goes depends on these two alone, so the others of the kind join the first.
        """
        kinds: dict[tuple[str, Any], tuple[list[str], str]] = {}
        is_base64 = channel.body_encoding == "base64"
        tags = _delivery_tags(len(self.messages))
        for position, message in enumerate(self.messages):
            kind = (message.queue, message.priority)
            try:
                found = kinds.get(kind)
                if found is None:
                    _hand_over(channel, message, _publish_batch=self)
                    kinds[kind] = self._last, _routing_text(channel, message)
                    continue
                payloads, routing = found
                if not is_base64:
                    message = message.opened()
                if type(message.headers) is JSONText:
                    payload = _copied(message, routing, next(tags))
                elif is_base64 and _ROUTING_PROPERTIES.isdisjoint(message.properties):
                    payload = _written(message, routing, next(tags))
                else:
                    prepared = _prepare(channel, message)
                    channel._inplace_augment_message(prepared, "", message.queue)
                    payload = kombu_dumps(prepared)
                payloads.append(payload)
            except _NO_FORM as error:
                self.refused[position] = _no_form(error)


def publish(
    connection: Connection, messages: Sequence[Outgoing], *, batch_key: str | None = None
) -> PublishResult:
    """Send the messages in their order.

    Raises:
        BrokerUnavailable: when the broker did not confirm. Without ``exactly_once`` a part may have
            been sent; sending the batch again with the same ids is right either way.
    """
    if not messages:
        return PublishResult()
    channel = open_channel(connection)
    return _send(connection, encode(channel, messages), batch_key=batch_key)


def open_channel(connection: Connection) -> Any:
    """Connect if need be, at once and without kombu's tries, which never end; return the channel.

    Raises:
        BrokerUnavailable: when the broker does not answer; the caller comes back later.
    """
    with _translated(connection, "cannot be reached"):
        connection.connect()
        return connection.default_channel


def encode(channel: Any, messages: Sequence[Outgoing]) -> Batch:
    """Bring messages into the form of the channel's broker. Talks to nobody, so any thread may do it."""
    batch = Batch(messages)
    if _is_one_redis(channel):
        batch.encode(channel)
    return batch


class Delivery:
    """A batch that is being sent. ``is_guarded`` says that its key keeps it from being sent twice."""

    def __init__(self, connection: Connection, batch: Batch, under_way: Future[PublishResult] | None) -> None:
        self._connection = connection
        self._batch = batch
        self._under_way = under_way

    @property
    def is_guarded(self) -> bool:
        return self._under_way is not None

    def wait(self) -> PublishResult:
        """Return what became of the batch, once that is known.

        Raises:
            BrokerUnavailable: as ``publish``.
        """
        if self._under_way is None:
            return _send(self._connection, self._batch)
        with _translated(self._connection, _not_taken(self._batch)):
            return self._under_way.result()


def send(connection: Connection, batch: Batch, executor: Executor, *, batch_key: str) -> Delivery:
    """Send what ``encode`` returned, on one Redis by another thread at once, else when it is waited for."""
    channel = connection.default_channel
    if not _is_one_redis(channel):
        return Delivery(connection, batch, None)
    return Delivery(connection, batch, executor.submit(_send_redis, channel, batch, batch_key))


def _send(connection: Connection, batch: Batch, *, batch_key: str | None = None) -> PublishResult:
    with _translated(connection, _not_taken(batch)):
        channel = connection.default_channel
        if _is_one_redis(channel):
            return _send_redis(channel, batch, batch_key)
        if connection.transport.driver_type == "amqp":
            return _publish_amqp(connection, batch.messages)
        for position, message in enumerate(batch.messages):
            try:
                _hand_over(channel, message)
            except _NO_FORM as error:
                batch.refused[position] = _no_form(error)
    return PublishResult(refused=batch.refused)


def _not_taken(batch: Batch) -> str:
    return f"did not take {len(batch.messages)} messages"


@contextlib.contextmanager
def _translated(connection: Connection, what: str) -> Iterator[None]:
    # Not kombu's as they are: its Redis transport lists KeyError among them.
    declared: tuple[Any, ...] = (*connection.connection_errors, *connection.channel_errors)
    broken = tuple(e for e in declared if not issubclass(e, LookupError | TypeError | ValueError))
    try:
        yield
    except (*broken, OperationalError, OSError) as error:
        connection.collect()
        raise BrokerUnavailable(
            f"The broker at {connection.as_uri()} {what}: {str(error).rstrip('.')}. Trying again is safe."
        ) from error


def _is_one_redis(channel: Any) -> bool:
    """Say whether a MULTI over several lists is possible: on Redis, and not on a cluster of them."""
    cluster = getattr(kombu_redis, "ClusterChannel", None)
    return isinstance(channel, kombu_redis.Channel) and not (cluster and isinstance(channel, cluster))


def _prepare(channel: Any, message: Outgoing) -> Any:
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


def _hand_over(channel: Any, message: Outgoing, **options: Any) -> None:
    channel.basic_publish(_prepare(channel, message), exchange="", routing_key=message.queue, **options)


# What kombu adds to the properties of a message on its way, in this order.
_ROUTING_PROPERTIES = frozenset({"delivery_info", "priority", "body_encoding", "delivery_tag"})
# kombu's own encoder builds itself anew for each message; this writes the same text for plain values.
# Headers come from JSON and so hold no cycle.
_encode = json.JSONEncoder(check_circular=False).encode


def _delivery_tags(count: int) -> Iterator[str]:
    """Yield version 4 UUIDs, as kombu's tags are, from one read of the system's randomness."""
    digits = os.urandom(16 * count).hex()
    for at in range(0, 32 * count, 32):
        yield (
            f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}"
            f"-a{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}"
        )


def _routing_text(channel: Any, message: Outgoing) -> str:
    """Return the properties that kombu adds, but for the value of the last, the delivery tag."""
    values = {
        "delivery_info": {"exchange": "", "routing_key": message.queue},
        "priority": message.priority or channel.default_priority,
        "body_encoding": "base64",
        "delivery_tag": "",
    }
    return _encode(values)[1:-2]


def _written(message: Outgoing, routing: str, tag: str) -> str:
    """Write the text that kombu's Redis transport puts on a list: a fourth of kombu's own time for it."""
    properties = message.properties
    try:
        headers = _encode(message.headers)
        if properties.keys() == {"correlation_id", "delivery_mode"}:
            # Nearly all have these two.
            first_properties = (
                f'{{"delivery_mode": {_encode(properties["delivery_mode"])},'
                f' "correlation_id": {_encode(properties["correlation_id"])}'
            )
        else:
            first_properties = _encode({"delivery_mode": 2, **properties})[:-1]
    except TypeError:
        headers = kombu_dumps(message.headers)
        first_properties = kombu_dumps({"delivery_mode": 2, **properties})[:-1]
    return _envelope(message, headers, first_properties, routing, tag)


def _copied(message: Outgoing, routing: str, tag: str) -> str:
    """Write the same of a message whose headers and properties are text."""
    return _envelope(message, str(message.headers), str(message.properties)[:-1], routing, tag)


def _envelope(message: Outgoing, headers: str, properties: str, routing: str, tag: str) -> str:
    return (
        f'{{"body": "{b2a_base64(message.body, newline=False).decode("ascii")}",'
        f' "content-encoding": {_encode(message.content_encoding)},'
        f' "content-type": {_encode(message.content_type)},'
        f' "headers": {headers}, "properties": {properties}, {routing}{tag}"}}}}'
    )


# What encoders raise about a value that has no form in the broker's protocol.
_NO_FORM = (TypeError, ValueError, struct.error, FrameSyntaxError)


def _no_form(error: Exception) -> str:
    return f"A value in its headers has no form in this broker's protocol ({error})."


def _send_redis(channel: Any, batch: Batch, batch_key: str | None) -> PublishResult:
    prefix = channel.global_keyprefix
    # A client of its own on kombu's pool: kombu's prefixing client does not prefix EXISTS.
    client = redis.Redis(connection_pool=channel.pool)
    marker = None if batch_key is None else f"{prefix}{batch_key}"
    for _ in range(_WATCH_TRIES):
        with client.pipeline(transaction=True) as pipe:
            if marker is not None:
                pipe.watch(marker)  # type: ignore[no-untyped-call] # redis leaves this one untyped
                if pipe.exists(marker):
                    return PublishResult(already_sent=True, exactly_once=True, refused=batch.refused)
                pipe.multi()
                pipe.set(marker, int(time.time()), ex=MARKER_SECONDS)
            for key, payloads in batch.pushes.items():
                # One LPUSH with many values leaves the list as many LPUSHes do.
                pipe.lpush(f"{prefix}{key}", *payloads)
            for name, key, *args in batch.others:
                getattr(pipe, name)(f"{prefix}{key}", *args)
            try:
                pipe.execute()
            except redis.WatchError:
                # Somebody set the marker, or the connection broke while EXEC was on its way. The
                # marker tells which.
                continue
            return PublishResult(exactly_once=marker is not None, refused=batch.refused)
    raise BrokerUnavailable(
        f"Redis did not take batch {batch_key} in {_WATCH_TRIES} tries. Trying again is safe."
    )


def _publish_amqp(connection: Connection, messages: Sequence[Outgoing]) -> PublishResult:
    """Publish all, then wait for all confirms: one round trip a batch instead of one a message."""
    channel: Any = connection.channel()
    try:
        confirmed = _Confirms()
        refused: dict[int, str] = {}
        # The class's own method: with confirm_publish the instance's waits after each message.
        send: Any = getattr(channel, "_basic_publish", channel.basic_publish)
        channel.confirm_select()
        channel.events["basic_ack"].add(confirmed.on_ack)
        channel.events["basic_nack"].add(confirmed.on_nack)
        channel.events["basic_return"].clear()
        channel.events["basic_return"].add(confirmed.on_return)
        for position, given in enumerate(messages):
            message = given.opened()
            confirmed.positions[message.headers.get(PUBLICATION_HEADER)] = position
            confirmed.expect_one()
            try:
                send(_prepare(channel, message), exchange="", routing_key=message.queue, mandatory=True)
            except _NO_FORM as error:
                confirmed.withdraw_one()
                refused[position] = _no_form(error)
        deadline = time.monotonic() + CONFIRM_SECONDS
        while not confirmed.is_complete:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"{confirmed.open_count} messages were not confirmed in {CONFIRM_SECONDS} s"
                )
            connection.drain_events(timeout=left)
        if confirmed.nacked:
            raise OSError(f"the broker refused {confirmed.nacked} messages")
        for position in confirmed.returned:
            refused[position] = f"The broker has no queue {messages[position].queue}."
        return PublishResult(refused=refused)
    finally:
        channel.close()


class _Confirms:
    """Counts the broker's answers to a batch on a fresh channel, whose tags run from 1."""

    def __init__(self) -> None:
        self.sent = 0
        self.waiting: set[int] = set()
        # By publication id: the broker hands an unroutable message back whole, without a tag.
        self.positions: dict[str | None, int] = {}
        self.returned: set[int] = set()
        self.nacked = 0

    def expect_one(self) -> None:
        """Wait for one more, with the next tag."""
        self.sent += 1
        self.waiting.add(self.sent)

    def withdraw_one(self) -> None:
        """Give the last tag back: its message did not go out."""
        self.waiting.discard(self.sent)
        self.sent -= 1

    @property
    def is_complete(self) -> bool:
        return not self.waiting

    @property
    def open_count(self) -> int:
        return len(self.waiting)

    def on_ack(self, delivery_tag: int, multiple: bool) -> None:
        self._settle(delivery_tag, multiple)

    def on_nack(self, delivery_tag: int, multiple: bool) -> None:
        self.nacked += self._settle(delivery_tag, multiple)

    def on_return(self, _exception: object, _exchange: str, _routing_key: str, message: Any) -> None:
        self.returned.add(self.positions[message.headers.get(PUBLICATION_HEADER)])

    def _settle(self, delivery_tag: int, multiple: bool) -> int:
        settled = {tag for tag in self.waiting if tag <= delivery_tag} if multiple else {delivery_tag}
        settled &= self.waiting
        self.waiting -= settled
        return len(settled)
