"""What it costs to enqueue in a transaction, its commit included, against a direct ``apply_async``.

Both on the same Redis, in turns, so that whatever else the machine does falls on both. There is no target:
the price of a job that is sent exactly when its transaction commits is to be known, not hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from django.db import transaction

from benchmarks.place import Place
from jobs import Job
from jobs.models import OutboxMessage

SLICE = 100


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure in a place of its own; return the figures."""
    slices = 5 if quick else 50
    with Place() as place:
        app = Celery("enqueue", broker=place.broker_url, set_as_current=False)
        app.conf.task_ignore_result = True

        @app.task(name="bench.plain", shared=False)
        def plain(**_: Any) -> None: ...

        @app.task(name="bench.job", shared=False, base=Job)
        def job(**_: Any) -> None: ...

        ways: dict[str, Callable[[], None]] = {
            "direct": lambda: _each(lambda number: plain.apply_async(kwargs=arguments(number))),
            "job": lambda: _each(lambda number: job.apply_async(kwargs=arguments(number))),
            "transaction": lambda: _each(lambda number: _in_transaction(job, number)),
            "ten": lambda: _in_tens(job),
            "many": lambda: _many(job),
        }
        seconds = dict.fromkeys(ways, 0.0)
        for way in ways.values():
            way()
        for _ in range(slices):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                seconds[name] += time.perf_counter() - began
        expected = (slices + 1) * SLICE
        written = OutboxMessage.objects.filter(state="published").count()
        assert written == 3 * expected, f"{written} rows were published, not {3 * expected}"
    rates = {name: slices * SLICE / taken for name, taken in seconds.items()}
    names = {
        "job": "a Job sent directly",
        "transaction": "a Job in a transaction of its own, commit and send included",
        "ten": "ten Jobs in a transaction, commit and send included",
        "many": f"Job.enqueue_many of {SLICE} in a transaction, commit and send included",
    }
    return [
        {
            "name": f"enqueue: {text}, against a plain apply_async",
            "ours": rates[name],
            "peer": rates["direct"],
            "ratio": rates[name] / rates["direct"],
            "target": "none, to be known",
            "is_met": True,
            "unit": "jobs/s",
        }
        for name, text in names.items()
    ]


def arguments(number: int) -> dict[str, Any]:
    """Return those of a job as a shop has them."""
    return {"order_id": number, "email": f"customer-{number}@example.org", "total": "48.20"}


def _each(send: Callable[[int], Any]) -> None:
    for number in range(SLICE):
        send(number)


def _in_transaction(job: Any, number: int) -> None:
    with transaction.atomic():
        job.apply_async(kwargs=arguments(number))


def _in_tens(job: Any) -> None:
    for start in range(0, SLICE, 10):
        with transaction.atomic():
            for number in range(start, start + 10):
                job.apply_async(kwargs=arguments(number))


def _many(job: Any) -> None:
    with transaction.atomic():
        job.enqueue_many([arguments(number) for number in range(SLICE)])
