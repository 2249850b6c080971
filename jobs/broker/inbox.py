"""Reading ``jobs.dead`` or ``jobs.runs`` without losing a message: taken first, acknowledged after the commit.

On Redis messages move to the list ``jobs.dead.taken`` (``jobs.runs.taken``) in one pipeline, and leave it when
they are acknowledged; what a crash left there is delivered again. On other transports kombu keeps them
unacknowledged. Delivery is at least once: the collector recognises what it has already.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import redis
from kombu import Connection, Consumer, Exchange, Queue
from kombu.exceptions import OperationalError

from jobs.agent.wire import DEAD_QUEUE
from jobs.broker.connection import SOCKET_TIMEOUT_SECONDS
from jobs.broker.probing import Prober
from jobs.errors import BrokerUnavailable

# What a queue's list of taken messages is called on Redis.
TAKEN_SUFFIX = ".taken"
TAKEN_LIST = f"{DEAD_QUEUE}{TAKEN_SUFFIX}"
REDIS_TRANSPORTS = frozenset({"redis", "rediss", "sentinel", "redis+socket"})
# How long to wait for one more message once there is one: a batch fills, but nobody waits for it.
_GATHER_SECONDS = 0.02


# A batch ends early at so many bytes: 500 jobs that died with 50 MB each fit no memory, and what kills the
# collector would kill it again after each start.
BATCH_BYTES = 32_000_000

# Returns the oldest items of a list within ARGV[1] items and ARGV[2] bytes; one at least.
_OLDEST = """
local items, size = {}, 0
for number = 1, tonumber(ARGV[1]) do
    local item = redis.call('LINDEX', KEYS[1], -number)
    if not item or (number > 1 and size + #item > tonumber(ARGV[2])) then break end
    size = size + #item
    items[number] = item
end
return items
"""

# The same of the other lists, in their order, while it moves the items to the taken list.
_MOVE = """
local items, size = {}, 0
for list = 2, #KEYS do
    while #items < tonumber(ARGV[1]) do
        local item = redis.call('LINDEX', KEYS[list], -1)
        if not item then break end
        if #items > 0 and size + #item > tonumber(ARGV[2]) then return items end
        size = size + #item
        items[#items + 1] = redis.call('RPOPLPUSH', KEYS[list], KEYS[1])
    end
end
return items
"""
# Where scripts are forbidden, sizes are known only once the items are here: so many at a time.
_WITHOUT_SCRIPTS = 50

# Cuts the oldest items off the taken list if they are those of one batch, first and last: then the
# ones between are too, unless another collector's lie among them, and the count does not fit. Returns
# how many stay, or -1. LREM would send every item back to the server, 6 KB each.
_FORGET_BATCH = """
local number = tonumber(ARGV[1])
local first, last = redis.call('LINDEX', KEYS[1], -1), redis.call('LINDEX', KEYS[1], -number)
if not first or not last or redis.sha1hex(first) ~= ARGV[2] or redis.sha1hex(last) ~= ARGV[3] then
    return -1
end
redis.call('LTRIM', KEYS[1], 0, -number - 1)
return redis.call('LLEN', KEYS[1])
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that was taken. ``problem`` says why its envelope could not be read; then ``body`` is all of it."""

    body: bytes
    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    content_type: str = ""
    content_encoding: str = ""
    problem: str = ""
    # What acknowledges it: the list item on Redis, kombu's message elsewhere.
    receipt: Any = field(default=None, repr=False, compare=False)


class _Reader(Protocol):
    def take(self, limit: int, wait_seconds: float) -> list[Taken]: ...
    def ack(self, taken: list[Taken]) -> None: ...
    def depth(self) -> int: ...
    def close(self) -> None: ...


class Inbox:
    """One of the two queues of the agents, ``jobs.dead`` unless another is named, for one collector.

    Every method raises ``BrokerUnavailable`` when the broker does not answer; the next call
    connects anew and delivers again what was taken and not acknowledged.
    """

    def __init__(self, connection: Connection, queue: str = DEAD_QUEUE) -> None:
        self._connection = connection
        self._queue = queue
        self._reader: _Reader | None = None
        self._prober: Prober | None = None

    def take(self, limit: int, wait_seconds: float) -> list[Taken]:
        """Return up to ``limit`` messages, oldest first; wait for the first one, not for the rest."""
        with self._translated("reading"):
            return self._connected().take(limit, wait_seconds)

    def ack(self, taken: list[Taken]) -> None:
        """Forget messages that are safely stored."""
        if taken:
            with self._translated("acknowledging"):
                self._connected().ack(taken)

    def depth(self) -> int:
        """Count what waits, taken and not acknowledged included where the broker can tell."""
        with self._translated("counting"):
            return self._connected().depth()

    def probe(self) -> None:
        """Send a message that ``take`` returns, with the content type of ``probing``: to see that the queue takes any."""
        if self._prober is None:
            self._prober = Prober(self._connection, self._queue)
        self._prober.send()

    def close(self) -> None:
        """Let go of the connection; what was not acknowledged will be delivered again."""
        if self._prober is not None:
            self._prober.close()
        reader, self._reader = self._reader, None
        with contextlib.suppress(*self._errors()):
            if reader is not None:
                reader.close()
        with contextlib.suppress(*self._errors()):
            self._connection.release()

    def _connected(self) -> _Reader:
        if self._reader is None:
            is_redis = self._connection.transport_cls in REDIS_TRANSPORTS
            kind = _RedisReader if is_redis else _KombuReader
            self._reader = kind(self._connection, self._queue)
        return self._reader

    def _errors(self) -> tuple[type[BaseException], ...]:
        # Not kombu's recoverable errors as they are: its Redis transport lists KeyError among them.
        declared = (*self._connection.connection_errors, *self._connection.channel_errors)
        broken = (e for e in declared if not issubclass(e, LookupError | TypeError | ValueError))
        # OperationalError is what opening a connection raises, whatever the transport.
        return (redis.exceptions.RedisError, OperationalError, OSError, *broken)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except self._errors() as error:
            # A half-read reply would answer the next command: never reuse what failed.
            self.close()
            raise BrokerUnavailable(
                f"The broker {self._connection.as_uri()} failed while {doing} {self._queue}: {str(error).rstrip('.')}. "
                "Nothing is lost; it is tried again."
            ) from error


class _RedisReader:
    """Moves many list items at once: BRPOP and an entry in ``unacked`` a message are ten times slower."""

    def __init__(self, connection: Connection, queue: str) -> None:
        channel: Any = connection.default_channel
        options = connection.transport_options or {}
        self._wait_limit = float(options.get("socket_timeout") or SOCKET_TIMEOUT_SECONDS) * 0.8
        # A client of our own on kombu's pool: kombu's prefixing client does not know these commands.
        self._client: Any = redis.Redis(connection_pool=channel.pool)
        prefix = channel.global_keyprefix
        names = [channel._q_for_pri(queue, step) for step in channel.priority_steps]
        self._lists = [f"{prefix}{name}" for name in dict.fromkeys(names)]
        self._taken = f"{prefix}{queue}{TAKEN_SUFFIX}"
        self._forget_batch = self._client.register_script(_FORGET_BATCH)
        self._oldest = self._client.register_script(_OLDEST)
        self._move_batch = self._client.register_script(_MOVE)
        # What is on the taken list is known to be none of ours, or unknown.
        self._may_hold_left_over = True
        # The list whose items were read without moving them.
        self._read_in_place = ""

    def take(self, limit: int, wait_seconds: float) -> list[Taken]:
        self._read_in_place = ""
        try:
            return self._take(limit, wait_seconds)
        except redis.exceptions.ResponseError as error:
            # A Redis that is full moves nothing: it would need memory for that. It may be full of dead
            # letters, so they must get out.
            if "maxmemory" not in str(error):
                raise
        for name in self._lists:
            if items := self._peek(name, limit):
                self._read_in_place = name
                return [read_envelope(item) for item in items]
        time.sleep(min(wait_seconds, self._wait_limit))
        return []

    def _take(self, limit: int, wait_seconds: float) -> list[Taken]:
        if self._may_hold_left_over:
            left_over = self._peek(self._taken, limit)
            if left_over:
                return [read_envelope(item) for item in left_over]
        # From here on until the acknowledgement an error leaves items on the taken list.
        self._may_hold_left_over = True
        items = self._move(limit, room=BATCH_BYTES)
        if not items and wait_seconds > 0:
            wait = min(wait_seconds, self._wait_limit)
            first = self._client.execute_command("BRPOPLPUSH", self._lists[0], self._taken, wait)
            items = [] if first is None else [first, *self._move(limit - 1, room=BATCH_BYTES - len(first))]
        self._may_hold_left_over = bool(items)
        return [read_envelope(item) for item in items]

    def ack(self, taken: list[Taken]) -> None:
        if self._read_in_place:
            self._forget_each(taken, self._read_in_place)
            self._read_in_place, self._may_hold_left_over = "", True
            return
        first, last = (
            hashlib.sha1(one.receipt, usedforsecurity=False).hexdigest() for one in (taken[0], taken[-1])
        )
        try:
            left = self._forget_batch(keys=[self._taken], args=[len(taken), first, last])
        except redis.exceptions.ResponseError:
            left = -1  # a server whose operator forbids scripts
        if left < 0:
            self._may_hold_left_over = self._forget_each(taken, self._taken) > 0
        else:
            self._may_hold_left_over = left > 0

    def _forget_each(self, taken: list[Taken], name: str) -> int:
        """Remove items from a list and return how many stay."""
        # Oldest first, from the end where they are: each removal looks at one item.
        with self._client.pipeline(transaction=False) as pipeline:
            for one in taken:
                pipeline.lrem(name, -1, one.receipt)
            pipeline.llen(name)
            return int(pipeline.execute()[-1])

    def depth(self) -> int:
        with self._client.pipeline(transaction=False) as pipeline:
            for name in (*self._lists, self._taken):
                pipeline.llen(name)
            return sum(pipeline.execute())

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    def _peek(self, name: str, limit: int) -> list[bytes]:
        """Return the oldest items of a list, and leave them there."""
        try:
            return list(self._oldest(keys=[name], args=[limit, BATCH_BYTES]))
        except redis.exceptions.ResponseError:
            return self._in_parts(
                lambda done, number: self._client.lrange(name, -done - number, -done - 1)[::-1],
                *(limit, BATCH_BYTES),
            )

    def _move(self, limit: int, *, room: int) -> list[bytes]:
        """Move up to ``limit`` items and about ``room`` bytes; in the order of priority, as a worker would."""
        if limit <= 0 or room <= 0:
            return []
        try:
            return list(self._move_batch(keys=[self._taken, *self._lists], args=[limit, room]))
        except redis.exceptions.ResponseError:
            return self._in_parts(lambda _, number: self._move_in_pipeline(number), limit, room)

    def _in_parts(self, read: Callable[[int, int], list[bytes]], limit: int, room: int) -> list[bytes]:
        """Return what ``read(so many are here, how many)`` gives, up to ``limit`` items and about ``room`` bytes.

        Fewer than ``limit`` only if no more wait, or for their size: whoever gets fewer takes it that he has all.
        """
        items: list[bytes] = []
        while room > 0 and (number := min(limit - len(items), _WITHOUT_SCRIPTS)) > 0:
            part = read(len(items), number)
            items += part
            room -= sum(len(item) for item in part)
            if len(part) < number:
                break
        return items

    def _move_in_pipeline(self, limit: int) -> list[bytes]:
        items: list[bytes] = []
        with self._client.pipeline(transaction=False) as pipeline:
            for name in self._lists:
                pipeline.llen(name)
            lengths = pipeline.execute()
        with self._client.pipeline(transaction=False) as pipeline:
            left = limit
            for name, length in zip(self._lists, lengths, strict=True):
                for _ in range(min(length, left)):
                    # RPOPLPUSH is LMOVE RIGHT LEFT for servers before 6.2 too.
                    pipeline.execute_command("RPOPLPUSH", name, self._taken)
                left -= min(length, left)
            if left < limit:
                items = [item for item in pipeline.execute() if item is not None]
        return items


def read_envelope(item: bytes) -> Taken:
    """Read what kombu puts on a Redis list. Total: an item that is none has a ``problem``."""
    try:
        envelope = json.loads(item)
        if not isinstance(envelope, dict):
            raise ValueError(f"an envelope is a JSON object, this is {type(envelope).__name__}")
        properties = envelope.get("properties") or {}
        headers = envelope.get("headers") or {}
        body = envelope.get("body")
        if not isinstance(properties, dict) or not isinstance(headers, dict):
            raise ValueError("headers or properties are not an object")
        if not isinstance(body, str):
            raise ValueError("the body is missing or not text")
        if properties.get("body_encoding") == "base64":
            raw = base64.b64decode(body, validate=True)
        else:
            raw = body.encode("utf-8", "surrogatepass")
        return Taken(
            body=raw,
            headers=headers,
            properties=properties,
            content_type=_text(envelope.get("content-type")),
            content_encoding=_text(envelope.get("content-encoding")),
            receipt=item,
        )
    except (ValueError, RecursionError, binascii.Error) as error:
        return Taken(body=item, problem=f"not an envelope of kombu's: {error}", receipt=item)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


class _KombuReader:
    """Consumes through kombu, with acknowledgements, on any transport."""

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection = connection
        self._channel: Any = connection.channel()
        self._queue = self._declared(queue)
        self._arrived: list[Any] = []
        self._arrived_bytes = 0
        self._unacknowledged: list[Taken] = []
        self._consumer: Any = None

    def take(self, limit: int, wait_seconds: float) -> list[Taken]:
        if self._unacknowledged:
            return self._unacknowledged[:limit]
        if self._consumer is None:
            # Without a limit the broker would send all that waits.
            self._channel.basic_qos(0, limit, False)
            self._consumer = Consumer(self._channel, [self._queue], on_message=self._keep, auto_declare=False)
            self._consumer.consume()
        deadline = time.monotonic() + wait_seconds
        # What is not read stays in the socket, and then with the broker.
        while len(self._arrived) < limit and self._arrived_bytes < BATCH_BYTES:
            wait = _GATHER_SECONDS if self._arrived else deadline - time.monotonic()
            try:
                self._connection.drain_events(timeout=max(wait, _GATHER_SECONDS))
            except TimeoutError:
                if self._arrived or time.monotonic() >= deadline:
                    break
        self._unacknowledged = [_taken(message) for message in self._arrived[:limit]]
        del self._arrived[:limit]
        self._arrived_bytes = sum(len(message.body) for message in self._arrived)
        return list(self._unacknowledged)

    def _keep(self, message: Any) -> None:
        self._arrived.append(message)
        self._arrived_bytes += len(message.body)

    def ack(self, taken: list[Taken]) -> None:
        for one in taken:
            one.receipt.ack()
        receipts = {id(one.receipt) for one in taken}
        self._unacknowledged = [one for one in self._unacknowledged if id(one.receipt) not in receipts]

    def depth(self) -> int:
        declared = self._queue.queue_declare(passive=True, channel=self._channel)
        return int(declared.message_count) + len(self._arrived) + len(self._unacknowledged)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.cancel()
        self._channel.close()

    def _declared(self, name: str) -> Any:
        queue = Queue(name, exchange=Exchange(""), routing_key=name, durable=True)
        try:
            # One that exists is used as it is: an operator may have given it arguments of its own.
            queue(self._channel).queue_declare(passive=True)
        except self._connection.channel_errors:
            self._channel = self._connection.channel()
            queue(self._channel).declare()
        return queue(self._channel)


def _taken(message: Any) -> Taken:
    body = message.body
    return Taken(
        body=bytes(body)
        if isinstance(body, (bytes, memoryview))
        else str(body).encode("utf-8", "surrogatepass"),
        headers=dict(message.headers or {}),
        properties={
            **(message.properties or {}),
            "delivery_info": {k: v for k, v in (message.delivery_info or {}).items() if k != "consumer_tag"},
        },
        content_type=_text(message.content_type),
        content_encoding=_text(message.content_encoding),
        receipt=message,
    )
