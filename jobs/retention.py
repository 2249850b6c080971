"""What is deleted after its time, in batches that hold no lock for long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max, Min, Q, QuerySet

from jobs import conf
from jobs.core.windows import KEPT
from jobs.core.words import (
    AlertState,
    GroupState,
    LedgerState,
    LetterState,
    NotificationState,
    OutboxState,
    RollupScope,
    SampleLevel,
)
from jobs.models import (
    Alert,
    AuditEntry,
    DeadLetter,
    Death,
    FailureGroup,
    IdempotencyRecord,
    JobProgress,
    LetterMessage,
    Notification,
    OperationEvent,
    OperationItem,
    OutboxMessage,
    QueueSample,
    Rollup,
    Run,
    Silence,
    WorkerBoot,
)

BATCH = 500
NEW_FOR = timedelta(hours=24)
GROUPS_KEPT = timedelta(days=90)
PROGRESS_KEPT = timedelta(days=30)
BOOTS_KEPT = timedelta(days=7)
ALERTS_KEPT = timedelta(days=90)
SAMPLES_KEPT = {
    SampleLevel.SAMPLE: timedelta(days=7),
    SampleLevel.MINUTE: timedelta(days=7),
    SampleLevel.HOUR: timedelta(days=730),
}
# Rows of the numbers are short and nobody changes old ones: so many a statement hold SQLite's lock for 0.1 s.
NUMBERS_BATCH = 5_000


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


def delete_numbers(*, now: datetime, limit: int = 40 * NUMBERS_BATCH) -> int:
    """Delete finished attempts, rollups, samples, workers and alerts past their time; return how many.

    Of attempts also the oldest beyond JOBS_RUN_CAP.
    """
    deleted = _delete_runs(now=now, limit=limit)
    for level, kept in KEPT.items():
        # Each scope by itself: with both, the unique index finds its oldest at once.
        for scope in RollupScope:
            rollups = Rollup.objects.filter(level=level, scope=scope, starts_at__lt=now - kept)
            deleted += _delete_oldest(rollups, "starts_at", limit=limit)
    for sample_level, kept in SAMPLES_KEPT.items():
        samples = QueueSample.objects.filter(level=sample_level, at__lt=now - kept)
        deleted += _delete_oldest(samples, "at", limit=limit)
    boots = WorkerBoot.objects.filter(last_seen_at__lt=now - BOOTS_KEPT)
    deleted += _delete_in_batches(boots, "last_seen_at", limit=limit)
    return deleted + _delete_alerts(now=now, limit=limit)


def _delete_runs(*, now: datetime, limit: int) -> int:
    current = conf.current()
    past = Run.objects.filter(finished_at__lt=now - current.run_retention)
    deleted = _delete_oldest(past, "finished_at", limit=limit)
    # Ids grow as attempts are written, so that nothing has to be counted; a gap keeps a few rows less.
    ends = Run.objects.aggregate(first=Min("pk"), last=Max("pk"))
    if ends["last"] is None:
        return deleted
    first, over = ends["first"], ends["last"] - current.run_cap
    while first <= over and deleted < limit:
        last = min(over, first + NUMBERS_BATCH - 1)
        deleted += Run.objects.filter(pk__gte=first, pk__lte=last).delete()[0]
        first = last + 1
    return deleted


def _delete_alerts(*, now: datetime, limit: int) -> int:
    past = now - ALERTS_KEPT
    # With their notifications. Those without an alert are tests.
    alerts = Alert.objects.filter(state=AlertState.RESOLVED, resolved_at__lt=past)
    tests = Notification.objects.filter(alert=None, created_at__lt=past)
    tests = tests.exclude(state=NotificationState.WAITING)
    silences = Silence.objects.filter(ends_at__lt=past)
    return (
        _delete_in_batches(alerts, "resolved_at", limit=limit)
        + _delete_in_batches(tests, "created_at", limit=limit)
        + _delete_in_batches(silences, "ends_at", limit=limit)
    )


def _delete_oldest(over: QuerySet[Any], column: str, *, limit: int) -> int:
    """Delete rows to which nothing points, NUMBERS_BATCH in a statement, and their ids stay in the database."""
    deleted = 0
    # Asked first: a statement that deletes nothing still takes SQLite's lock.
    while deleted < limit and over.exists():
        deleted += over.filter(pk__in=over.order_by(column).values("pk")[:NUMBERS_BATCH]).delete()[0]
    return deleted


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
