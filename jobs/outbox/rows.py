"""Outbox rows → the database, and what is in a row → a message. Without model instances: a request waits for it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db import connections
from kombu.transport.native_delayed_delivery import calculate_routing_key
from kombu.utils.json import loads as kombu_loads

from jobs.agent.wire import PUBLISHED_AT_HEADER
from jobs.broker.declarations import entities
from jobs.broker.outgoing import JSONText, Outgoing
from jobs.core.words import OutboxState
from jobs.models import OutboxMessage

if TYPE_CHECKING:
    from jobs.outbox.relay import Row

TABLE = OutboxMessage._meta.db_table
COMMIT, RELAY = "commit", "relay"
# The exchange by which Celery lets RabbitMQ wait for an ETA on quorum queues: the delay is in the routing key.
DELAYED_EXCHANGE = "celery_delayed_27"

_COLUMNS = (
    *("uuid", "state", "created_at", "available_at", "eta", "expires_at", "idempotency_key", "attempts"),
    *("last_error", "declare", "claim", "published_at", "published_by", "task", "task_id", "root_id"),
    *("parent_id", "queue", "exchange", "routing_key", "priority", "body", "content_type"),
    *("content_encoding", "headers", "properties"),
)
_NAMES = ", ".join(f'"{name}"' for name in _COLUMNS)
# Rows in one INSERT: SQLite takes 32,766 values.
INSERT_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class NewRow:
    """A message on its way into the table; headers and properties are text, see ``outgoing``."""

    id: uuid.UUID
    created_at: datetime
    eta: datetime | None
    # When a row that is held for its ETA is sent; None when it leaves with its transaction.
    held_until: datetime | None
    expires_at: datetime | None
    idempotency_key: str
    declare: str
    task: str
    task_id: str
    root_id: str
    parent_id: str
    queue: str
    exchange: str
    routing_key: str
    priority: int | None
    body: bytes
    content_type: str
    content_encoding: str
    headers: str
    properties: str


def outgoing(row: NewRow | Row, *, now: datetime) -> Outgoing:
    """Make the message of a row: published now, and dropped by RabbitMQ as late as it was meant to be."""
    properties, routing_key = row.properties, row.routing_key
    headers = f'{row.headers[:-1]}, "{PUBLISHED_AT_HEADER}": {now.timestamp()!r}}}'
    if row.expires_at is not None:
        milliseconds = max(0, int((row.expires_at - now) / timedelta(milliseconds=1)))
        properties = f'{properties[:-1]}, "expiration": "{milliseconds}"}}'
    if row.exchange == DELAYED_EXCHANGE and row.eta is not None:
        routing_key = calculate_routing_key(max(1, int((row.eta - now).total_seconds())), routing_key)
    is_plain = '"__type__"' not in headers and '"__type__"' not in properties
    return Outgoing(
        body=row.body,
        content_type=row.content_type,
        content_encoding=row.content_encoding,
        # What kombu's JSON has a form of its own for, a date say, is that value again on any transport.
        headers=JSONText(headers) if is_plain else kombu_loads(headers),
        properties=JSONText(properties) if is_plain else kombu_loads(properties),
        queue=row.queue,
        priority=row.priority,
        exchange=row.exchange,
        routing_key=routing_key,
        declare=entities(row.declare),
    )


def insert(
    using: str,
    rows: Sequence[NewRow],
    *,
    available_at: datetime,
    claim: uuid.UUID | None,
) -> None:
    """Write rows. With a claim their transaction sends them itself until ``available_at``."""
    connection = connections[using]
    moment = connection.ops.adapt_datetimefield_value
    native = connection.features.has_native_uuid_field

    def known(value: uuid.UUID | None) -> Any:
        return value if native or value is None else value.hex

    claimed, by = known(claim), COMMIT if claim is not None else ""
    due = moment(available_at)
    pending = OutboxState.PENDING.value
    marks = f"({', '.join(['%s'] * len(_COLUMNS))})"
    with connection.cursor() as cursor:
        for start in range(0, len(rows), INSERT_ROWS):
            chunk = rows[start : start + INSERT_ROWS]
            values: list[Any] = []
            for row in chunk:
                values += (
                    *(known(row.id), pending, moment(row.created_at)),
                    due if row.held_until is None else moment(row.held_until),
                    *(moment(row.eta), moment(row.expires_at), row.idempotency_key, 0, "", row.declare),
                    claimed if row.held_until is None else None,
                    *(None, by if row.held_until is None else ""),
                    *(row.task, row.task_id, row.root_id, row.parent_id, row.queue, row.exchange),
                    *(row.routing_key, row.priority, row.body, row.content_type, row.content_encoding),
                    *(row.headers, row.properties),
                )
            cursor.execute(
                f'INSERT INTO "{TABLE}" ({_NAMES}) VALUES {", ".join([marks] * len(chunk))}',  # noqa: S608 - ours
                values,
            )


def mark_published(using: str, ids: Sequence[int] | Sequence[uuid.UUID], *, by: str, now: datetime) -> int:
    """Move rows pending → published, by their primary keys or their ids; return how many that were."""
    if not ids:
        return 0
    connection = connections[using]
    wanted: list[Any] = list(ids)
    column = "id"
    if isinstance(wanted[0], uuid.UUID):
        column = "uuid"
        if not connection.features.has_native_uuid_field:
            wanted = [each.hex for each in wanted]
    with connection.cursor() as cursor:
        cursor.execute(
            f'UPDATE "{TABLE}" SET state = %s, published_at = %s, published_by = %s'  # noqa: S608 - our names
            f" WHERE {column} IN ({', '.join(['%s'] * len(wanted))}) AND state = %s",
            [
                OutboxState.PUBLISHED.value,
                connection.ops.adapt_datetimefield_value(now),
                by,
                *wanted,
                OutboxState.PENDING.value,
            ],
        )
        return int(cursor.rowcount)


def unclaim(using: str, ids: Iterable[uuid.UUID], *, now: datetime) -> None:
    """Leave rows to the relay, at once."""
    OutboxMessage.objects.using(using).filter(uuid__in=list(ids), state=OutboxState.PENDING).update(
        claim=None, published_by="", available_at=now
    )


def batch_key(claim: uuid.UUID) -> str:
    """Return the name under which a broker remembers that the rows with this claim were sent."""
    return f"jobs.sent.outbox.{claim.hex}"


def as_utc(moment: datetime) -> datetime:
    """Return an aware time in UTC; one without a zone is taken for UTC, which is Celery's default."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
