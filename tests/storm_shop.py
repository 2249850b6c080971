"""The application of the retry storm: jobs that call a downstream, which is away while a key exists."""

from __future__ import annotations

import os
from typing import Any

import django

from tests.applications import Application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from jobs import Job  # noqa: E402 - needs Django's settings
from jobs.agent import attach  # noqa: E402
from jobs.core import backoff  # noqa: E402
from tests.job_ledger import ledger_client, write  # noqa: E402

DOWN = "test:down"
# How many calls failed, by the attempt they were: "0" is the first.
FAILURES = "test:failures"

app = Application("storm", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=4,
    worker_send_task_events=False,
    # An application that limits how many jobs wait in a worker's memory would spread them by itself.
    worker_eta_task_limit=None,
)
attach(app)


class Patient(Job):
    """Gives up late, and waits at most as long as the outage lasts, which is a minute scaled down."""

    abstract = True
    max_attempts = 100
    backoff_cap_seconds = 8


class Punctual(Patient):
    """The same without jitter: each job waits exactly as long as it might have waited."""

    abstract = True

    def retry(self, *args: Any, countdown: float | None = None, **options: Any) -> Any:
        waits = backoff.ceiling(
            self.request.retries,
            base=self.backoff_base_seconds,
            factor=self.backoff_factor,
            cap=self.backoff_cap_seconds,
        )
        return super().retry(*args, countdown=waits, **options)


def call_downstream(job: Job, number: int) -> None:
    is_down = bool(ledger_client().exists(DOWN))
    write("call", number, retries=job.request.retries, eta=job.request.eta, failed=is_down)
    if is_down:
        ledger_client().hincrby(FAILURES, str(job.request.retries), 1)
        raise ConnectionError("the downstream is away")


@app.task(base=Patient, name="storm.with_jitter", bind=True)
def with_jitter(self: Job, number: int) -> None:
    call_downstream(self, number)


@app.task(base=Punctual, name="storm.without_jitter", bind=True)
def without_jitter(self: Job, number: int) -> None:
    call_downstream(self, number)
