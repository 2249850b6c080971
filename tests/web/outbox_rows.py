"""Messages of the outbox in every state, as its pages show them."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

from jobs.core.words import OutboxState
from jobs.models import OutboxMessage
from tests.factories import NOW, make_headers

ERROR = "NotFound: no exchange 'partners'"


def make_message(*, seconds: float = 4, kwargs: dict[str, Any] | None = None, **fields: Any) -> OutboxMessage:
    """Insert a message that was written ``seconds`` ago and is due since; ``fields`` override its columns."""
    task_id, written = str(uuid.uuid4()), NOW - timedelta(seconds=seconds)
    kwargs = {"order_id": 48213} if kwargs is None else kwargs
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    values: dict[str, Any] = {
        "task": "shop.tasks.send_receipt",
        "task_id": task_id,
        "queue": "critical",
        "routing_key": "critical",
        "body": json.dumps([[], kwargs, embed]).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": make_headers(task="shop.tasks.send_receipt", task_id=task_id, kwargs=kwargs),
        "created_at": written,
        "available_at": written,
    }
    return OutboxMessage.objects.create(**{**values, **fields})


def refused(**fields: Any) -> OutboxMessage:
    """Insert a message that the broker refused three times."""
    values = {"seconds": 240, "attempts": 3, "last_error": ERROR, "available_at": NOW + timedelta(seconds=40)}
    return make_message(**{**values, **fields})


def held(**fields: Any) -> OutboxMessage:
    """Insert a message whose job starts in two hours."""
    due = NOW + timedelta(hours=2)
    return make_message(**{"eta": due, "available_at": due, **fields})


def given_up(**fields: Any) -> OutboxMessage:
    """Insert a message that was refused too often."""
    return make_message(**{"state": OutboxState.GAVE_UP, "attempts": 8, "last_error": ERROR, **fields})


def sent(**fields: Any) -> OutboxMessage:
    """Insert a message that left right after its commit."""
    values = {
        "state": OutboxState.PUBLISHED,
        "published_at": NOW - timedelta(seconds=3.98),
        "published_by": "commit",
    }
    return make_message(**{**values, **fields})
