"""Sends jobs through the outbox, and reads where they are."""

from __future__ import annotations

import base64
import json

from celery import Celery

from jobs.models import OutboxMessage
from jobs.outbox import OutboxProducer
from tests.outbox.shop import payloads
from tests.servers import RedisServer


def enqueue(shop: Celery, number: int, **options) -> None:
    shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer(), **options)


def arrived(broker: RedisServer, queue: str = "celery") -> list[int]:
    """Return the first argument of the jobs on a queue, in the order in which they were sent."""
    with broker.client() as client:
        return [json.loads(base64.b64decode(each["body"]))[0][0] for each in payloads(client, queue)]


def states() -> dict[int, str]:
    return {
        json.loads(bytes(row.body))[0][0]: row.state for row in OutboxMessage.objects.order_by("created_at")
    }
