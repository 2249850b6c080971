"""Outbox rows that will not be published → dead letters, with their whole message."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from kombu.utils.json import dumps as kombu_dumps
from kombu.utils.json import loads as kombu_loads

from jobs.agent.wire import PUBLICATION_HEADER, Record, WireError, WireMessage, to_json_value
from jobs.collector import insert_letters
from jobs.core.words import OutboxState, Reason
from jobs.models import OutboxMessage

logger = logging.getLogger(__name__)

_EXPIRED = "It expired at {at:%Y-%m-%d %H:%M:%S} UTC, before it could be published."


def bury(using: str, ids: Sequence[int], *, reason: Reason, now: datetime) -> None:
    """Make dead letters of pending rows and mark them given up, in one transaction where it is one database.

    With another database the letters come first. A crash between the two buries the rows once more, and a
    death that is known already adds nothing.
    """
    with transaction.atomic(using=using):
        messages = list(OutboxMessage.objects.using(using).filter(pk__in=ids, state=OutboxState.PENDING))
        for message in messages:
            try:
                insert_letters([_record(message, reason, now)], now=now)
            except ValueError as problem:
                logger.warning("An outbox message becomes a dead letter without its headers: %s", problem)
                insert_letters([_record(message, reason, now, is_bare=True)], now=now)
        OutboxMessage.objects.using(using).filter(pk__in=[message.pk for message in messages]).update(
            state=OutboxState.GAVE_UP, available_at=now, claim=None
        )
    for message in messages:
        logger.error(
            "An outbox message was given up and is a dead letter now.",
            extra={"reason": reason.value, "task": message.task, "job": message.task_id},
        )


def _record(message: OutboxMessage, reason: Reason, now: datetime, *, is_bare: bool = False) -> Record:
    wire_message = message_of(message, is_bare=is_bare)
    headers = wire_message.headers
    retries = headers.get("retries")
    if reason == Reason.EXPIRED:
        error = WireError("jobs.outbox.Expired", _EXPIRED.format(at=message.expires_at), "")
    else:
        error = WireError(
            "jobs.outbox.PublishFailed",
            f"Not published in {message.attempts} tries. The last one: {message.last_error}",
            "",
        )
    return Record(
        kind="death",
        reason=reason.value,
        publication_id=str(headers.get(PUBLICATION_HEADER) or message.uuid.hex),
        attempt=retries if isinstance(retries, int) else 0,
        at=now.timestamp(),
        task=message.task,
        task_id=message.task_id,
        worker="",
        boot_id="",
        root_id=message.root_id,
        parent_id=message.parent_id,
        message=wire_message,
        error=error,
        details={"outbox": message.uuid.hex, "attempts": message.attempts},
    )


def message_of(message: OutboxMessage, *, is_bare: bool = False) -> WireMessage:
    """Return a row's message as an agent would report it; a bare one is without headers and properties."""
    properties = {} if is_bare else _values(message.properties)
    if message.priority is not None:
        properties["priority"] = message.priority
    return WireMessage(
        body=bytes(message.body),
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers={} if is_bare else _values(message.headers),
        properties=properties,
        exchange=message.exchange,
        routing_key=message.routing_key,
        queue=message.queue or message.routing_key,
    )


def _values(stored: Any) -> dict[str, Any]:
    """Return headers or properties as an agent would report them."""
    values: dict[str, Any] = to_json_value(kombu_loads(kombu_dumps(stored)))
    return values
