"""Purges and restores: a walk through the selection in the order of ids, with a checkpoint a batch."""

from __future__ import annotations

from array import array
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import F, QuerySet

from jobs.core.words import OperationKind, OperationState
from jobs.models import DeadLetter, Operation
from jobs.operations import rows
from jobs.operations.counting import letters_in_words
from jobs.operations.events import write_event
from jobs.operations.selection import Selection
from jobs.operations.starting import purged_letters

if TYPE_CHECKING:
    from jobs.operations.runner import HoldsDuty

BATCH = 5_000
# Ids are read in pages of eight bytes each: a page is one sorted pass over what is left, a batch is not.
PAGE = 200_000


class Walking:
    """One purge or restore. Remembers a page of ids; the checkpoint in the row is what counts."""

    def __init__(self) -> None:
        self._page = array("q")
        self._at = 0

    def step(self, operation: Operation, *, now: datetime, lease: HoldsDuty) -> float | None:
        """Change one batch, its count and the checkpoint in one transaction.

        The checkpoint is also a lock: who finds another one than it read changes nothing.
        """
        if self._at >= len(self._page):
            self._read_page(operation)
        ids = self._page[self._at : self._at + BATCH].tolist()
        self._at += len(ids)
        with transaction.atomic():
            lease.check()
            held = Operation.objects.filter(
                pk=operation.pk, state=OperationState.RUNNING, checkpoint_id=operation.checkpoint_id
            )
            if not held.update(
                carried_out_by=lease.holder, checkpoint_id=ids[-1] if ids else F("checkpoint_id")
            ):
                self._page, self._at = array("q"), 0
                return 0.0
            if operation.started_at is None:
                Operation.objects.filter(pk=operation.pk).update(started_at=now)
                text = f"Started: {letters_in_words(operation.selected_count)}"
                write_event(operation, at=now, actor=lease.holder, kind="started", text=text)
            elif operation.carried_out_by != lease.holder:
                text = f"Taken over from {operation.carried_out_by} after {operation.changed_count:,} letters"
                write_event(operation, at=now, actor=lease.holder, kind="resumed_after_crash", text=text)
            changed = _change(operation, ids, now) if ids else 0
            Operation.objects.filter(pk=operation.pk).update(changed_count=F("changed_count") + changed)
            if ids:
                return 0.0
            _finish(operation, now, lease.holder)
            return None

    def _read_page(self, operation: Operation) -> None:
        """Read the next ids above the checkpoint, in their order."""
        found = _selected(operation).filter(pk__gt=operation.checkpoint_id).order_by("pk")
        self._page = array("q", found.values_list("pk", flat=True)[:PAGE].iterator(chunk_size=10_000))
        self._at = 0


def _selected(operation: Operation) -> QuerySet[DeadLetter]:
    if operation.restores is not None:
        return purged_letters(operation.restores)
    return Selection.from_json(operation.selection).queryset(OperationKind(operation.kind))


def _change(operation: Operation, ids: list[int], now: datetime) -> int:
    if operation.kind == OperationKind.RESTORE:
        return rows.restore_letters(letter_ids=ids, purged_by=operation.restores_id, now=now)
    assert operation.delete_after is not None  # noqa: S101 - start_purge always sets it
    return rows.purge_letters(
        operation_id=operation.pk,
        letter_ids=ids,
        frozen_at=Selection.from_json(operation.selection).frozen_at,
        delete_after=operation.delete_after,
        now=now,
    )


def _finish(operation: Operation, now: datetime, holder: str) -> None:
    operation.refresh_from_db(fields=["changed_count"])
    done, total = operation.changed_count, operation.selected_count
    verb = "purged" if operation.kind == OperationKind.PURGE else "restored"
    outcome = f"Of {total:,} letters: {done:,} {verb}"
    if done < total:
        outcome += f", {total - done:,} skipped because they had changed since"
    if operation.delete_after is not None and done:
        outcome += f"; they can be restored until {operation.delete_after:%d %b %Y %H:%M} UTC"
    outcome += "."
    Operation.objects.filter(pk=operation.pk).update(
        state=OperationState.FINISHED, ended_at=now, outcome=outcome, is_materialised=True
    )
    write_event(operation, at=now, actor=holder, kind="finished", text=outcome)
