"""The application of the workers under test: jobs with limits that write down, by Redis's clock, what they did."""

from __future__ import annotations

import os
import time
from pathlib import Path

import django

from tests.applications import Application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from jobs import Job  # noqa: E402 - needs Django's settings
from jobs.agent import attach  # noqa: E402
from jobs.limits import admission  # noqa: E402
from tests.job_ledger import ledger_client, write  # noqa: E402

app = Application("limited", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=False,
)
attach(app)
# A fifth of the product's: a job that cannot be let through since the limits are away comes back after so long.
admission.AWAY_HOLD_SECONDS = (1.0, 3.0)


@app.task(base=Job, name="limited.paced", bind=True, rate="100/s", max_attempts=1)
def paced(self: Job, number: int) -> None:
    write("start", number, retries=self.request.retries)


@app.task(base=Job, name="limited.seated", bind=True, concurrency=3, idempotency_lease_seconds=4)
def seated(self: Job, number: int, seconds: float, seconds_again: float = 0.1) -> None:
    write("start", number, retries=self.request.retries, pid=os.getpid())
    is_first = ledger_client().set(f"test:ran:{number}", 1, nx=True)
    time.sleep(seconds if is_first else seconds_again)
    write("end", number, retries=self.request.retries, pid=os.getpid())


@app.task(base=Job, name="limited.keyed", concurrency=1, limit_key="{customer}")
def keyed(number: int, customer: str) -> None:
    write("start", number, customer=customer)
    time.sleep(0.05)
    write("end", number, customer=customer)


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
