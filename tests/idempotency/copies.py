"""Copies of jobs, as ``Job`` calls them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

from django.db import connection
from django.utils import timezone

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


class Elsewhere:
    """A copy that runs in another thread until it is let go, at the end of the test at the latest."""

    running: ClassVar[list[Elsewhere]] = []

    def __init__(self, **changes: Any) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.outcome: Any = None
        self._changes = changes
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.running.append(self)
        assert self.has_begun.wait(30)

    def _body(self) -> str:
        self.has_begun.set()
        assert self.may_end.wait(60)
        return "sent elsewhere"

    def _run(self) -> None:
        try:
            self.outcome = copy(self._body, **self._changes)
        except Exception as error:  # noqa: BLE001 - what it raised is what a test looks at
            self.outcome = error
        finally:
            connection.close()

    def end(self) -> Any:
        self.may_end.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.outcome


def expire(key: str = KEY) -> None:
    """Let the lease run out, as if its process had died long ago."""
    IdempotencyRecord.objects.filter(key=key).update(lease_expires_at=timezone.now() - timedelta(hours=1))
