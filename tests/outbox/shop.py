"""A small application, as client and as worker, whose jobs write down that they ran."""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery, Task

from jobs.agent import attach
from tests.applications import Application

LINES = "shop.lines"


def create(broker_url: str, backend_url: str = "", *, base: type[Task] = Task) -> Celery:
    """Make the application. A worker needs no Django, whatever base its clients give their tasks."""
    app = Application("outbox-shop", broker=broker_url, backend=backend_url or None, set_as_current=False)
    app.conf.update(
        task_ignore_result=not backend_url,
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        worker_prefetch_multiplier=1,
    )

    def note(task: Task, **values: Any) -> None:
        with redis.Redis.from_url(os.environ["SHOP_LINES_URL"]) as client:
            priority = (task.request.delivery_info or {}).get("priority")
            line = {"id": task.request.id, "task": task.name, "priority": priority, **values}
            client.rpush(LINES, json.dumps(line))

    @app.task(name="outbox.add", bind=True, shared=False, base=base)
    def add(self: Task, first: int, second: int) -> int:
        note(self, sum=first + second)
        return first + second

    @app.task(name="outbox.total", bind=True, shared=False, base=base)
    def total(self: Task, numbers: list[int]) -> int:
        note(self, sum=sum(numbers))
        return sum(numbers)

    @app.task(name="outbox.fail", bind=True, shared=False, base=base)
    def fail(self: Task) -> None:
        note(self)
        raise ValueError("out of paper")

    @app.task(name="outbox.mourn", bind=True, shared=False, base=base)
    def mourn(self: Task, *args: Any) -> str:
        note(self)
        return "mourned"

    attach(app)
    return app


def lines(client: redis.Redis) -> list[dict[str, Any]]:
    """Return what the jobs wrote."""
    return [json.loads(line) for line in client.lrange(LINES, 0, -1)]


def payloads(client: redis.Redis, queue: str = "celery") -> list[dict[str, Any]]:
    """Return the messages on a queue, in the order in which they were sent."""
    return [json.loads(text) for text in reversed(client.lrange(queue, 0, -1))]


if "SHOP_BROKER_URL" in os.environ:
    app = create(os.environ["SHOP_BROKER_URL"], os.environ.get("SHOP_BACKEND_URL", ""))
