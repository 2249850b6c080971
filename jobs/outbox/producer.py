"""A producer that Celery publishes with, and that writes a row instead.

``task.apply_async(producer=OutboxProducer())`` goes Celery's whole way, so routing, priority, ETA, expiry,
links, canvas, stamps and signals are Celery's own. Only the last step differs.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.utils import timezone
from kombu import Exchange, Queue
from kombu.exceptions import EncodeError
from kombu.utils.json import dumps as kombu_dumps

from jobs import conf
from jobs.agent.wire import IDEMPOTENCY_HEADER, PUBLICATION_HEADER, PUBLISHED_AT_HEADER
from jobs.broker.declarations import describe, queue_names
from jobs.core.cleaning import clean_name
from jobs.errors import OutboxRefused
from jobs.outbox import content
from jobs.outbox.commit import write
from jobs.outbox.rows import DELAYED_EXCHANGE, NewRow, as_utc

# A job that is held goes out so long before it is due: the worker starts it on time.
HELD_LEAD = timedelta(seconds=5)
# kombu's and Redis's default, when broker_transport_options do not say.
_VISIBILITY_SECONDS = 3600.0
_REDELIVERING = ("redis", "rediss", "sentinel", "sqs", "valkey", "valkeys")
_AMQP = ("amqp", "amqps", "pyamqp", "py-amqp")

_encode = json.JSONEncoder(check_circular=False).encode
_collected: ContextVar[dict[str, list[NewRow]] | None] = ContextVar("jobs_outbox_collected", default=None)


class _Unconnected:
    """What Celery finds where a producer has its connection."""

    recoverable_connection_errors = recoverable_channel_errors = connection_errors = channel_errors = ()

    def _reraise_as_library_errors(self) -> Any:
        return nullcontext()


class OutboxProducer:
    """Writes messages into the outbox of ``using``; they are sent when its transaction has committed.

    It never connects to anything. ``payload_limit_bytes`` refuses a larger body, None refuses none.
    ``idempotency_key`` is kept with the row; without one it is the key in the headers.
    """

    serializer = compression = None
    auto_declare = False
    connection = _Unconnected()

    def __init__(
        self,
        *,
        using: str = "default",
        payload_limit_bytes: int | None = None,
        idempotency_key: str = "",
    ) -> None:
        self.using = using
        self._payload_limit_bytes = payload_limit_bytes
        self._idempotency_key = idempotency_key

    @property
    def channel(self) -> Any:
        """Refuse: there is none."""
        raise OutboxRefused(
            "Cannot declare a reply queue in a transaction: the outbox does not talk to the broker. Use a result"
            " backend other than rpc://, or ignore_result=True."
        )

    def publish(
        self,
        body: Any,
        routing_key: str | None = None,
        delivery_mode: Any = None,
        mandatory: bool = False,
        immediate: bool = False,
        priority: int | None = 0,
        content_type: str | None = None,
        content_encoding: str | None = None,
        serializer: str | None = None,
        headers: Mapping[str, Any] | None = None,
        compression: str | None = None,
        exchange: Any = None,
        retry: bool = False,
        retry_policy: Mapping[str, Any] | None = None,
        declare: Sequence[Any] | None = None,
        expiration: float | None = None,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **properties: Any,
    ) -> None:
        """Write the message as a row. Takes what kombu's ``Producer.publish`` takes.

        How to publish (``retry``, ``timeout``, ``mandatory`` and their like) is the relay's business.

        Raises:
            EncodeError: kombu's, when an argument or a header cannot be serialised.
            PayloadTooLarge: when the body is above the limit.
            OutboxRefused: when a name is not fit to be kept.
        """
        if isinstance(body, Mapping) and body.get("type") == "task-sent" and "task" not in body:
            # Celery's event that a job was sent: it was not, and may never be.
            return
        encoded = content.encode(
            body,
            serializer=serializer,
            compression=compression,
            content_type=content_type,
            content_encoding=content_encoding,
        )
        head = dict(headers or {})
        if encoded.compression is not None:
            head["compression"] = encoded.compression
        # The first protocol of Celery has its ids in the body.
        ids: Mapping[str, Any] = head if "task" in head or not isinstance(body, Mapping) else body
        task = str(ids.get("task") or "")
        content.check_size(len(encoded.body), limit_bytes=self._payload_limit_bytes, task=task)
        head.setdefault(PUBLICATION_HEADER, uuid.uuid4().hex)
        # It is published later, and then says when.
        head.pop(PUBLISHED_AT_HEADER, None)
        now = timezone.now()
        eta = _moment(ids.get("eta"))
        expires_at = _moment(ids.get("expires"))
        if expires_at is None and expiration is not None:
            expires_at = now + timedelta(seconds=expiration)
        exchange_name, mode = _delivery(exchange, delivery_mode)
        routing_key = routing_key or ""
        named = queue_names(declare or ())
        key = head.get(IDEMPOTENCY_HEADER)
        if isinstance(properties.get("reply_to"), Queue):
            properties["reply_to"] = properties["reply_to"].name
        row = NewRow(
            id=uuid.uuid4(),
            created_at=now,
            eta=eta,
            held_until=_held_until(eta, exchange_name, now),
            expires_at=expires_at,
            idempotency_key=clean_name(self._idempotency_key or (key if isinstance(key, str) else "")),
            declare=describe(declare) if declare else "[]",
            task=clean_name(task),
            task_id=clean_name(str(ids.get("id") or "")),
            root_id=clean_name(str(ids.get("root_id") or "")),
            parent_id=clean_name(str(ids.get("parent_id") or "")),
            queue=_fit(
                "queue", routing_key if not exchange_name else named[0] if len(named) == 1 else "", task
            ),
            exchange=_fit("exchange", exchange_name, task),
            routing_key=_fit("routing key", routing_key, task),
            priority=_priority(priority, task),
            body=encoded.body,
            content_type=encoded.content_type,
            content_encoding=encoded.content_encoding,
            headers=_text("header", head, task),
            properties=_text("property", {**properties, "delivery_mode": mode}, task),
        )
        collected = _collected.get()
        if collected is not None and self.using in collected:
            collected[self.using].append(row)
        else:
            write(self.using, [row])


@contextmanager
def collecting(using: str = "default") -> Iterator[None]:
    """Write everything that is published inside to the outbox of ``using`` by one statement at the end.

    When the block raises, nothing of it is written. Works in a transaction and without one.
    """
    collected = _collected.get() or {}
    if using in collected:
        yield
        return
    mine: list[NewRow] = []
    token = _collected.set({**collected, using: mine})
    try:
        yield
    finally:
        _collected.reset(token)
    if mine:
        write(using, mine)


def is_open(using: str = "default") -> bool:
    """Say whether a transaction is open: an atomic block, or autocommit that was switched off.

    It never connects: where a database is away, jobs that need none of it are still sent and retried.
    """
    connection = connections[using]
    if connection.connection is None:
        return connection.in_atomic_block or not connection.settings_dict["AUTOCOMMIT"]
    return connection.in_atomic_block or not connection.autocommit


def must_hold(*, eta: datetime | str | None, countdown: float | None, now: datetime) -> bool:
    """Say whether a job starts so late that it has to wait in the outbox.

    A worker keeps a job that it may not start yet unacknowledged. Redis hands it to another worker after
    the visibility timeout, RabbitMQ after its consumer timeout; from half of it on, a job is held.
    """
    # Celery's order: a countdown replaces an ETA.
    at = now + timedelta(seconds=countdown) if countdown else _moment(eta)
    longest = longest_wait()
    return at is not None and longest is not None and at - now > longest


def _held_until(eta: datetime | None, exchange: str, now: datetime) -> datetime | None:
    # On quorum queues RabbitMQ itself waits.
    if eta is None or exchange == DELAYED_EXCHANGE or not must_hold(eta=eta, countdown=None, now=now):
        return None
    return eta - HELD_LEAD


def longest_wait() -> timedelta | None:
    """Return how long a job may wait in a worker; None on a broker that takes nothing back."""
    current = conf.current()
    scheme = current.broker_url.partition("://")[0].partition("+")[0].lower()
    if scheme in _REDELIVERING:
        seconds = float(current.broker_transport_options.get("visibility_timeout") or _VISIBILITY_SECONDS)
    elif scheme in _AMQP:
        seconds = current.rabbitmq_consumer_timeout_seconds
    else:
        return None
    return timedelta(seconds=seconds / 2)


def _moment(value: Any) -> datetime | None:
    """Read a time that Celery wrote; None when there is none, or none that a worker could read."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return as_utc(value) if isinstance(value, datetime) else None


def _delivery(exchange: Any, delivery_mode: Any) -> tuple[str, int]:
    """Return the exchange's name and the delivery mode, as kombu makes them."""
    name = ""
    if isinstance(exchange, Exchange):
        name, delivery_mode = exchange.name, delivery_mode or exchange.delivery_mode
    elif exchange:
        name = str(exchange)
    modes = {"transient": 1, "persistent": 2}
    return name, int(modes.get(delivery_mode, delivery_mode) or 2)


def _fit(what: str, name: str, task: str) -> str:
    if clean_name(name) != name:
        raise OutboxRefused(
            f"Cannot enqueue {task or 'a message'}: its {what} {name[:80]!r} is longer than 255 characters or has"
            " control characters in it. Use another name; nothing was sent."
        )
    return name


def _priority(priority: Any, task: str) -> int | None:
    if priority is None or (isinstance(priority, int) and abs(priority) < 2**15):
        return priority
    raise OutboxRefused(
        f"Cannot enqueue {task or 'a message'}: its priority is {priority!r}. Give a whole number from 0 to 9."
    )


def _text(what: str, values: Mapping[str, Any], task: str) -> str:
    try:
        return _encode(values)
    except TypeError:
        pass
    try:
        # kombu has forms for dates, UUIDs, decimals and bytes.
        return str(kombu_dumps(values))
    except (TypeError, ValueError) as error:
        raise EncodeError(
            f"Cannot enqueue {task or 'a message'}: a {what} has no form in JSON ({error})."
            " Pass text or numbers; nothing was sent."
        ) from error
