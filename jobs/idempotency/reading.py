"""What the ledger says about keys, for pages, the preview and the collector."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from jobs import conf
from jobs.core.words import LedgerState
from jobs.models import DeadLetter, IdempotencyRecord

logger = logging.getLogger(__name__)

_PAIRS = 500


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


def states(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], LedgerLine]:
    """Return what is known of (task, key) pairs: a query for each of JOBS_OUTBOX_DATABASES, none without a key.

    For some hundreds of pairs at most. A database of an application that is away is left out, with a warning;
    the default one is not.
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
    found: dict[tuple[str, str], LedgerLine] = {}
    for using in conf.current().outbox_databases:
        try:
            lines = _lines(wanted, using)
        except (OperationalError, InterfaceError) as error:
            if using == DEFAULT_DB_ALIAS:
                raise
            logger.warning("The idempotency ledger of the database %s cannot be read: %s", using, error)
            continue
        for pair, line in lines.items():
            if pair not in found or line.state == LedgerState.DONE:
                found[pair] = line
    return found


def count_done(letters: QuerySet[DeadLetter], *, limit: int) -> int:
    """Count those of the newest ``limit`` letters whose key is done.

    One query, however many letters and keys there are; more only when there are several databases.
    """
    newest = letters.order_by("-died_at", "-pk")
    databases = conf.current().outbox_databases
    if set(databases) == {newest.db}:
        done = IdempotencyRecord.objects.filter(
            task=OuterRef("task"), key=OuterRef("idempotency_key"), state=LedgerState.DONE
        )
        # Looked up row by row behind the limit: joined, the databases may read every letter first.
        looked_up = newest.annotate(is_done=Exists(done)).values("pk", "is_done")[:limit]
        return int(looked_up.aggregate(number=Count("pk", filter=Q(is_done=True)))["number"])
    pairs = [pair for pair in newest.values_list("task", "idempotency_key")[:limit] if pair[1]]
    known: dict[tuple[str, str], LedgerLine] = {}
    for start in range(0, len(pairs), _PAIRS):
        known |= states(pairs[start : start + _PAIRS])
    return sum(pair in known and known[pair].state == LedgerState.DONE for pair in pairs)


def _lines(wanted: Q, using: str) -> dict[tuple[str, str], LedgerLine]:
    rows = IdempotencyRecord.objects.using(using).filter(wanted)
    return {
        (task, key): LedgerLine(LedgerState(state), task_id, completed_at, lease_expires_at, holder)
        for task, key, state, task_id, completed_at, lease_expires_at, holder in rows.values_list(
            "task", "key", "state", "task_id", "completed_at", "lease_expires_at", "holder"
        )
    }
