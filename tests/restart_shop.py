"""The application of the restarts: jobs that end, that fail once and are retried, and that a limit holds back."""

from __future__ import annotations

import os
import time

import django

from tests.applications import Application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from jobs import Job, TransientError  # noqa: E402 - needs Django's settings
from jobs.agent import attach  # noqa: E402
from tests.job_ledger import GO, ledger_client, write  # noqa: E402

app = Application("restarted", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=2,
    worker_send_task_events=False,
)
attach(app)


@app.task(base=Job, name="restarted.plain")
def plain(number: int) -> None:
    write("start", number)
    time.sleep(0.03)
    write("end", number)


@app.task(base=Job, name="restarted.flaky", bind=True, backoff_base_seconds=0.5)
def flaky(self: Job, number: int) -> None:
    if self.request.retries == 0:
        write("failed", number)
        raise TransientError("not yet")
    write("start", number)
    write("end", number)


@app.task(base=Job, name="restarted.paced", rate="40/s", concurrency=3)
def paced(number: int) -> None:
    write("start", number)
    time.sleep(0.01)
    write("end", number)


@app.task(base=Job, name="restarted.long")
def long(number: int) -> None:
    """Run until the test lets it go."""
    write("start", number)
    deadline = time.monotonic() + 90
    while not ledger_client().exists(GO):
        if time.monotonic() > deadline:
            raise TimeoutError(GO)
        time.sleep(0.02)
    write("end", number)
