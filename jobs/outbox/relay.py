"""Publishes what the fast way left behind: a crash, a broker that was away, a job that was not due yet.

A batch is claimed in one transaction, published under the name of its claim, and marked. Rows that still
have a relay's claim after its time belong to a batch that a crash cut off: the same rows are published
again under the same name, which a Redis that has them already answers with nothing.

Rows are chosen by state and time, never by an id that was seen last: ids become visible in the order of
commits, which is another one.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections, transaction
from django.utils import timezone
from kombu import Connection

from jobs import conf
from jobs.broker.publish import PublishResult, open_channel, publish, sent_batches
from jobs.core import backoff
from jobs.core.words import OutboxState, Reason
from jobs.errors import BrokerUnavailable
from jobs.models import OutboxMessage
from jobs.outbox import rows
from jobs.outbox.letters import bury
from jobs.outbox.rows import COMMIT, RELAY, TABLE

logger = logging.getLogger(__name__)

BATCH = 1_000
# Bodies and headers of a batch together, so that large ones do not fill the memory.
BATCH_BYTES = 8_000_000
# How long a claim keeps other relays away: longer than connecting and waiting for confirms can take.
CLAIM = timedelta(seconds=90)

# The waits of a row that the broker refuses, in seconds, with full jitter.
BACKOFF_BASE, BACKOFF_FACTOR, BACKOFF_CAP = 1.0, 4.0, 300.0
ERROR_LENGTH = 2_000

_WAITING = f'"{TABLE}" WHERE state = %s AND available_at <= %s'
_MESSAGE_COLUMNS = (
    *("id", "body", "content_type", "content_encoding", "headers", "properties", "queue", "priority"),
    *("exchange", "routing_key", "declare", "eta", "expires_at", "claim", "published_by", "available_at"),
)


class Row(NamedTuple):
    """A row as it is sent. Headers, properties and declare are text."""

    id: int
    body: bytes
    content_type: str
    content_encoding: str
    headers: str
    properties: str
    queue: str
    priority: int | None
    exchange: str
    routing_key: str
    declare: str
    eta: datetime | None
    expires_at: datetime | None
    claim: uuid.UUID | None
    published_by: str
    available_at: datetime


@dataclass(frozen=True, slots=True)
class Relayed:
    """What a batch did. ``known`` had been sent already, by whoever took them before."""

    sent: int = 0
    known: int = 0
    refused: int = 0
    gave_up: int = 0
    expired: int = 0

    @property
    def total(self) -> int:
        """How many rows it dealt with; 0 when nothing is due."""
        return self.sent + self.known + self.refused + self.gave_up + self.expired


def relay_batch(
    connection: Connection, *, using: str = "default", now: datetime, limit: int = BATCH
) -> Relayed:
    """Publish one batch of what is due in a database. Opens transactions of its own; call it outside of any.

    Raises:
        BrokerUnavailable: when the broker is away. No row has used an attempt, and what was under way goes
            out again under its name.
    """
    waiting = _next(using, now, limit)
    if not waiting:
        return Relayed()
    # Before anything is claimed.
    open_channel(connection)
    taken = {claim: by for by, claim in waiting if claim is not None}
    for claim, by in taken.items():
        if by == RELAY:
            # Cut off by a crash.
            return _send_again(connection, using, claim, now)
    sent = sent_batches(connection, [rows.batch_key(claim) for claim in taken])
    for claim in taken:
        if rows.batch_key(claim) in sent:
            # It went out, and whoever sent it died before it could say so.
            return _send_again(connection, using, claim, now)
    claim = uuid.uuid4()
    batch = _claim(using, claim, now=now, limit=limit, checked=taken.keys())
    return _send(connection, using, claim, batch, now)


def _next(using: str, now: datetime, limit: int) -> set[tuple[str, uuid.UUID | None]]:
    """Return who has taken the next rows that are due, and under which claim."""
    with transaction.atomic(using=using):
        _read_in_order(using)
        found = (
            OutboxMessage.objects.using(using)
            .filter(state=OutboxState.PENDING, available_at__lte=now)
            .order_by("available_at", "id")
            .values_list("published_by", "claim")[:limit]
        )
        return set(found)


def _read_in_order(using: str) -> None:
    """Let PostgreSQL read the next rows in the order of their index, until the transaction ends.

    Its statistics are of a time when nothing waited. After an outage it would read and sort all that waits,
    for every batch anew.
    """
    connection = connections[using]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_sort = off")


def _claim(
    using: str, claim: uuid.UUID, *, now: datetime, limit: int, checked: Collection[uuid.UUID]
) -> list[Row]:
    """Take the next rows that nobody is sending; return them as they were before."""
    connection = connections[using]
    skip = " FOR UPDATE SKIP LOCKED" if connection.features.has_select_for_update_skip_locked else ""
    moment = connection.ops.adapt_datetimefield_value
    # On PostgreSQL this does not unpack what is packed.
    length = "OCTET_LENGTH" if connection.vendor == "postgresql" else "LENGTH"
    with transaction.atomic(using=using), connection.cursor() as cursor:
        _read_in_order(using)
        cursor.execute(
            f"SELECT id, {length}(body) + {length}(headers) FROM {_WAITING} AND published_by <> %s"  # noqa: S608
            f" ORDER BY available_at, id LIMIT %s{skip}",
            [OutboxState.PENDING.value, moment(now), RELAY, limit],
        )
        ids: list[int] = []
        size = 0
        for pk, bytes_of_row in cursor.fetchall():
            size += bytes_of_row
            if ids and size > BATCH_BYTES:
                break
            ids.append(pk)
        if not ids:
            return []
        found = _read(using, f"id IN ({', '.join(['%s'] * len(ids))})", ids)
        # One whose transaction took it since the markers were read waits for the next round.
        chosen = [row for row in found if row.published_by != COMMIT or row.claim in checked]
        if chosen:
            cursor.execute(
                f'UPDATE "{TABLE}" SET claim = %s, published_by = %s, available_at = %s'  # noqa: S608 - our names
                f" WHERE id IN ({', '.join(['%s'] * len(chosen))})",
                [_known(using, claim), RELAY, moment(now + CLAIM), *(row.id for row in chosen)],
            )
    return chosen


def _send(
    connection: Connection, using: str, claim: uuid.UUID, batch: Sequence[Row], now: datetime
) -> Relayed:
    """Publish rows that were just claimed."""
    batch, expired = _without_expired(using, batch, now)
    known = 0
    while batch:
        fences = {rows.batch_key(row.claim): row.claim for row in batch if row.claim is not None}
        result = _publish(connection, using, claim, batch, fences=list(fences))
        if not result.fenced:
            return _finish(using, batch, result, expired=expired)
        # Their transactions sent them in this moment, and mark them now, or died. Either way they get their
        # own claim back.
        for key in result.fenced:
            theirs = [row for row in batch if row.claim == fences[key]]
            _give_back(using, theirs, fences[key], now)
            known += len(theirs)
        batch = [row for row in batch if row.claim is None or rows.batch_key(row.claim) not in result.fenced]
    return Relayed(known=known, expired=expired)


def _send_again(connection: Connection, using: str, claim: uuid.UUID, now: datetime) -> Relayed:
    """Publish what has a claim under its name, or learn that it was published."""
    batch = _read(using, "claim = %s AND state = %s", [_known(using, claim), OutboxState.PENDING.value])
    # Kept from other relays while it is sent. On a broker that keeps no markers they could send it too.
    OutboxMessage.objects.using(using).filter(pk__in=[row.id for row in batch]).update(
        available_at=timezone.now() + CLAIM
    )
    expired = 0
    if rows.batch_key(claim) not in sent_batches(connection, [rows.batch_key(claim)]):
        batch, expired = _without_expired(using, batch, now)
    if not batch:
        return Relayed(expired=expired)
    return _finish(using, batch, _publish(connection, using, claim, batch), expired=expired)


def _publish(
    connection: Connection,
    using: str,
    claim: uuid.UUID,
    batch: Sequence[Row],
    *,
    fences: Sequence[str] = (),
) -> PublishResult:
    now = timezone.now()
    try:
        messages = [rows.outgoing(row, now=now) for row in batch]
        return publish(connection, messages, batch_key=rows.batch_key(claim), fences=fences)
    except BrokerUnavailable:
        # The next round sends it again under its name, and before what came after it.
        OutboxMessage.objects.using(using).filter(pk__in=[row.id for row in batch]).update(
            available_at=min(now, *(row.available_at for row in batch))
        )
        raise
    except Exception as error:
        logger.exception("A batch of %s outbox messages was refused; each is sent by itself.", len(batch))
        if len(batch) == 1:
            return PublishResult(refused={0: f"{type(error).__name__}: {error}"})
    refused: dict[int, str] = {}
    for position, row in enumerate(batch):
        try:
            result = publish(connection, [rows.outgoing(row, now=timezone.now())])
            if result.refused:
                refused[position] = result.refused[0]
        except BrokerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - it is written to the row, and in the end to its letter
            refused[position] = f"{type(error).__name__}: {error}"
    return PublishResult(refused=refused)


def _without_expired(using: str, batch: Sequence[Row], now: datetime) -> tuple[list[Row], int]:
    """Make dead letters of rows whose time is over: RabbitMQ would drop them without a word."""
    expired = [row for row in batch if row.expires_at is not None and row.expires_at <= now]
    if not expired:
        return list(batch), 0
    gone = {row.id for row in expired}
    bury(using, list(gone), reason=Reason.EXPIRED, now=now)
    return [row for row in batch if row.id not in gone], len(expired)


def _finish(using: str, batch: Sequence[Row], result: PublishResult, *, expired: int) -> Relayed:
    """Write down what became of the rows of a batch."""
    now = timezone.now()
    sent = [row for position, row in enumerate(batch) if position not in result.refused]
    # What a transaction took and sent itself is its own.
    by = COMMIT if result.already_sent and any(row.published_by == COMMIT for row in sent) else RELAY
    rows.mark_published(using, [row.id for row in sent], by=by, now=now)
    gave_up = 0
    for position, why in result.refused.items():
        gave_up += _note_refused(using, batch[position], why, now)
    known = len(sent) if result.already_sent else 0
    return Relayed(
        sent=len(sent) - known,
        known=known,
        refused=len(result.refused) - gave_up,
        gave_up=gave_up,
        expired=expired,
    )


def _note_refused(using: str, row: Row, why: str, now: datetime) -> bool:
    """Let a row wait for its next try, or give it up after the last; return whether it was given up."""
    why = why.replace("\0", "\ufffd")[:ERROR_LENGTH]
    waiting = OutboxMessage.objects.using(using).filter(pk=row.id, state=OutboxState.PENDING)
    with transaction.atomic(using=using):
        attempts = waiting.values_list("attempts", flat=True).first()
        if attempts is None:
            return False
        waiting.update(attempts=attempts + 1, last_error=why)
        if attempts + 1 >= conf.current().outbox_max_attempts:
            bury(using, [row.id], reason=Reason.PUBLISH_FAILED, now=now)
            return True
        seconds = backoff.delay(
            attempts, base=BACKOFF_BASE, factor=BACKOFF_FACTOR, cap=BACKOFF_CAP, uniform=random.uniform
        )
        waiting.update(claim=None, published_by="", available_at=now + timedelta(seconds=seconds))
    return False


def _give_back(using: str, taken: Sequence[Row], claim: uuid.UUID, now: datetime) -> None:
    OutboxMessage.objects.using(using).filter(
        pk__in=[row.id for row in taken], state=OutboxState.PENDING
    ).update(claim=claim, published_by=COMMIT, available_at=now)


def _read(using: str, condition: str, values: Sequence[Any]) -> list[Row]:
    """Read rows in their order, without models: reading and writing the JSON of their headers would take the most time."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            f'SELECT {", ".join(_MESSAGE_COLUMNS)} FROM "{TABLE}" WHERE {condition}',  # noqa: S608 - our names
            list(values),
        )
        found = [
            Row._make(
                (
                    row[0],
                    bytes(row[1]),
                    *row[2:11],
                    _moment(row[11]),
                    _moment(row[12]),
                    uuid.UUID(row[13]) if isinstance(row[13], str) else row[13],
                    row[14],
                    _moment(row[15]),
                )
            )
            for row in cursor.fetchall()
        ]
    return sorted(found, key=lambda row: (row.available_at, row.id))


def _moment(value: Any) -> datetime | None:
    """Return a time as SQLite or PostgreSQL gives it, in UTC."""
    if value is None:
        return None
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _known(using: str, value: uuid.UUID) -> Any:
    return value if connections[using].features.has_native_uuid_field else value.hex
