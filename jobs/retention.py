"""What is deleted after its time, in batches that hold no lock for long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from jobs import conf
from jobs.core.words import GroupState, LedgerState, LetterState, OutboxState
from jobs.models import (
    AuditEntry,
    DeadLetter,
    Death,
    FailureGroup,
    IdempotencyRecord,
    JobProgress,
    LetterMessage,
    OperationEvent,
    OperationItem,
    OutboxMessage,
)

BATCH = 500
NEW_FOR = timedelta(hours=24)
GROUPS_KEPT = timedelta(days=90)
PROGRESS_KEPT = timedelta(days=30)


def delete_letters(*, now: datetime, limit: int = 20 * BATCH) -> int:
    """Delete letters that are purged or resolved and past ``delete_after``; return how many.

    A letter that is dead or replaying is never deleted, whatever its columns say. Log lines and
    audit entries about it stay, without the link.
    """
    deleted = 0
    while deleted < limit:
        due = DeadLetter.objects.filter(
            delete_after__lte=now, state__in=[LetterState.PURGED, LetterState.RESOLVED]
        )
        with transaction.atomic():
            # Locked, so that a restore in the same moment either comes first or finds nothing.
            rows = due.order_by("delete_after")
            if transaction.get_connection().features.has_select_for_update_skip_locked:
                rows = rows.select_for_update(skip_locked=True)
            ids = list(rows.values_list("pk", flat=True)[:BATCH])
            OperationEvent.objects.filter(letter_id__in=ids).update(letter=None)
            AuditEntry.objects.filter(letter_id__in=ids).update(letter=None)
            Death.objects.filter(letter_id__in=ids).delete()
            OperationItem.objects.filter(letter_id__in=ids).delete()
            LetterMessage.objects.filter(letter_id__in=ids).delete()
            DeadLetter.objects.filter(pk__in=ids).delete()
        deleted += len(ids)
        if len(ids) < BATCH:
            break
    return deleted


def delete_outbox(*, now: datetime, limit: int = 20 * BATCH) -> int:
    """Delete outbox messages some hours after they were published or given up; return how many.

    What waits is never deleted. Of those given up the dead letters have the whole message.
    """
    current = conf.current()
    past = now - current.outbox_retention
    deleted = 0
    for using in current.outbox_databases:
        rows = OutboxMessage.objects.using(using)
        # Each with the column of the index that finds them.
        for state, column in ((OutboxState.PUBLISHED, "published_at"), (OutboxState.GAVE_UP, "available_at")):
            over = rows.filter(state=state, **{f"{column}__lte": past}).order_by(column)
            while deleted < limit:
                ids = list(over.values_list("pk", flat=True)[:BATCH])
                deleted += rows.filter(pk__in=ids).delete()[0]
                if len(ids) < BATCH:
                    break
    return deleted


def delete_ledger(*, now: datetime, limit: int = 20 * BATCH) -> int:
    """Delete keys JOBS_IDEMPOTENCY_RETENTION_DAYS after their last change, and old progress; return how many.

    A key that runs is deleted only when its lease ended so long ago. A key that was deleted runs again
    when a job with it is sent again, or replayed.
    """
    current = conf.current()
    past = now - current.idempotency_retention
    deleted = 0
    for using in current.outbox_databases:
        # Looked at again where each row is deleted: a free key may be claimed in this moment.
        over = IdempotencyRecord.objects.using(using).filter(
            ~Q(state=LedgerState.RUNNING) | Q(lease_expires_at__lte=past), updated_at__lte=past
        )
        deleted += _delete_in_batches(over, "updated_at", limit=limit)
    old = JobProgress.objects.filter(updated_at__lte=now - PROGRESS_KEPT)
    return deleted + _delete_in_batches(old, "updated_at", limit=limit)


def _delete_in_batches(over: QuerySet[Any], column: str, *, limit: int) -> int:
    deleted = 0
    while deleted < limit:
        ids = list(over.order_by(column).values_list("pk", flat=True)[:BATCH])
        deleted += over.filter(pk__in=ids).delete()[0]
        if len(ids) < BATCH:
            break
    return deleted


def age_groups(*, now: datetime) -> None:
    """Make groups known a day after they were new, end mutes, and forget groups without letters."""
    FailureGroup.objects.filter(state=GroupState.NEW, first_seen_at__lte=now - NEW_FOR).update(
        state=GroupState.KNOWN
    )
    FailureGroup.objects.filter(state=GroupState.MUTED, muted_until__lte=now).update(
        state=GroupState.KNOWN, muted_until=None
    )
    empty = FailureGroup.objects.filter(last_seen_at__lt=now - GROUPS_KEPT, letters=None)
    AuditEntry.objects.filter(group__in=empty.values("pk")).update(group=None)
    empty.delete()
