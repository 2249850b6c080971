"""Outcomes that do not come, and the sentence at a replay's end."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import Count, QuerySet

from jobs import conf
from jobs.core.words import ItemState, LetterState
from jobs.models import DeadLetter, Operation, OperationItem
from jobs.operations.counting import died_groups_count, item_counts

_BATCH = 1_000
# Reasons that the report of a replay names.
_NAMED_REASONS = 2


def give_up(items: QuerySet[OperationItem], *, detail: str, now: datetime) -> int:
    """Make sent items unknown and their letters dead again, in batches; return how many.

    An outcome that comes later still counts: the collector matches it by the item.
    """
    given_up = 0
    while True:
        with transaction.atomic():
            rows = list(items.filter(state=ItemState.SENT).values_list("pk", "letter_id")[:_BATCH])
            # Letters are locked before their items, and in their order, as the collector does: each would
            # otherwise hold what the other waits for.
            locked = DeadLetter.objects.select_for_update().filter(pk__in=[letter for _, letter in rows])
            list(locked.order_by("pk").values_list("pk"))
            changed = OperationItem.objects.filter(
                pk__in=[pk for pk, _ in rows], state=ItemState.SENT
            ).update(state=ItemState.UNKNOWN, ended_at=now, detail=detail[:255])
            # Only letters whose item is unknown now: one may have got its outcome in between.
            DeadLetter.objects.filter(
                pk__in=[letter_id for _, letter_id in rows],
                state=LetterState.REPLAYING,
                items__pk__in=[pk for pk, _ in rows],
                items__state=ItemState.UNKNOWN,
            ).update(state=LetterState.DEAD, state_changed_at=now)
        given_up += changed
        if len(rows) < _BATCH:
            return given_up


def give_up_overdue(*, now: datetime) -> int:
    """Give up on outcomes that are out for longer than JOBS_OUTCOME_TIMEOUT_HOURS; return how many."""
    timeout = conf.current().outcome_timeout
    hours = timeout.total_seconds() / 3600
    overdue = OperationItem.objects.filter(state=ItemState.SENT, sent_at__lt=now - timeout)
    return give_up(overdue, detail=f"No outcome came within {hours:g} h; its job may have run.", now=now)


def report(operation: Operation) -> str:
    """Say what became of a replay.

    "Of 8,000 replayed: 7,950 done, 40 died again in 2 groups, 10 already done."
    """
    counts = item_counts(operation)
    total = max(operation.selected_count, sum(counts.values()))
    died = counts.get(ItemState.DIED, 0)
    skipped = counts.get(ItemState.SKIPPED, 0) + max(0, total - sum(counts.values()))
    groups = died_groups_count(operation) if died else 0
    parts = [
        (counts.get(ItemState.DONE, 0), "done"),
        (died, f"died again in {groups:,} group{'' if groups == 1 else 's'}"),
        (counts.get(ItemState.ALREADY_DONE, 0), "already done"),
        (skipped, "skipped"),
        (counts.get(ItemState.REFUSED, 0), "cannot be replayed"),
        (counts.get(ItemState.UNKNOWN, 0), "with an unknown outcome"),
        (counts.get(ItemState.SENT, 0), "still waiting for their outcome"),
        (counts.get(ItemState.PENDING, 0), "not sent"),
    ]
    told = [f"{number:,} {words}" for number, words in parts if number]
    sentence = f"Of {total:,} replayed: {', '.join(told) or 'none left to send'}"
    if counts.get(ItemState.REFUSED):
        return f"{sentence}. {_why_refused(operation)}"
    return f"{sentence}."


def _why_refused(operation: Operation) -> str:
    """Name what kept most of the refused letters back, as the broker or the message gave it."""
    reasons = (
        OperationItem.objects.filter(operation=operation, state=ItemState.REFUSED)
        .exclude(detail="")
        .values_list("detail")
        .annotate(number=Count("pk"))
        .order_by("-number", "detail")[: _NAMED_REASONS + 1]
    )
    named = [f"{detail.rstrip('.')}." for detail, _ in reasons[:_NAMED_REASONS]]
    if len(reasons) > _NAMED_REASONS:
        named.append("There are more reasons, on the letters.")
    return " ".join(named) if named else "Each letter's page says why."
