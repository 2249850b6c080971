"""Copies of jobs, as ``Job`` calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs.idempotency import run
from jobs.models import IdempotencyRecord

TASK = "shop.send_receipt"
KEY = "receipt:5"


def copy(body: Callable[[], Any] = lambda: "sent", **changes: Any) -> Any:
    """Run a copy of a job, the first attempt of job "a" if nothing else is said."""
    return run(
        **{
            "task": TASK,
            "key": KEY,
            "task_id": "a",
            "attempt": 0,
            "body": body,
            "atomic": False,
            "using": "default",
            "lease_seconds": 60.0,
            "has_successors": False,
            **changes,
        }
    )


def record(key: str = KEY) -> IdempotencyRecord:
    return IdempotencyRecord.objects.get(task=TASK, key=key)


class Body:
    """Counts its runs; raises the errors it was given first, one a run."""

    def __init__(self, result: Any = "sent", errors: tuple[BaseException, ...] = ()) -> None:
        self.runs = 0
        self.result = result
        self.errors = list(errors)

    def __call__(self) -> Any:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.result
