"""The stages of a replay: what each waits for, and when the replay stops by itself."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction

from jobs.core.stages import StageCounts, Verdict, judge
from jobs.core.words import ItemState, OperationState
from jobs.models import Operation, OperationItem, OperationStage
from jobs.operations.counting import letters_in_words, stage_counts
from jobs.operations.events import write_event

if TYPE_CHECKING:
    from jobs.operations.runner import HoldsDuty

# How often outcomes are looked at, in seconds: while waiting for them, and while sending a stage.
LOOK_SECONDS = 0.5


class StageGate:
    """Says what the stages of one replay let through. ``quota`` is what the current one may still send."""

    def __init__(self) -> None:
        self.quota = 0
        self._judged_at: datetime | None = None

    def judge(
        self, operation: Operation, stage: OperationStage, *, now: datetime, lease: HoldsDuty
    ) -> Verdict:
        """Decide what the stage does. Outcomes are counted twice a second at most, not for every batch."""
        is_fresh = self._judged_at is not None and 0 <= (now - self._judged_at).total_seconds() < LOOK_SECONDS
        if is_fresh and self.quota > 0:
            return Verdict.SEND
        self._judged_at = now
        pending = OperationItem.objects.filter(operation=operation, state=ItemState.PENDING).count()
        counts = stage_counts(operation, stage, pending=pending)
        self.quota = counts.left
        verdict = judge(counts, stop_above_percent=operation.stop_above_percent)
        if verdict == Verdict.STOP:
            _stop(operation, stage, counts, now, lease)
        elif verdict == Verdict.PASS:
            _pass(operation, stage, counts, now, lease)
        elif stage.started_at is None:
            with transaction.atomic():
                OperationStage.objects.filter(pk=stage.pk).update(started_at=now)
                size = letters_in_words(counts.left)
                text = f"Stage {stage.number} started: {size}"
                write_event(operation, at=now, actor=lease.holder, kind="stage", text=text)
        return verdict


def _stop(
    operation: Operation, stage: OperationStage, counts: StageCounts, now: datetime, lease: HoldsDuty
) -> None:
    """Stop by itself, unless an operator paused or ended it in the same moment."""
    share = 100 * counts.bad / max(1, counts.finished)
    unknown = f" or have no known outcome ({counts.unknown:,})" if counts.unknown else ""
    text = (
        f"Stopped itself in stage {stage.number}: {counts.bad:,} of {counts.finished:,} died again{unknown},"
        f" {share:.1f} %, limit {operation.stop_above_percent} %. {counts.pending:,} letters are not sent."
    )
    with transaction.atomic():
        lease.check()
        stopped = Operation.objects.filter(pk=operation.pk, state=OperationState.RUNNING).update(
            state=OperationState.STOPPED, outcome=text
        )
        if stopped:
            write_event(operation, at=now, actor=lease.holder, kind="stopped", text=text)


def _pass(
    operation: Operation, stage: OperationStage, counts: StageCounts, now: datetime, lease: HoldsDuty
) -> None:
    with transaction.atomic():
        lease.check()
        if not OperationStage.objects.filter(pk=stage.pk, ended_at=None).update(
            ended_at=now, started_at=stage.started_at or now
        ):
            return
        if counts.finished:
            share = 100 * counts.bad / counts.finished
            text = (
                f"Stage {stage.number} passed: {counts.bad:,} of {counts.finished:,} died again,"
                f" {share:.1f} %, limit {operation.stop_above_percent} %"
            )
        else:
            text = f"Stage {stage.number} passed: nothing was left to send"
        write_event(operation, at=now, actor=lease.holder, kind="passed", text=text)
