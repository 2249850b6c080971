"""Processes that are killed at a step: ``python -m tests.outbox.dying`` forks one for each line that it reads.

A line is JSON: ROLE, STEP and the variables of its environment. ROLE ``request`` commits a transaction with five
jobs; ``relay`` relays until nothing is due. STEP is the name of the function of ours before or after which the process
kills itself with signal 9: ``before:publish``. With the step ``never`` it works to its end.

The line's answers are the process id, and then its exit status. The parent has no connection that a child could share.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any

import django


def kill_at(step: str) -> None:
    """Wrap the function that the step names."""
    from jobs.outbox import commit, relay, rows

    when, _, name = step.partition(":")
    owners = [owner for owner in (commit, relay, rows) if hasattr(owner, name)]
    assert owners, f"nothing is called {name}"
    for owner in owners:
        original = getattr(owner, name)

        def dying(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            if when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if result is not False and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, dying)


def request() -> None:
    """Do what a web request does."""
    from django.db import transaction

    from jobs.outbox import OutboxProducer
    from tests.outbox.shop import create

    shop = create(os.environ["BROKER_URL"])
    with transaction.atomic():
        for number in range(5):
            shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer())


def relay() -> None:
    """Do what runops does, at a time when everything is due."""
    from django.utils import timezone

    from jobs.broker import connect
    from jobs.outbox.relay import relay_batch

    later = timezone.now() + timedelta(seconds=float(os.environ.get("LATER_SECONDS", "16")))
    with connect() as broker:
        while relay_batch(broker, now=later, limit=int(os.environ.get("LIMIT", "1000"))).total:
            pass


def run(role: str, step: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    if step != "never":
        kill_at(step)
    {"request": request, "relay": relay}[role]()


def answer(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def serve() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            # As any process: an error ends it with its traceback and the status 1.
            run(*json.loads(line))
            return
        answer(pid)
        _, status = os.waitpid(pid, 0)
        answer(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    django.setup()
    # So that the children find it loaded.
    for name in ("jobs.broker", "jobs.outbox.relay", "tests.outbox.shop"):
        importlib.import_module(name)

    serve()
