"""Waiting for an operation's end, for a script in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db.models.functions import Now
from django.utils import timezone

from jobs.core.words import OperationState
from jobs.models import Lease, Operation
from jobs.operations import Progress, progress

ENDED = frozenset({OperationState.FINISHED, OperationState.CANCELLED, OperationState.STOPPED})
POLL_SECONDS = 0.3
TELL_EVERY_SECONDS = 5.0
# A standby takes a duty over within a lease; longer than this, none is running.
NOBODY_AFTER_SECONDS = 15.0


def wait_for_end(operation: Operation, *, tell: Callable[[str], None]) -> Progress:
    """Wait until it has finished, stopped itself or been cancelled; ``tell`` gets a line now and then."""
    told = ""
    told_at = started = time.monotonic()
    has_told_nobody = False
    while True:
        operation.refresh_from_db()
        if operation.state in ENDED:
            return progress(operation, now=timezone.now())
        now = time.monotonic()
        if now - told_at >= TELL_EVERY_SECONDS:
            line = _line(operation, progress(operation, now=timezone.now()))
            told_at = now
            if line != told:
                tell(line)
                told = line
        if not has_told_nobody and now - started > NOBODY_AFTER_SECONDS and not is_carried_out():
            tell("Nobody carries operations out now. Start manage.py runops.")
            has_told_nobody = True
        time.sleep(POLL_SECONDS)


def is_carried_out() -> bool:
    """Say whether some runops holds the duty of operations."""
    return Lease.objects.filter(duty="operations", expires_at__gt=Now()).exclude(holder="").exists()


def _line(operation: Operation, counts: Progress) -> str:
    parts = [f"{counts.sent:,} of {counts.total:,} sent, {counts.done:,} done"]
    if counts.died:
        parts.append(f"{counts.died:,} died again")
    if counts.waiting:
        parts.append(f"{counts.waiting:,} waiting for their outcome")
    if operation.state == OperationState.PAUSED:
        parts.append("paused")
    return f"Operation {operation.pk}: {', '.join(parts)}"
