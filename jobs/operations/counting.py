"""Counts of an operation's items, read from the rows, so that they always add up."""

from __future__ import annotations

from django.db.models import Count, Max, Min

from jobs.core.stages import StageCounts
from jobs.core.words import ItemState
from jobs.models import Operation, OperationItem, OperationStage


def item_counts(operation: Operation) -> dict[str, int]:
    """Count the items by state, from an index. States without an item are left out."""
    rows = (
        OperationItem.objects.filter(operation=operation)
        .order_by()
        .values_list("state")
        .annotate(number=Count("pk"))
    )
    return dict(rows)


def current_stage(operation: Operation) -> OperationStage | None:
    """Return the first stage that has not ended, or None when all have or there is none."""
    return OperationStage.objects.filter(operation=operation, ended_at=None).order_by("number").first()


def stage_counts(operation: Operation, stage: OperationStage, *, pending: int) -> StageCounts:
    """Count one stage's items; ``pending`` are those of the operation that are not sent yet."""
    rows = (
        OperationItem.objects.filter(operation=operation, stage=stage.number)
        .order_by()
        .values_list("state")
        .annotate(number=Count("pk"))
    )
    return counts_of(stage, dict(rows), pending=pending)


def counts_of(stage: OperationStage, by_state: dict[str, int], *, pending: int) -> StageCounts:
    """Put one stage's counts by item state into what decides about it."""
    return StageCounts(
        size=stage.size,
        pending=pending,
        waiting=by_state.get(ItemState.SENT, 0),
        done=by_state.get(ItemState.DONE, 0),
        already_done=by_state.get(ItemState.ALREADY_DONE, 0),
        died=by_state.get(ItemState.DIED, 0),
        unknown=by_state.get(ItemState.UNKNOWN, 0),
        forgiven_finished=stage.forgiven_finished,
        forgiven_bad=stage.forgiven_bad,
    )


def died_groups_count(operation: Operation) -> int:
    """Count the groups that the items that died again belong to."""
    return (
        OperationItem.objects.filter(operation=operation, state=ItemState.DIED)
        .values("letter__group")
        .distinct()
        .count()
    )


def sent_bounds(operation: Operation) -> tuple[object, object]:
    """Return when the first and the last item were sent, or two Nones."""
    bounds = OperationItem.objects.filter(operation=operation).aggregate(
        first=Min("sent_at"), last=Max("sent_at")
    )
    return bounds["first"], bounds["last"]


def letters_in_words(count: int) -> str:
    """Say how many letters: "1 letter", "4,310 letters"."""
    return f"{count:,} letter{'' if count == 1 else 's'}"
