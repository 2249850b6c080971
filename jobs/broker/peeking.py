"""Reads what lies on a queue's lists on Redis, and leaves it there. AMQP shows a message only by delivering it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import redis
from kombu import Connection

from jobs.broker.inbox import Taken, read_envelope
from jobs.broker.lifting import decompressed
from jobs.broker.outages import outages, translated
from jobs.broker.publish import open_channel
from jobs.broker.queues import is_redis
from jobs.broker.redis_queues import RedisKeys

# A message that is larger is counted and not fetched, and so is what would exceed the whole.
MESSAGE_BYTES = 1_000_000
# And one whose body comes to more is not unpacked.
UNPACKED_BYTES = 4_000_000
PEEK_BYTES = 8_000_000

# The oldest items of the lists, in their order; of one that is too large, its size in place of it.
_PEEK = """
local items, size = {}, 0
for list = 1, #KEYS do
    local number = 1
    while #items < tonumber(ARGV[1]) do
        local item = redis.call('LINDEX', KEYS[list], -number)
        if not item then break end
        number = number + 1
        if #item > tonumber(ARGV[2]) or size + #item > tonumber(ARGV[3]) then
            items[#items + 1] = #item
        else
            size = size + #item
            items[#items + 1] = item
        end
    end
end
return items
"""


@dataclass(frozen=True, slots=True)
class Found:
    """The oldest messages, in the order in which a worker takes them."""

    total: int
    messages: list[Taken]
    left_out: int


def waiting(connection: Connection, queue: str, *, limit: int) -> Found | None:
    """Return up to ``limit`` messages that wait; None where the broker cannot show them.

    Raises:
        BrokerUnavailable: when the broker does not answer.
    """
    if not is_redis(connection):
        return None

    def close() -> None:
        with contextlib.suppress(*outages(connection)):
            connection.collect()

    with translated(connection, f"looking into the queue {queue}", close=close):
        open_channel(connection)
        keys = RedisKeys(connection)
        lists = [name for name in keys.lists(queue) if keys.client.type(name) == b"list"]
        if not lists:
            return Found(0, [], 0)
        total = sum(keys.client.llen(name) for name in lists)
        try:
            items = keys.client.eval(_PEEK, len(lists), *lists, limit, MESSAGE_BYTES, PEEK_BYTES)
        except redis.exceptions.ResponseError:
            # Where scripts are forbidden; few at a time, whose sizes are not known before.
            items = [
                item for name in lists for item in reversed(keys.client.lrange(name, -min(limit, 20), -1))
            ][:limit]
    return Found(
        total=total,
        messages=[
            decompressed(read_envelope(item), most=UNPACKED_BYTES)
            for item in items
            if isinstance(item, bytes)
        ],
        left_out=sum(not isinstance(item, bytes) for item in items),
    )
