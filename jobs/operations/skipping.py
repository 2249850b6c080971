"""Why a letter was left out of a replay, for its item."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.core.words import ItemState, LetterState
from jobs.models import DeadLetter, OperationItem


def explain(letter_ids: Sequence[int], *, operation_id: int) -> dict[int, str]:
    """Say for each letter why ``operation_id`` does not send it, from what the letter is now."""
    letters = DeadLetter.objects.filter(pk__in=letter_ids).values_list("pk", "state", "purged_by_id")
    others: dict[int, tuple[int, str]] = {}
    items = (
        OperationItem.objects.filter(letter_id__in=letter_ids)
        .exclude(operation_id=operation_id)
        .exclude(state__in=[ItemState.PENDING, ItemState.SKIPPED, ItemState.REFUSED])
        .order_by("pk")
        .values_list("letter_id", "operation_id", "state")
    )
    for letter_id, other_id, state in items:
        others[letter_id] = (other_id, state)
    return {pk: _words(state, purged_by, others.get(pk)) for pk, state, purged_by in letters}


def _words(state: str, purged_by: int | None, other: tuple[int, str] | None) -> str:
    by = "" if other is None else f" in operation {other[0]}"
    if state == LetterState.REPLAYING:
        return f"already replaying{by}"
    if state == LetterState.RESOLVED:
        return f"already replayed and done{by}" if other else "already resolved"
    if state == LetterState.PURGED:
        return "purged" if purged_by is None else f"purged in operation {purged_by}"
    if other is not None and other[1] == ItemState.DIED:
        return f"already replayed{by}, and died again"
    if other is not None and other[1] == ItemState.UNKNOWN:
        return f"already replayed{by}, with an unknown outcome"
    return "changed since it was selected"
