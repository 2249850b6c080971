"""Checks of a Redis that is the broker. Pure: facts in, findings out."""

from __future__ import annotations

from collections.abc import Iterator

from jobs.preflight.facts import Facts, RedisFacts
from jobs.preflight.findings import Area, Finding, Level

# Of maxmemory; beyond, publishes may be refused within the hour.
NEARLY_FULL = 0.9


def check_redis(facts: Facts) -> Iterator[Finding]:
    """Check the server itself."""
    server = facts.redis
    if server is None:
        return
    yield _role(server)
    yield _eviction(server)
    if server.evicted_keys:
        yield _evicted(server)
    if server.maxmemory_bytes and server.used_memory_bytes is not None:
        yield _memory(server.used_memory_bytes, server.maxmemory_bytes)
    yield _append_only(server)
    if server.is_append_only:
        yield _append_fsync(server)


def _role(server: RedisFacts) -> Finding:
    if server.role is None:
        return _unknown("redis role", server.info_refusal, "redis-cli INFO replication")
    if server.role == "master":
        return _ok("redis role", "a primary")
    return Finding(
        Level.ERROR,
        "redis role",
        Area.BROKER,
        f"{server.role}: the broker is a replica.",
        "A replica takes no writes, so nothing can be sent or acknowledged; where it does take them,"
        " the next sync with its primary deletes them.",
        "broker_url: the address of the primary, or sentinel://… with"
        ' broker_transport_options = {"master_name": "…"}',
    )


def _eviction(server: RedisFacts) -> Finding:
    name, policy = "maxmemory-policy", server.maxmemory_policy
    if policy is None:
        return _unknown(name, server.info_refusal, "redis-cli INFO memory | grep maxmemory_policy")
    if policy == "noeviction":
        return _ok(name, "noeviction")
    why = (
        "A Redis that is full then deletes keys without an error. A queue is one key: all its jobs go at once."
        if policy.startswith("allkeys")
        else "A Redis that is full then deletes keys that expire: what counts a job's crashes, holds the fleet's"
        " limits, and keeps a replay from being sent twice."
    )
    return Finding(
        Level.ERROR,
        name,
        Area.BROKER,
        f"{policy}, where noeviction is needed.",
        why,
        "redis-cli CONFIG SET maxmemory-policy noeviction\n"
        "redis.conf: maxmemory-policy noeviction\n"
        "Where it is a cache as well: a Redis of its own for the broker.",
    )


def _evicted(server: RedisFacts) -> Finding:
    return Finding(
        Level.WARNING,
        "evicted keys",
        Area.BROKER,
        f"{server.evicted_keys:,} since Redis started.",
        "Whole queues may have been among them; jobs that were lost so left no trace.",
        "redis.conf: maxmemory-policy noeviction, and a larger maxmemory\n"
        "When that is done: redis-cli CONFIG RESETSTAT",
    )


def _memory(used: int, limit: int) -> Finding:
    if used <= NEARLY_FULL * limit:
        return _ok("memory", f"{used / limit:.0%} of maxmemory is used.")
    return Finding(
        Level.WARNING,
        "memory",
        Area.BROKER,
        f"{used / limit:.0%} of maxmemory, {limit:,} bytes, is used.",
        "When it is full it refuses every write: nothing can be sent, and what ends cannot be recorded.",
        f"redis-cli CONFIG SET maxmemory {limit * 2}\nredis.conf: maxmemory {limit * 2}",
    )


def _append_only(server: RedisFacts) -> Finding:
    name = "append-only file"
    if server.is_append_only is None:
        return _unknown(name, server.info_refusal, "redis-cli INFO persistence | grep aof_enabled")
    if not server.is_append_only:
        return Finding(
            Level.ERROR,
            name,
            Area.BROKER,
            "off",
            "A Redis that crashes or restarts forgets every job since its last snapshot.",
            "redis-cli CONFIG SET appendonly yes\nredis.conf: appendonly yes",
        )
    if server.is_append_failing:
        return Finding(
            Level.ERROR,
            name,
            Area.BROKER,
            "on, but the last write to it failed.",
            "What was sent since is in memory only, and Redis refuses further writes.",
            "Look at the disk of the Redis server: df, and its log.",
        )
    return _ok(name, "on")


def _append_fsync(server: RedisFacts) -> Finding:
    name = "appendfsync"
    if server.append_fsync is None:
        return _unknown(name, server.config_refusal, "redis-cli CONFIG GET appendfsync")
    if server.append_fsync == "no":
        return Finding(
            Level.ERROR,
            name,
            Area.BROKER,
            "no, where everysec or always is needed.",
            "The append-only file reaches the disk when the operating system likes: a machine that goes down"
            " takes up to half a minute of jobs with it.",
            "redis-cli CONFIG SET appendfsync everysec\nredis.conf: appendfsync everysec",
        )
    note = " (a machine that goes down loses a second at most)" if server.append_fsync == "everysec" else ""
    return _ok(name, f"{server.append_fsync}{note}")


def _ok(name: str, found: str) -> Finding:
    return Finding(Level.OK, name, Area.BROKER, found)


def _unknown(name: str, refusal: str, how: str) -> Finding:
    return Finding(
        Level.UNKNOWN,
        name,
        Area.BROKER,
        f"cannot be read: {refusal or 'the server does not tell'}.",
        "Managed services often refuse CONFIG and INFO; their own settings say it.",
        f"To look it up where that is allowed: {how}",
    )
