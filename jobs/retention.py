"""What is deleted after its time, in batches that hold no lock for long."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction

from jobs import conf
from jobs.core.words import GroupState, LetterState, OutboxState
from jobs.models import (
    AuditEntry,
    DeadLetter,
    Death,
    FailureGroup,
    LetterMessage,
    OperationEvent,
    OperationItem,
    OutboxMessage,
)

BATCH = 500
NEW_FOR = timedelta(hours=24)
GROUPS_KEPT = timedelta(days=90)


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
