"""Takes what waits out of a queue, so that it is archived before it is gone.

On Redis the lists are renamed at once: no worker gets their messages any more, what comes later makes new lists,
and what a crash leaves is found again under the name. Elsewhere messages stay unacknowledged until they are
stored, so a crash puts them back.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import lzma
import time
import zlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

import redis
from kombu import Connection, compression

from jobs.agent.wire import PUBLISHED_AT_HEADER
from jobs.broker.inbox import BATCH_BYTES, Taken, read_envelope
from jobs.broker.outages import outages, translated
from jobs.broker.publish import open_channel
from jobs.broker.queues import is_missing, is_redis
from jobs.broker.redis_queues import RedisKeys

# Items that are put back in one transaction.
_PUT_BACK = 500
# What a body may come to that is archived.
MOST_UNPACKED_BYTES = 128_000_000
# Names of kombu's compressions, and what unpacks them within a limit.
_OPENERS: dict[str, Any] = {
    **dict.fromkeys(("application/x-gzip", "gzip", "zlib"), zlib.decompressobj),
    **dict.fromkeys(("application/x-bz2", "bzip2", "bzip"), bz2.BZ2Decompressor),
    **dict.fromkeys(("application/x-lzma", "lzma", "xz"), lzma.LZMADecompressor),
}
# Items that are looked at in one go for when they were published.
_LOOKED_AT = 50


class _Driver(Protocol):
    def lift(self, limits: Sequence[int]) -> int: ...
    def take(self, limit: int) -> list[Taken]: ...
    def put_back(self, taken: Sequence[Taken]) -> None: ...
    def forget(self, taken: Sequence[Taken]) -> bool: ...
    def give_back(self) -> None: ...
    def close(self) -> None: ...


class Lifted:
    """The messages of one purge, under its name. Every method raises ``BrokerUnavailable``; trying again is safe."""

    def __init__(self, connection: Connection, *, queue: str, name: str, until: datetime) -> None:
        self._connection = connection
        self._queue, self._name, self._until = queue, name, until
        self._driver: _Driver | None = None

    def lift(self, limits: Sequence[int]) -> int:
        """Take the oldest messages out of the queue; return how many wait to be taken now.

        ``limits`` say how many of each of its lists, as ``Measured.sizes``. What says that it was published after
        ``until`` stays. Calling it again lifts nothing more. Elsewhere than on Redis it only counts.
        """
        with self._translated():
            return self._connected().lift(limits)

    def take(self, limit: int) -> list[Taken]:
        """Return the oldest of the messages; they stay until they are forgotten. Empty when there are none."""
        with self._translated():
            return self._connected().take(limit)

    @property
    def is_apart(self) -> bool:
        """Say whether what was lifted lies apart from the queue, so that all there is belongs to the purge."""
        return is_redis(self._connection)

    def put_back(self, taken: Sequence[Taken]) -> None:
        """Put messages back that were taken and are not wanted."""
        with self._translated():
            self._connected().put_back(taken)

    def forget(self, taken: Sequence[Taken]) -> bool:
        """Remove messages that are stored; False when somebody else has removed some, and nothing was done."""
        with self._translated():
            return self._connected().forget(taken)

    def give_back(self) -> None:
        """Put all that was lifted and not forgotten on its queue again, as the oldest there."""
        with self._translated():
            self._connected().give_back()

    def close(self) -> None:
        """Let go of the connection; what was not forgotten is kept under the name, or on its queue again."""
        driver, self._driver = self._driver, None
        with contextlib.suppress(*outages(self._connection)):
            if driver is not None:
                driver.close()
            self._connection.release()

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(self._connection, f"purging the queue {self._queue}", close=self.close)

    def _connected(self) -> _Driver:
        if self._driver is None:
            open_channel(self._connection)
            if is_redis(self._connection):
                self._driver = _RedisLists(self._connection, self._queue, self._name, self._until)
            else:
                self._driver = _Unacknowledged(self._connection, self._queue, self._until)
        return self._driver


class _RedisLists:
    def __init__(self, connection: Connection, queue: str, name: str, until: datetime) -> None:
        keys = RedisKeys(connection)
        self._until = until.timestamp()
        self._client = keys.client
        self._sources = keys.lists(queue)
        self._targets = [f"{keys.prefix}{name}.{number}" for number in range(len(self._sources))]
        self._seen: tuple[str, int] = ("", 0)

    def lift(self, limits: Sequence[int]) -> int:
        for source, target, limit in zip(self._sources, self._targets, limits, strict=False):
            # Somebody's key that is no list is left to him.
            if limit and self._client.type(source) == b"list" and not self._client.exists(target):
                try:
                    self._client.renamenx(source, target)
                except redis.exceptions.ResponseError as error:
                    # Workers were quicker.
                    if "no such key" not in str(error):
                        raise
            # What came after the confirmation, as far as numbers and stamps tell.
            self._put_back(source, target, limit)
            while number := self._later(target):
                self._put_back_newest(source, target, number)
        return self._left()

    def _later(self, target: str) -> int:
        """Count messages at the newest end that were published after the confirmation, _LOOKED_AT at most."""
        number = 0
        for item in self._client.lrange(target, 0, _LOOKED_AT - 1):
            if not _is_later(read_envelope(item), self._until):
                break
            number += 1
        return number

    def _put_back(self, source: str, target: str, limit: int) -> None:
        """Put the newest back until ``limit`` are left."""
        while (excess := self._client.llen(target) - limit) > 0:
            self._put_back_newest(source, target, min(excess, _PUT_BACK))

    def _put_back_newest(self, source: str, target: str, number: int) -> None:
        """Put messages on their list again, where they are the oldest now; nothing when somebody was quicker."""
        with self._client.pipeline(transaction=True) as pipeline, contextlib.suppress(redis.WatchError):
            pipeline.watch(target)
            items = pipeline.lrange(target, 0, number - 1)
            if items:
                pipeline.multi()
                pipeline.rpush(source, *items)
                pipeline.ltrim(target, len(items), -1)
                pipeline.execute()

    def give_back(self) -> None:
        for source, target in zip(self._sources, self._targets, strict=True):
            self._put_back(source, target, 0)

    def _left(self) -> int:
        with self._client.pipeline(transaction=False) as pipeline:
            for target in self._targets:
                pipeline.llen(target)
            return sum(pipeline.execute())

    def take(self, limit: int) -> list[Taken]:
        for target in self._targets:
            size = self._client.llen(target)
            if size:
                self._seen = (target, size)
                return self._unpacked(self._oldest(target, limit))
        return []

    def _unpacked(self, items: Sequence[bytes]) -> list[Taken]:
        """Return the messages up to BATCH_BYTES as they are unpacked, one at least."""
        taken: list[Taken] = []
        size = 0
        for item in items:
            if size > BATCH_BYTES:
                break
            taken.append(decompressed(read_envelope(item)))
            size += len(taken[-1].body)
        return taken

    def _oldest(self, target: str, limit: int) -> list[bytes]:
        """Return the oldest items within BATCH_BYTES, one at least."""
        items: list[bytes] = []
        size = 0
        # In small steps: the size of an item is known only once it is here.
        step = 50
        while len(items) < limit:
            chunk = self._client.lrange(target, -len(items) - min(step, limit - len(items)), -len(items) - 1)
            for item in reversed(chunk):
                if items and size + len(item) > BATCH_BYTES:
                    return items
                size += len(item)
                items.append(item)
            if len(chunk) < step:
                break
        return items

    def put_back(self, taken: Sequence[Taken]) -> None:
        """Do nothing: they were not moved."""

    def forget(self, taken: Sequence[Taken]) -> bool:
        target, size = self._seen
        with self._client.pipeline(transaction=True) as pipeline:
            try:
                pipeline.watch(target)
                # Nobody adds to it: the same length is the same list.
                if pipeline.llen(target) != size:
                    return False
                pipeline.multi()
                pipeline.ltrim(target, 0, -len(taken) - 1)
                pipeline.execute()
            except redis.WatchError:
                return False
        return True

    def close(self) -> None:
        self._client.connection_pool.disconnect()


class _Unacknowledged:
    def __init__(self, connection: Connection, queue: str, until: datetime) -> None:
        self._connection: Any = connection
        self._queue, self._until = queue, until.timestamp()
        self._channel: Any = connection.channel()
        self._is_at_end = False

    def lift(self, limits: Sequence[int]) -> int:
        try:
            declared = self._channel.queue_declare(self._queue, passive=True)
        except self._connection.channel_errors as error:
            if not is_missing(error):
                raise
            # Its queue was deleted, and the broker has closed the channel over the question.
            self._channel = self._connection.channel()
            return 0
        return min(sum(limits), int(declared.message_count))

    def take(self, limit: int) -> list[Taken]:
        taken: list[Taken] = []
        size = 0
        while len(taken) < limit and size < BATCH_BYTES and not self._is_at_end:
            got = self._channel.basic_get(self._queue, no_ack=False)
            if got is None:
                self._is_at_end = True
                break
            one = taken_of(_message(self._channel, got))
            if _is_later(one, self._until):
                one.receipt.reject(requeue=True)
                self._is_at_end = True
                break
            size += len(one.body)
            taken.append(one)
        return taken

    def put_back(self, taken: Sequence[Taken]) -> None:
        for one in reversed(taken):
            one.receipt.reject(requeue=True)

    def forget(self, taken: Sequence[Taken]) -> bool:
        for one in taken:
            one.receipt.ack()
        return True

    def give_back(self) -> None:
        """Do nothing: closing the channel does."""

    def close(self) -> None:
        self._channel.close()


def _is_later(taken: Taken, until: float) -> bool:
    """Say whether a message came after the confirmation, by its stamp; one that lies ahead says nothing."""
    published_at = taken.headers.get(PUBLISHED_AT_HEADER)
    return isinstance(published_at, (int, float)) and until < published_at <= time.time()


def decompressed(taken: Taken, *, most: int = MOST_UNPACKED_BYTES) -> Taken:
    """Return a message with its body as a worker sees it; one that cannot be decompressed as it is.

    One that comes to more than ``most`` bytes has a ``problem``: a kilobyte may come to a gigabyte.
    """
    kind = taken.headers.get("compression")
    if not isinstance(kind, str):
        return taken
    opener = _OPENERS.get(kind)
    try:
        # What else is registered with kombu has no limit to ask for.
        body = (
            compression.decompress(taken.body, kind) if opener is None else _unpack(opener, taken.body, most)
        )
    except Exception:  # noqa: BLE001 - each compression raises its own; the bytes are kept, and the worker says why
        return taken
    if len(body) > most:
        return dataclasses.replace(taken, problem=f"its body unpacks to more than {most // 1_000_000} MB")
    return dataclasses.replace(taken, body=body)


def _unpack(opener: Any, packed: bytes, most: int) -> bytes:
    """Return what kombu makes of packed bytes, cut off once it is more than ``most``."""
    unpacker = opener()
    found = bytes(unpacker.decompress(packed, most + 1))
    # bz2 and lzma take streams that follow each other; what follows and is none is left out.
    while unpacker.eof and unpacker.unused_data and opener is not zlib.decompressobj and len(found) <= most:
        rest, unpacker = unpacker.unused_data, opener()
        try:
            found += unpacker.decompress(rest, most + 1 - len(found))
        except (OSError, lzma.LZMAError):
            return found
    if len(found) <= most and not unpacker.eof:
        raise ValueError("the stream is cut off")
    return found


def taken_of(message: Any) -> Taken:
    """Return kombu's message as it is archived; its receipt acknowledges it."""
    body = message.body
    return Taken(
        body=bytes(body)
        if isinstance(body, (bytes, bytearray, memoryview))
        else str(body).encode("utf-8", "surrogatepass"),
        headers=dict(message.headers or {}),
        properties={
            **{name: value for name, value in _pairs(message.properties) if name != "application_headers"},
            "delivery_info": {
                name: value for name, value in _pairs(message.delivery_info) if name != "consumer_tag"
            },
        },
        content_type=message.content_type if isinstance(message.content_type, str) else "",
        content_encoding=message.content_encoding if isinstance(message.content_encoding, str) else "",
        receipt=message,
    )


def _message(channel: Any, got: Any) -> Any:
    """Return what basic_get gave as kombu's message: amqp's channel gives its own."""
    convert = getattr(channel, "message_to_python", None)
    return got if convert is None else convert(got)


def _pairs(values: Any) -> Iterator[tuple[str, Any]]:
    yield from (values or {}).items()
