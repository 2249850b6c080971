"""The application of the workers under test: jobs with limits that write down, by Redis's clock, what they did."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import django
import redis
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from jobs import Job  # noqa: E402 - needs Django's settings
from jobs.agent import attach  # noqa: E402

LEDGER = "test:ledger"
BROKER_URL = os.environ.get("BROKER_URL", "memory://")

app = Celery("limited", broker=BROKER_URL)
app.conf.update(
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=False,
)
attach(app)

_client: redis.Redis | None = None


def client() -> redis.Redis:
    global _client
    if _client is None:
        _client = redis.Redis.from_url(BROKER_URL, socket_timeout=10)
    return _client


def write(what: str, job: Job, number: int, **more: Any) -> None:
    """Add a line to the ledger: a list in Redis, in the order and by the clock of its server."""
    seconds, micros = client().time()
    at = seconds + micros / 1e6
    line = {"what": what, "number": number, "at": at, "retries": job.request.retries, **more}
    client().rpush(LEDGER, json.dumps(line))


@app.task(base=Job, name="limited.paced", bind=True, rate="100/s", max_attempts=1)
def paced(self: Job, number: int) -> None:
    write("start", self, number)


@app.task(base=Job, name="limited.seated", bind=True, concurrency=3, idempotency_lease_seconds=4)
def seated(self: Job, number: int, seconds: float, seconds_again: float = 0.1) -> None:
    write("start", self, number, pid=os.getpid())
    is_first = client().set(f"test:ran:{number}", 1, nx=True)
    time.sleep(seconds if is_first else seconds_again)
    write("end", self, number, pid=os.getpid())


@app.task(base=Job, name="limited.keyed", bind=True, concurrency=1, limit_key="{customer}")
def keyed(self: Job, number: int, customer: str) -> None:
    write("start", self, number, customer=customer)
    time.sleep(0.05)
    write("end", self, number, customer=customer)


@app.task(base=Job, name="limited.plain")
def plain(number: int) -> None:
    if number < 0:
        Path(os.environ["DONE_FILE"]).touch()


@app.task(base=Job, name="limited.roomy", rate="1000000/s")
def roomy(number: int) -> None:
    """Has a limit that is never reached."""


@app.task(base=Job, name="limited.wide", concurrency=1_000)
def wide(number: int) -> None:
    """Has seats that are never all taken."""
