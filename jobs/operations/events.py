"""The lines of an operation's log."""

from __future__ import annotations

from datetime import datetime

from jobs.models import Operation, OperationEvent


def write_event(operation: Operation, *, at: datetime, actor: str, kind: str, text: str) -> None:
    """Write a line into the operation's log; call it in the transaction of what it tells."""
    OperationEvent.objects.create(operation=operation, at=at, actor=actor, kind=kind, text=text[:500])
