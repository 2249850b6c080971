"""Messages on queues as Celery publishes them, and what is not a message."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

from celery import Celery
from kombu import Connection

from jobs.agent import attach
from jobs.agent.wire import PUBLISHED_AT_HEADER


@contextlib.contextmanager
def publisher(url: str, **options: Any) -> Iterator[Celery]:
    """Make an application that publishes with the agent's stamps."""
    app = Celery("publisher", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True, **options)
    attach(app)
    try:
        yield app
    finally:
        app.close()


def send(app: Celery, queue: str = "critical", *, count: int = 1, **options: Any) -> list[str]:
    """Publish jobs; return their ids, in this order."""
    ids = []
    with app.connection_for_write() as connection, connection.channel() as channel:
        producer = app.amqp.Producer(channel)
        for number in range(count):
            task_id = str(uuid.uuid4())
            app.send_task(
                "shop.tasks.send_receipt",
                kwargs={"order_id": 48000 + number},
                queue=queue,
                task_id=task_id,
                producer=producer,
                **options,
            )
            ids.append(task_id)
    return ids


def publish_old(
    connection: Connection, queue: str, *, seconds_ago: float, body: bytes = b"[[], {}, {}]", **options: Any
) -> None:
    """Publish a message that says it was published some time ago."""
    with connection.Producer() as producer:
        producer.publish(
            body,
            content_type="application/json",
            content_encoding="utf-8",
            headers={
                "task": "shop.tasks.send_receipt",
                "id": str(uuid.uuid4()),
                PUBLISHED_AT_HEADER: time.time() - seconds_ago,
                **options.pop("headers", {}),
            },
            routing_key=queue,
            **options,
        )
