"""What the ledger says about keys, for pages, the preview and the collector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from jobs.core.words import LedgerState
from jobs.models import IdempotencyRecord


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A key as the ledger has it. ``task_id`` is the job that holds it, has done it or tried last.

    ``holder`` is "host:pid"; it and ``lease_expires_at`` mean something while the key is running.
    """

    state: LedgerState
    task_id: str
    completed_at: datetime | None
    lease_expires_at: datetime | None
    holder: str


def states(
    pairs: Iterable[tuple[str, str]], *, using: str | None = None
) -> dict[tuple[str, str], LedgerLine]:
    """Return what is known of (task, key) pairs, in one query; none when no pair has a key.

    For some hundreds of pairs at most.
    """
    by_task: dict[str, set[str]] = {}
    for task, key in pairs:
        if key:
            by_task.setdefault(task, set()).add(key)
    if not by_task:
        return {}
    wanted = Q()
    for task, keys in by_task.items():
        wanted |= Q(task=task, key__in=sorted(keys))
    rows = IdempotencyRecord.objects.using(using).filter(wanted)
    return {
        (task, key): LedgerLine(LedgerState(state), task_id, completed_at, lease_expires_at, holder)
        for task, key, state, task_id, completed_at, lease_expires_at, holder in rows.values_list(
            "task", "key", "state", "task_id", "completed_at", "lease_expires_at", "holder"
        )
    }
