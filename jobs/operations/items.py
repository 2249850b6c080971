"""The items of a replay: one row for each letter that is selected, before anything is sent."""

from __future__ import annotations

from array import array
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction

from jobs.core.words import ItemState
from jobs.models import Operation, OperationItem
from jobs.operations import rows
from jobs.operations.selection import Selection
from jobs.operations.skipping import explain

if TYPE_CHECKING:
    from jobs.operations.runner import HoldsDuty

BATCH = 5_000
# Ids are read in pages of eight bytes each: a page is one sorted pass over what is left, a batch is not.
PAGE = 200_000


class ItemWriter:
    """Writes the items of one replay. Remembers a page of ids; the checkpoint in the row is what counts."""

    def __init__(self) -> None:
        self._page = array("q")
        self._at = 0

    def write_next(self, operation: Operation, *, now: datetime, lease: HoldsDuty) -> None:
        """Write the next items; at the end, those of letters that somebody else has taken, as skipped."""
        selection = Selection.from_json(operation.selection)
        if self._at >= len(self._page):
            found = selection.queryset().filter(pk__gt=operation.checkpoint_id).order_by("pk")
            ids = found.values_list("pk", flat=True)[:PAGE].iterator(chunk_size=10_000)
            self._page, self._at = array("q", ids), 0
        batch = self._page[self._at : self._at + BATCH].tolist()
        self._at += len(batch)
        if not batch:
            _finish(operation, selection, now, lease)
            return
        with transaction.atomic():
            lease.check()
            _write(operation, selection, batch, now)
            # Only forward: a runner that lost its lease must not move it back.
            Operation.objects.filter(pk=operation.pk, checkpoint_id__lt=batch[-1]).update(
                checkpoint_id=batch[-1]
            )


def _finish(operation: Operation, selection: Selection, now: datetime, lease: HoldsDuty) -> None:
    taken = array("q", selection.left_out().order_by("pk").values_list("pk", flat=True).iterator())
    for start in range(0, len(taken), BATCH):
        with transaction.atomic():
            lease.check()
            _write(operation, selection, taken[start : start + BATCH].tolist(), now)
    with transaction.atomic():
        lease.check()
        count = OperationItem.objects.filter(operation=operation).count()
        Operation.objects.filter(pk=operation.pk).update(
            is_materialised=True,
            changed_count=count,
            # More only when a letter died between the freeze and the count.
            selected_count=max(operation.selected_count, count),
        )


def _write(operation: Operation, selection: Selection, letter_ids: list[int], now: datetime) -> None:
    rows.write_items(operation_id=operation.pk, letter_ids=letter_ids, frozen_at=selection.frozen_at)
    _explain_skipped(operation, letter_ids, now)


def _explain_skipped(operation: Operation, letter_ids: list[int], now: datetime) -> None:
    unexplained = dict(
        OperationItem.objects.filter(
            operation=operation, state=ItemState.SKIPPED, detail="", letter_id__gte=letter_ids[0]
        )
        .filter(letter_id__lte=letter_ids[-1])
        .values_list("letter_id", "pk")
    )
    if unexplained:
        reasons = explain(list(unexplained), operation_id=operation.pk)
        with_words = [(pk, reasons[letter_id]) for letter_id, pk in unexplained.items()]
        for pk, detail in with_words:
            OperationItem.objects.filter(pk=pk).update(detail=detail, ended_at=now)
