"""Queues as kombu keeps them on Redis: a list for each step of priority, and a hash of what was delivered."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import redis
from kombu import Connection

from jobs.agent.wire import DEAD_QUEUE, PUBLISHED_AT_HEADER, RUNS_QUEUE
from jobs.broker.inbox import read_envelope
from jobs.broker.queues import Measured

# More than this are not looked at one by one: of which queues they are is then not known. Their keys alone
# would be 2 MB each 5 s.
MOST_UNACKNOWLEDGED = 50_000
# Keys that one call looks at for queues that nobody told of: 20 ms of Redis.
SCANNED_KEYS = 20_000
_CHUNK = 500
# What a moment of Python's takes at most.
_YEAR_9999 = 253_402_300_799.0
# A worker that has a message has told so by then.
LONG_AGO_SECONDS = 60.0
_BINDINGS_SECONDS = 60.0
_UNREADABLE = (
    "Its oldest item is no message: it ends the worker that takes it. Pause the queue, look at the item"
    " and purge it."
)
_NO_LIST = "Its key on Redis is no list."

# Of an item no more than this is looked at from either end: kombu writes headers and properties after the body,
# others may write them before it. All of one of 50 MB took 0.8 s of Redis's time, and this 0.1 s.
_SEEN_BYTES = 32_000
# Of each list its length, and of its oldest item when it was published, when it is due, and whether it looks
# like no message. Only those few bytes travel, whatever the item's size.
_LISTS = """
local found = {}
local seen = tonumber(ARGV[1])
for number, key in ipairs(KEYS) do
    local size = redis.pcall('LLEN', key)
    local since, eta, fault = '', '', 0
    if type(size) == 'table' then
        size = -1
    elseif size > 0 then
        local item = redis.call('LINDEX', key, -1)
        local is_whole = #item <= 2 * seen
        if not is_whole then
            item = string.sub(item, 1, seen) .. '\\n' .. string.sub(item, -seen)
        end
        since = string.match(item, '"jobs%-published%-at": *([%d%.eE+-]+)') or ''
        eta = string.match(item, '"eta": *"([^"]+)"') or ''
        local names_properties = not is_whole or string.find(item, '"properties"', 1, true)
        if not (string.find(item, '^%s*{') and names_properties) then
            fault = 1
        end
    end
    found[#found + 1] = size
    found[#found + 1] = since
    found[#found + 1] = eta
    found[#found + 1] = fault
end
return found
"""

_END_BYTES = 4_000
# The ends of the entries of delivered messages, which name exchange and routing key.
_ENDS = """
local ends = {}
for number = 2, #ARGV do
    ends[number - 1] = string.sub(redis.call('HGET', KEYS[1], ARGV[number]) or '', -tonumber(ARGV[1]))
end
return ends
"""
_ROUTE = re.compile(r'("(?:[^"\\]|\\.)*"|null), *("(?:[^"\\]|\\.)*"|null)\]\s*$')


class RedisKeys:
    """Where a channel of kombu's keeps its queues; and a client that leaves keys as they are."""

    def __init__(self, connection: Connection) -> None:
        channel: Any = connection.default_channel
        self._channel = channel
        self.client: Any = redis.Redis(connection_pool=channel.pool)
        self.prefix: str = channel.global_keyprefix
        self.unacked = f"{self.prefix}{channel.unacked_key}"
        self.unacked_times = f"{self.prefix}{channel.unacked_index_key}"
        self.visibility_seconds = float(channel.visibility_timeout)
        self.separator: str = channel.sep
        self._bindings: str = channel.keyprefix_queue

    def lists(self, queue: str) -> list[str]:
        """Return the keys of a queue's lists, in the order in which a worker takes from them."""
        names = (self._channel._q_for_pri(queue, step) for step in self._channel.priority_steps)
        return [f"{self.prefix}{name}" for name in dict.fromkeys(names)]

    def bindings(self, exchange: str) -> str:
        """Return the key of the set that says which queues an exchange has."""
        return f"{self.prefix}{self._bindings % (exchange,)}"

    def run(self, script: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run a script; None on a server whose operator forbids them."""
        try:
            return self.client.eval(script, len(keys), *keys, *args)
        except redis.exceptions.ResponseError:
            return None


class RedisQueues:
    """Counts queues over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._keys = RedisKeys(connection)
        # The queue of each delivered message that was seen at the last look, by its tag.
        self._queue_of_tag: dict[bytes, str] = {}
        self._routes: dict[tuple[str, str], str] = {}
        self._routes_since = -math.inf
        self._cursor = 0

    def measure(self, queues: Collection[str]) -> dict[str, Measured]:
        """Count queues: two round trips, and one for each 500 messages delivered since the last look."""
        lists = {queue: self._lists(queue) for queue in queues}
        facts = self._facts([name for names in lists.values() for name in names])
        delivered = self._delivered()
        long_ago = time.time() - LONG_AGO_SECONDS
        measured = {}
        for queue, names in lists.items():
            found = [facts[name] for name in names]
            sizes = [size for size, _, _ in found]
            old = [at for at in (delivered or {}).get(queue, ()) if at < long_ago]
            measured[queue] = Measured(
                ready=sum(size for size in sizes if size > 0) if max(sizes) >= 0 else None,
                unacknowledged=None if delivered is None else len(delivered.get(queue, ())),
                waiting_since=min((since for _, since, _ in found if since is not None), default=None),
                trouble=next((trouble for _, _, trouble in found if trouble), ""),
                delivered_long_ago=len(old),
                returns_at=min(max(min(old), 0.0) + self._keys.visibility_seconds, _YEAR_9999)
                if old
                else None,
                sizes=tuple(max(size, 0) for size in sizes),
            )
        return measured

    def delayed(self) -> int:
        """Return 0: Redis itself holds nothing back."""
        return 0

    def declared_waiting(self) -> set[str]:
        """Look through some of the keys for bindings, which name the queues that were declared."""
        names: set[str] = set()
        pattern = self._keys.bindings("*")
        for _ in range(SCANNED_KEYS // 1_000):
            self._cursor, keys = self._keys.client.scan(self._cursor, match=pattern, count=1_000)
            for key in keys:
                names.update(queue for _, _, queue in self._bound(key))
            if not self._cursor:
                break
        names = {
            name for name in names if not name.endswith((".pidbox", ".reply")) and "celeryev" not in name
        }
        facts = self._facts([name for queue in names for name in self._keys.lists(queue)])
        return {queue for queue in names if any(facts[name][0] > 0 for name in self._keys.lists(queue))}

    def close(self) -> None:
        """Close the connections of the pool."""
        self._keys.client.connection_pool.disconnect()

    def _lists(self, queue: str) -> list[str]:
        names = self._keys.lists(queue)
        if queue in (DEAD_QUEUE, RUNS_QUEUE):
            # What the collector has taken and not acknowledged.
            names.append(f"{self._keys.prefix}{queue}.taken")
        return names

    def _facts(self, names: Sequence[str]) -> dict[str, tuple[int, float | None, str]]:
        """Return of each list its length (-1 of what is no list), since when its oldest waits, its trouble."""
        if not names:
            return {}
        answer = self._keys.run(_LISTS, names, [_SEEN_BYTES])
        if answer is None:
            return self._facts_without_scripts(names)
        found = {}
        for name, (size, since, eta, fault) in zip(names, _fours(answer), strict=True):
            trouble = _NO_LIST if size < 0 else _UNREADABLE if fault else ""
            found[name] = (size, waiting_since(_text(since), _text(eta)), trouble)
        return found

    def _facts_without_scripts(self, names: Sequence[str]) -> dict[str, tuple[int, float | None, str]]:
        with self._keys.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.llen(name)
                pipeline.lindex(name, -1)
            answers = pipeline.execute(raise_on_error=False)
        found: dict[str, tuple[int, float | None, str]] = {}
        for name, size, item in zip(names, answers[::2], answers[1::2], strict=True):
            if isinstance(size, redis.exceptions.ResponseError):
                found[name] = (-1, None, _NO_LIST)
            elif not isinstance(item, bytes):
                found[name] = (int(size), None, "")
            else:
                taken = read_envelope(item)
                since = waiting_since(taken.headers.get(PUBLISHED_AT_HEADER), taken.headers.get("eta"))
                has_fault = bool(taken.problem) or not taken.properties
                found[name] = (int(size), since, _UNREADABLE if has_fault else "")
        return found

    def _delivered(self) -> dict[str, list[float]] | None:
        """Return when each delivered message was delivered, by queue.

        None when there are too many to look at, and when somebody's keys of those names are of another kind.
        """
        client, key = self._keys.client, self._keys.unacked
        if {client.type(key), client.type(self._keys.unacked_times)} - {b"hash", b"zset", b"none"}:
            return None
        if client.hlen(key) > MOST_UNACKNOWLEDGED:
            self._queue_of_tag = {}
            return None
        times = client.zrange(self._keys.unacked_times, 0, MOST_UNACKNOWLEDGED, withscores=True)
        known = {tag: self._queue_of_tag[tag] for tag, _ in times if tag in self._queue_of_tag}
        new = [tag for tag, _ in times if tag not in known]
        if time.monotonic() - self._routes_since > _BINDINGS_SECONDS:
            self._routes, self._routes_since = {}, time.monotonic()
        for at in range(0, len(new), _CHUNK):
            chunk = new[at : at + _CHUNK]
            ends = self._keys.run(_ENDS, [key], [_END_BYTES, *chunk])
            if ends is None:
                ends = [(item or b"")[-_END_BYTES:] for item in client.hmget(key, chunk)]
            for tag, end in zip(chunk, ends, strict=True):
                # One that was acknowledged meanwhile has no entry any more.
                if end:
                    known[tag] = self._queue_of(end)
        self._queue_of_tag = known
        delivered: dict[str, list[float]] = {}
        for tag, at_seconds in times:
            if tag in known:
                delivered.setdefault(known[tag], []).append(at_seconds)
        return delivered

    def _queue_of(self, end: bytes) -> str:
        # Names are short as a rule, and a search takes a tenth of a millisecond a kilobyte.
        found = _ROUTE.search(end[-200:].decode("utf-8", "replace")) or _ROUTE.search(
            end.decode("utf-8", "replace")
        )
        if found is None:
            return ""
        try:
            exchange, routing_key = (json.loads(part) or "" for part in found.groups())
            # A lone surrogate is JSON, and the name of no key.
            f"{exchange}{routing_key}".encode()
        except ValueError:
            return ""  # written by somebody else than kombu
        route = (exchange, routing_key)
        if route not in self._routes:
            self._routes[route] = self._routed(exchange, routing_key)
        return self._routes[route]

    def _routed(self, exchange: str, routing_key: str) -> str:
        """Return the queue that a message came from, by the bindings; the first of several."""
        if not exchange:
            return routing_key
        bound = sorted(self._bound(self._keys.bindings(exchange)))
        for key, pattern, queue in bound:
            if key == routing_key or (pattern and _matches(pattern, routing_key)):
                return queue
        queues = {queue for _, _, queue in bound}
        return queues.pop() if len(queues) == 1 else ""

    def _bound(self, key: str | bytes) -> Iterator[tuple[str, str, str]]:
        try:
            members = self._keys.client.smembers(key)
        except redis.exceptions.ResponseError:
            return  # somebody's key of that name that is no set
        for member in members:
            parts = member.decode("utf-8", "replace").split(self._keys.separator)
            if len(parts) == 3:
                yield parts[0], parts[1], parts[2]


def waiting_since(published_at: Any, eta: Any) -> float | None:
    """Return when a message began to wait, by its headers; None when nobody can tell."""
    try:
        since = float(published_at)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(since) or since <= 0:
        return None
    try:
        due = datetime.fromisoformat(eta)
        return max(since, (due if due.tzinfo else due.replace(tzinfo=UTC)).timestamp())
    except (TypeError, ValueError, OverflowError):
        return since


def _matches(pattern: str, routing_key: str) -> bool:
    try:
        return re.match(pattern, routing_key) is not None
    except re.error:
        return False


def _fours(answer: Sequence[Any]) -> Iterator[tuple[Any, Any, Any, Any]]:
    return zip(answer[::4], answer[1::4], answer[2::4], answer[3::4], strict=True)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
