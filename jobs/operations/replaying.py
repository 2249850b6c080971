"""One replay: its items, its stages, its rate, its batches, and the report at its end."""

from __future__ import annotations

from concurrent.futures import Executor
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import transaction
from kombu import Connection

from jobs.core.pace import Pace
from jobs.core.stages import Verdict
from jobs.core.words import ItemState, OperationState
from jobs.models import Operation, OperationItem, OperationStage
from jobs.operations.batches import BATCH, Batches
from jobs.operations.counting import current_stage, letters_in_words
from jobs.operations.events import write_event
from jobs.operations.items import ItemWriter
from jobs.operations.outcomes import report
from jobs.operations.stages import LOOK_SECONDS, StageGate

if TYPE_CHECKING:
    from jobs.operations.runner import HoldsDuty

# Letters at a time before other operations have their turn: less than half a second. Its first batch waits
# for its messages, the others find them made.
STEP = 8 * BATCH


class Replaying:
    """One replay as this process carries it out. All that counts is in rows; the rest is pace and caches."""

    def __init__(self, connection: Connection, helper: Executor) -> None:
        self._items = ItemWriter()
        self._gate = StageGate()
        self._batches = Batches(connection, helper)
        self._pace: Pace | None = None

    def step(self, operation: Operation, *, now: datetime, lease: HoldsDuty) -> float | None:
        """Do one batch of it; return the seconds until the next, None when it has ended or stopped."""
        if operation.started_at is None or operation.carried_out_by != lease.holder:
            _take_up(operation, now, lease)
        if not operation.is_materialised:
            self._items.write_next(operation, now=now, lease=lease)
            return 0.0
        stage = current_stage(operation) if operation.stages else None
        if stage is not None:
            verdict = self._gate.judge(operation, stage, now=now, lease=lease)
            if verdict == Verdict.STOP:
                return None
            if verdict == Verdict.PASS:
                return 0.0
            if verdict == Verdict.WAIT:
                return LOOK_SECONDS
        limit = STEP if stage is None else min(STEP, self._gate.quota)
        rate = operation.rate_per_second
        if rate is None:
            self._pace = None
        else:
            if self._pace is None:
                self._pace = Pace(at=now)
            if self._pace.allowance(rate_per_second=rate, now=now) < min(limit, max(1, int(rate * 0.1))):
                return self._pace.seconds_until(rate_per_second=rate)
            limit = min(limit, self._pace.allowance(rate_per_second=rate, now=now))
        sent, has_more = self._batches.send(operation, stage, limit=limit, now=now, lease=lease)
        if self._pace is not None and rate is not None:
            self._pace.spend(sent)
        self._gate.quota -= sent
        if has_more:
            return (
                0.0 if self._pace is None or rate is None else self._pace.seconds_until(rate_per_second=rate)
            )
        return _wait_or_finish(operation, now, lease)


def _take_up(operation: Operation, now: datetime, lease: HoldsDuty) -> None:
    with transaction.atomic():
        if operation.started_at is None:
            text = f"Started: {letters_in_words(operation.selected_count)}"
            write_event(operation, at=now, actor=lease.holder, kind="started", text=text)
            operation.started_at = now
        else:
            text = f"Taken over from {operation.carried_out_by}"
            write_event(operation, at=now, actor=lease.holder, kind="resumed_after_crash", text=text)
        operation.carried_out_by = lease.holder
        Operation.objects.filter(pk=operation.pk).update(
            started_at=operation.started_at, carried_out_by=lease.holder
        )


def _wait_or_finish(operation: Operation, now: datetime, lease: HoldsDuty) -> float | None:
    is_waiting = OperationItem.objects.filter(
        operation=operation, state__in=[ItemState.SENT, ItemState.PENDING]
    ).exists()
    if is_waiting:
        return LOOK_SECONDS
    with transaction.atomic():
        lease.check()
        text = report(operation)
        finished = Operation.objects.filter(pk=operation.pk, state=OperationState.RUNNING).update(
            state=OperationState.FINISHED, ended_at=now, outcome=text
        )
        if finished:
            OperationStage.objects.filter(operation=operation, ended_at=None).update(ended_at=now)
            write_event(operation, at=now, actor=lease.holder, kind="finished", text=text)
    return None
