"""Jobs whose outcomes are known, and each of which says when it ran to its end. ``COUNT_LINES`` names the file."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery
from celery.exceptions import Ignore

from jobs.agent import attach

app = Celery("count", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
    redis_socket_connect_timeout=1,
    redis_socket_timeout=5,
)
attach(app)


def note(name: str) -> None:
    """Add a line, whole also beside other processes'."""
    line = f"{name} {os.getppid()} {time.time():.6f}\n".encode()
    file = os.open(os.environ["COUNT_LINES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(file, line)
    finally:
        os.close(file)


@app.task(name="count.done")
def done() -> None:
    note("done")


@app.task(name="count.dead")
def dead() -> None:
    note("dead")
    raise ValueError("no such order")


@app.task(name="count.retried", bind=True, max_retries=3)
def retried(self: Any) -> None:
    """Ask for one retry, and be done then."""
    if self.request.retries == 0:
        note("retried")
        raise self.retry(countdown=0)
    note("done")


@app.task(name="count.ignored")
def ignored() -> None:
    note("ignored")
    raise Ignore
