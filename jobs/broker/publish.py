"""Sends stored messages again: in batches, confirmed, to queues that are there already.

Messages go through the default exchange with the queue's name, or through the exchange that they name.
Only what a message itself asks for is declared.

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
from binascii import b2a_base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from kombu import Connection
from kombu.common import maybe_declare
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps as kombu_dumps

from jobs.broker.confirmed import publish_confirmed
from jobs.broker.outgoing import NO_FORM, JSONText, Outgoing, PublishResult, no_form, no_queue, prepare
from jobs.broker.pushing import FENCE_SECONDS, MARKER_SECONDS, push, sent_keys
from jobs.errors import BrokerUnavailable

__all__ = [
    "FENCE_SECONDS",
    "Batch",
    "Delivery",
    "JSONText",
    "Outgoing",
    "PublishResult",
    "encode",
    "open_channel",
    "publish",
    "send",
    "sent_batches",
]

CONFIRM_SECONDS = 30.0


# Where messages go: the list and what precedes a payload in its command, "lpush" for nearly all.
Target = tuple[str, str]
Kind = tuple[str, str, int | None]


class Batch:
    """Messages in the form in which they go to this broker."""

    def __init__(self, messages: Sequence[Outgoing]) -> None:
        self.messages = messages
        # Redis only: what goes to which list, by kombu's name for it, and what else kombu would run.
        self.pushes: dict[str, list[str]] = {}
        self.others: dict[tuple[Any, ...], None] = {}
        self.refused: dict[int, str] = {}
        self._targets: list[Target] = []
        self._kinds: dict[Kind, tuple[list[Target], list[str] | None, str]] = {}

    def add(self, name: str, *args: Any) -> None:
        """Take a command that kombu would run, as kombu's own batch does.

        kombu's is a pipeline without MULTI, which a crash can cut in two.
        """
        if name in ("lpush", "publish"):
            key, payload = args
            self._targets.append((name, key))
            self._push((name, key), payload)
        else:
            self.others[(name, *args)] = None

    def encode(self, channel: Any) -> None:
        """Let kombu prepare and route one message of each queue and priority, and write the others alike.

        Where a message goes depends on these two alone, so the others of the kind join the first. Asks the
        broker only for named exchanges: which queues are bound to them.
        """
        is_base64 = channel.body_encoding == "base64"
        tags = _delivery_tags(len(self.messages))
        for position, message in enumerate(self.messages):
            exchange = message.exchange
            kind = (exchange, message.routing_key if exchange else message.queue, message.priority)
            try:
                found = self._kinds.get(kind)
                if found is None:
                    self._route(channel, kind, message, position)
                    continue
                targets, payloads, routing = found
                if not targets:
                    self.refused[position] = no_queue(message)
                    continue
                if is_base64 and type(message.headers) is JSONText:
                    # Nearly all of them, so without another call.
                    payload = _copied(message, routing, next(tags))
                else:
                    payload = self._payload(channel, message, routing, next(tags), is_base64)
                if payloads is not None:
                    payloads.append(payload)
                else:
                    for target in targets:
                        self._push(target, payload)
            except NO_FORM as error:
                self.refused[position] = no_form(error)

    def refuse_pushes(self, failed: Mapping[str, str]) -> None:
        """Refuse the messages of lists that did not take them, by kombu's name for the list."""
        for position, message in enumerate(self.messages):
            targets = self._kinds.get((message.exchange, message.key, message.priority), ([], None, ""))[0]
            for _, key in targets:
                if key in failed:
                    self.refused.setdefault(position, failed[key])

    def _route(self, channel: Any, kind: Kind, message: Outgoing, position: int) -> None:
        if message.exchange:
            for entity in message.declare:
                maybe_declare(entity, channel)
        self._targets = []
        _hand_over(channel, message, _publish_batch=self)
        targets = self._targets
        only = self.pushes[targets[0][1]] if len(targets) == 1 and targets[0][0] == "lpush" else None
        self._kinds[kind] = targets, only, _routing_text(channel, message)
        if not targets:
            self.refused[position] = no_queue(message)

    @staticmethod
    def _payload(channel: Any, message: Outgoing, routing: str, tag: str, is_base64: bool) -> str:
        message = message.opened()
        if is_base64 and _ROUTING_PROPERTIES.isdisjoint(message.properties):
            return _written(message, routing, tag)
        prepared = prepare(channel, message)
        channel._inplace_augment_message(prepared, message.exchange, message.key)
        return str(kombu_dumps(prepared))

    def _push(self, target: Target, payload: str) -> None:
        name, key = target
        if name == "lpush":
            self.pushes.setdefault(key, []).append(payload)
        else:
            self.others[(name, key, payload)] = None


def publish(
    connection: Connection,
    messages: Sequence[Outgoing],
    *,
    batch_key: str | None = None,
    marker_seconds: int = MARKER_SECONDS,
    fences: Collection[str] = (),
    confirm_seconds: float = CONFIRM_SECONDS,
) -> PublishResult:
    """Send the messages in their order.

    ``fences`` are keys of batches that somebody else may be sending with the same messages: on Redis nobody
    can send them from now on, and when one was sent already, nothing is sent now and the result names it.

    Raises:
        BrokerUnavailable: when the broker did not confirm. Without ``exactly_once`` a part may have
            been sent; sending the batch again with the same ids is right either way.
    """
    if not messages:
        return PublishResult()
    channel = open_channel(connection)
    with _translated(connection, f"did not take {len(messages)} messages"):
        batch = encode(channel, messages)
        return _send(
            connection,
            batch,
            batch_key=batch_key,
            marker_seconds=marker_seconds,
            fences=fences,
            confirm_seconds=confirm_seconds,
        )


def sent_batches(connection: Connection, keys: Collection[str]) -> set[str]:
    """Return those of the batch keys that the broker knows as sent; none where it keeps no markers.

    Raises:
        BrokerUnavailable: as ``publish``.
    """
    channel = open_channel(connection)
    if not keys or not _is_one_redis(channel):
        return set()
    with _translated(connection, "did not answer"):
        return sent_keys(channel, keys)


def open_channel(connection: Connection) -> Any:
    """Connect if need be, at once and without kombu's tries, which never end; return the channel.

    Raises:
        BrokerUnavailable: when the broker does not answer; the caller comes back later.
    """
    with _translated(connection, "cannot be reached"):
        # Each address once, without a pause: kombu's connect() sleeps for two seconds and tries again, and
        # this runs at the commit of a request.
        connection.ensure_connection(
            max_retries=max(0, len(connection.alt) - 1),
            interval_start=0,
            interval_step=0,
            interval_max=0,
            reraise_as_library_errors=False,
        )
        return connection.default_channel


def encode(channel: Any, messages: Sequence[Outgoing]) -> Batch:
    """Bring messages into the form of the channel's broker. Talks to nobody, so any thread may do it.

    Messages for a named exchange are the exception, see ``Batch.encode``.
    """
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
            with _translated(self._connection, _not_taken(self._batch)):
                return _send(self._connection, self._batch)
        with _translated(self._connection, _not_taken(self._batch)):
            return self._under_way.result()


def send(connection: Connection, batch: Batch, executor: Executor, *, batch_key: str) -> Delivery:
    """Send what ``encode`` returned, on one Redis by another thread at once, else when it is waited for."""
    channel = connection.default_channel
    if not _is_one_redis(channel):
        return Delivery(connection, batch, None)
    return Delivery(connection, batch, executor.submit(push, channel, batch, batch_key))


def _send(
    connection: Connection,
    batch: Batch,
    *,
    batch_key: str | None = None,
    marker_seconds: int = MARKER_SECONDS,
    fences: Collection[str] = (),
    confirm_seconds: float = CONFIRM_SECONDS,
) -> PublishResult:
    channel = connection.default_channel
    if _is_one_redis(channel):
        return push(channel, batch, batch_key, marker_seconds=marker_seconds, fences=fences)
    if connection.transport.driver_type == "amqp":
        return publish_confirmed(connection, batch.messages, confirm_seconds=confirm_seconds)
    for position, message in enumerate(batch.messages):
        try:
            for entity in message.declare:
                maybe_declare(entity, channel)
            _hand_over(channel, message)
        except NO_FORM as error:
            batch.refused[position] = no_form(error)
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


def _hand_over(channel: Any, message: Outgoing, **options: Any) -> None:
    channel.basic_publish(
        prepare(channel, message), exchange=message.exchange, routing_key=message.key, **options
    )


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
        "delivery_info": {"exchange": message.exchange, "routing_key": message.key},
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
