"""A process that is killed at a step: ``python -m tests.outbox.dying ROLE STEP``.

ROLE ``request`` commits a transaction with five jobs; ``relay`` relays until nothing is due. STEP is the
name of the function of ours before or after which the process kills itself with signal 9: ``before:publish``.
With the step ``never`` it works to its end.
"""

from __future__ import annotations

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


if __name__ == "__main__":
    role, step = sys.argv[1:]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    django.setup()
    if step != "never":
        kill_at(step)
    {"request": request, "relay": relay}[role]()
