"""Asks the broker, each question bounded in time. What it refuses to tell is not known."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import redis
from kombu import Connection

from jobs.core.cleaning import clean_line, clean_name
from jobs.errors import BrokerUnavailable
from jobs.preflight.facts import FarJob, QueueState, RabbitFacts, RedisFacts
from jobs.preflight.gather_application import broker_words

# Jobs that wait in workers, oldest first, and how large one may be to be looked at.
SAMPLED_JOBS = 100
SAMPLED_BYTES = 65_536
# Keys looked at for queues that no configuration names.
SCANNED_KEYS = 100_000
SCAN_SECONDS = 2.0
# Not the application's: this product's, and Celery's remote control, events and replies.
OWN_QUEUES = ("jobs.", "celeryev", "reply.celery")
OWN_ENDINGS = (".pidbox",)


@contextlib.contextmanager
def opened(app: Any, *, timeout_seconds: float) -> Iterator[Connection]:
    """Connect as the application's workers do, but never wait longer than ``timeout_seconds`` for a reply.

    Raises:
        BrokerUnavailable: when it does not answer; says which broker, and what to do.
    """
    connection = app.connection_for_read(connect_timeout=timeout_seconds, heartbeat=0)
    connection.transport_options = {
        **(connection.transport_options or {}),
        **_bounds(str(connection.transport.driver_type), timeout_seconds),
    }
    errors: Any = (
        *connection.connection_errors,
        *connection.channel_errors,
        redis.exceptions.RedisError,
        OSError,
    )
    try:
        # Once more at once: kombu's connect() would wait in between.
        connection.ensure_connection(
            max_retries=1, interval_start=0, interval_step=0, interval_max=0, reraise_as_library_errors=False
        )
        yield connection
    except errors as error:
        raise BrokerUnavailable(
            f"The broker {broker_words(connection)} does not answer: {_words(error)}. "
            "Start it, or mend its address; nothing was changed."
        ) from error
    finally:
        with contextlib.suppress(*errors):
            connection.release()


def _words(error: BaseException) -> str:
    return clean_line(str(error) or type(error).__name__, limit=300).rstrip(".")


def _bounds(driver: str, seconds: float) -> dict[str, Any]:
    if driver == "redis":
        return {"socket_timeout": seconds, "socket_connect_timeout": seconds}
    if driver == "amqp":
        return {"read_timeout": seconds, "write_timeout": seconds}
    return {}


def redis_facts(connection: Any, *, with_jobs: bool) -> RedisFacts:
    """Ask a Redis about itself; ``with_jobs`` also samples what waits in workers."""
    channel = connection.default_channel
    client = raw_client(channel)
    info, info_refusal = _ask(lambda: client.info())
    config, config_refusal = _ask(lambda: client.config_get("appendfsync"))
    policy = info.get("maxmemory_policy")
    if policy is None:
        policy = _ask(lambda: client.config_get("maxmemory-policy"))[0].get("maxmemory-policy")
    append_only = info.get("aof_enabled")
    if append_only is None:
        append_only = {"yes": 1, "no": 0}.get(
            str(_ask(lambda: client.config_get("appendonly"))[0].get("appendonly"))
        )
    status = info.get("aof_last_write_status")
    return RedisFacts(
        version=str(info.get("redis_version", "")),
        role=info.get("role"),
        maxmemory_policy=policy,
        maxmemory_bytes=info.get("maxmemory"),
        used_memory_bytes=info.get("used_memory"),
        evicted_keys=info.get("evicted_keys"),
        is_append_only=None if append_only is None else bool(append_only),
        append_fsync=config.get("appendfsync"),
        is_append_failing=None if status is None else status != "ok",
        info_refusal=info_refusal,
        config_refusal=config_refusal,
        furthest_job=_furthest_job(client, channel) if with_jobs else None,
    )


def rabbit_facts(connection: Any, *, consumer_timeout_seconds: float) -> RabbitFacts:
    """Read what a RabbitMQ says when one connects."""
    properties = connection.connection.server_properties
    return RabbitFacts(
        version=str(properties.get("version", "")), consumer_timeout_seconds=consumer_timeout_seconds
    )


def redis_queues(connection: Any, declared: list[str]) -> tuple[tuple[QueueState, ...], bool]:
    """Return the declared queues and those that somebody else made, and whether all keys were seen."""
    channel = connection.default_channel
    client, prefix = raw_client(channel), channel.global_keyprefix or ""
    found, is_complete = _bound_queues(client, channel, prefix)
    names = sorted({name for name in (*declared, *found) if not _is_own(name)})
    steps = [channel._q_for_pri(name, step) for name in names for step in channel.priority_steps]
    with client.pipeline(transaction=False) as pipeline:
        for key in steps:
            pipeline.llen(f"{prefix}{key}")
        # A key of another kind under a queue's name counts as none.
        lengths = [value if isinstance(value, int) else 0 for value in pipeline.execute(raise_on_error=False)]
    width = len(channel.priority_steps)
    states = [
        QueueState(clean_name(name), sum(lengths[place * width : (place + 1) * width]))
        for place, name in enumerate(names)
    ]
    # One that is empty and that only the broker remembers is nobody's concern.
    return tuple(state for state in states if state.messages or state.name in set(declared)), is_complete


def rabbit_queues(connection: Any, declared: list[str]) -> tuple[QueueState, ...]:
    """Return the declared queues that exist, with RabbitMQ's own count of consumers."""
    states = []
    for name in declared:
        # A refusal closes the channel.
        channel = connection.channel()
        try:
            answer = channel.queue_declare(name, passive=True)
        except connection.channel_errors:
            continue
        finally:
            with contextlib.suppress(*connection.channel_errors, OSError):
                channel.close()
        states.append(QueueState(name, int(answer.message_count), int(answer.consumer_count)))
    return tuple(states)


def raw_client(channel: Any) -> Any:
    """Return a client without kombu's key prefix, on the channel's own connections."""
    return redis.Redis(connection_pool=channel.client.connection_pool)


def _ask(question: Any) -> tuple[dict[str, Any], str]:
    """Return the answer, or the server's words when it refuses."""
    try:
        answer = question()
    except redis.exceptions.ResponseError as error:
        return {}, clean_line(str(error), limit=200)
    return (answer if isinstance(answer, dict) else {}), ""


def _bound_queues(client: Any, channel: Any, prefix: str) -> tuple[set[str], bool]:
    """Return the queues of kombu's bindings: one made by a mistyped name is bound as well."""
    pattern = prefix + channel.keyprefix_queue % "*"
    deadline, cursor, seen, names = time.monotonic() + SCAN_SECONDS, 0, 0, set()
    separator = channel.sep.encode()
    while True:
        cursor, keys = client.scan(cursor, match=pattern, count=1000)
        seen += 1000
        for key in keys:
            if client.type(key) != b"set":
                continue
            for member in client.sscan_iter(key, count=1000):
                names.add(member.rpartition(separator)[2].decode("utf-8", "replace"))
        if cursor == 0:
            return names, True
        if seen >= SCANNED_KEYS or time.monotonic() > deadline:
            return names, False


def _is_own(name: str) -> bool:
    return name.startswith(OWN_QUEUES) or name.endswith(OWN_ENDINGS)


def _furthest_job(client: Any, channel: Any) -> FarJob | None:
    """Return the sampled job whose time is furthest from when its worker took it."""
    prefix = channel.global_keyprefix or ""
    index, jobs = f"{prefix}{channel.unacked_index_key}", f"{prefix}{channel.unacked_key}"
    try:
        taken = client.zrange(index, 0, SAMPLED_JOBS - 1, withscores=True)
        if not taken:
            return None
        with client.pipeline(transaction=False) as pipeline:
            for tag, _ in taken:
                pipeline.hstrlen(jobs, tag)
            sizes = pipeline.execute()
        small = [(tag, at) for (tag, at), size in zip(taken, sizes, strict=True) if 0 < size <= SAMPLED_BYTES]
        texts = client.hmget(jobs, [tag for tag, _ in small]) if small else []
    except redis.exceptions.ResponseError:
        return None
    far = [
        job
        for (_, at), text in zip(small, texts, strict=True)
        if text and (job := _far_job(text, at)) is not None
    ]
    return max(far, key=lambda job: job.seconds, default=None)


def _far_job(text: bytes, taken_at: float) -> FarJob | None:
    """Read one of kombu's unacknowledged messages. Anybody may write there."""
    try:
        headers = json.loads(text)[0]["headers"]
        eta = datetime.fromisoformat(str(headers["eta"]))
        task = clean_name(str(headers["task"]))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=UTC)
    return FarJob(task, eta.timestamp() - taken_at)
