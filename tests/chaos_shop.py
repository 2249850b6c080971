"""A shop whose jobs write down that they ran; every third fails until the switch is on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Task

from jobs.agent import attach
from tests.applications import Application

app = Application("shop", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
)
attach(app)


def note(line: str) -> None:
    """Append a line in one write, so that it is there whole or not at all."""
    with Path(os.environ["SHOP_NOTES"]).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def work(task: Task, number: int) -> None:
    time.sleep(0.02)
    if number % 3 == 0 and not Path(os.environ["SHOP_SWITCH"]).exists():
        note(f"failed {number} {task.request.id}")
        raise ConnectionError(f"mail relay refused order {number}")
    note(f"done {number} {task.request.id}")


@app.task(name="shop.late", bind=True, acks_late=True)
def late(task: Task, number: int) -> None:
    work(task, number)


@app.task(name="shop.early", bind=True)
def early(task: Task, number: int) -> None:
    work(task, number)
