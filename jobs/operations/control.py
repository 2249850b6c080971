"""Steering an operation that runs. Each call is one transaction and one conditional UPDATE."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F

from jobs import audit
from jobs.audit import Actor
from jobs.core.stages import StageCounts
from jobs.core.words import ItemState, OperationKind, OperationState
from jobs.errors import OperationRefused
from jobs.models import Operation, OperationEvent, OperationItem, OperationStage
from jobs.operations.counting import current_stage, item_counts, stage_counts
from jobs.operations.outcomes import give_up
from jobs.operations.starting import check_rate

ACTIVE = (OperationState.RUNNING, OperationState.PAUSED, OperationState.STOPPED)


def pause(*, operation: Operation, actor: Actor, now: datetime) -> Operation:
    """Stop sending after the batch that is on its way; the place is kept.

    Raises:
        OperationRefused: when it is not running.
    """
    with transaction.atomic():
        _change(operation, "pause", (OperationState.RUNNING,), state=OperationState.PAUSED)
        _write(operation, actor, now, "paused", "pause", "Paused", "paused")
    return operation


def resume(*, operation: Operation, actor: Actor, now: datetime) -> Operation:
    """Go on with a paused operation, or in spite of what stopped it.

    Resuming one that stopped itself forgives what died so far: its stage goes on, or passes when
    all of it has been sent, and only new outcomes can stop it again.

    Raises:
        OperationRefused: when it is neither paused nor stopped.
    """
    with transaction.atomic():
        was_stopped = Operation.objects.filter(pk=operation.pk, state=OperationState.STOPPED).exists()
        _change(
            operation,
            "resume",
            (OperationState.PAUSED, OperationState.STOPPED),
            state=OperationState.RUNNING,
            outcome="",
        )
        text = "Resumed"
        if was_stopped:
            text = "Resumed in spite of " + _forgive(operation, now)
        _write(operation, actor, now, "resumed", "resume", text, "resumed")
    return operation


def cancel(*, operation: Operation, actor: Actor, now: datetime) -> Operation:
    """End it. What was sent stays sent; what was not stays as it is.

    Raises:
        OperationRefused: when it has ended already.
    """
    with transaction.atomic():
        _change(operation, "cancel", ACTIVE, state=OperationState.CANCELLED, ended_at=now)
        if operation.kind == OperationKind.REPLAY:
            counts = item_counts(operation)
            sent = sum(counts.values()) - sum(
                counts.get(state, 0) for state in (ItemState.PENDING, ItemState.SKIPPED, ItemState.REFUSED)
            )
            outcome = f"Cancelled by {actor}: {sent:,} of {operation.selected_count:,} had been sent."
        else:
            verb = "purged" if operation.kind == OperationKind.PURGE else "restored"
            outcome = (
                f"Cancelled by {actor}: {operation.changed_count:,} of {operation.selected_count:,}"
                f" had been {verb}."
            )
        operation.outcome = outcome
        operation.save(update_fields=["outcome"])
        _write(operation, actor, now, "cancelled", "cancel", outcome, "cancelled")
    return operation


def set_rate(
    *, operation: Operation, rate_per_second: float | None, actor: Actor, now: datetime
) -> Operation:
    """Change how many letters a second are sent from now on; None is as fast as it goes.

    Raises:
        OperationRefused: when the rate is none, or the operation has ended or is not a replay.
    """
    check_rate(rate_per_second)
    if operation.kind != OperationKind.REPLAY:
        raise OperationRefused(
            f"Cannot set the rate of operation {operation.pk}: it is a {operation.kind}, and only a replay has one."
        )
    with transaction.atomic():
        _change(operation, "set the rate of", ACTIVE, rate_per_second=rate_per_second)
        words = "no limit" if rate_per_second is None else f"{rate_per_second:g} letters a second"
        _write(
            operation,
            actor,
            now,
            "rate",
            "set_rate",
            f"Rate set to {words}",
            f"set the rate to {words} of",
            details={"rate_per_second": rate_per_second},
        )
    return operation


def continue_stage(*, operation: Operation, actor: Actor, now: datetime) -> Operation:
    """Stop waiting for the outcomes of what has been sent.

    A stage passes at once and the next one starts; its outcomes still count when they come. After
    the last letter, those without an outcome become unknown and the operation finishes.

    Raises:
        OperationRefused: when it is not running or waits for nothing.
    """
    if operation.kind != OperationKind.REPLAY:
        raise OperationRefused(
            f"Cannot continue operation {operation.pk}: it is a {operation.kind} and waits for no outcomes."
        )
    with transaction.atomic():
        _change(operation, "continue", (OperationState.RUNNING,))
        counts = item_counts(operation)
        waiting = counts.get(ItemState.SENT, 0)
        stage = current_stage(operation)
        stage_left = 0
        if stage is not None:
            in_stage = stage_counts(operation, stage, pending=counts.get(ItemState.PENDING, 0))
            waiting, stage_left = in_stage.waiting, in_stage.left
        if not operation.is_materialised or stage_left or (stage is None and counts.get(ItemState.PENDING)):
            raise OperationRefused(
                f"Cannot continue operation {operation.pk}: it is still sending. Wait until it waits for outcomes."
            )
        if not waiting:
            raise OperationRefused(f"Cannot continue operation {operation.pk}: it waits for no outcome.")
        if stage is not None and counts.get(ItemState.PENDING):
            OperationStage.objects.filter(pk=stage.pk).update(ended_at=now)
            text = f"Stage {stage.number} continued without waiting for {waiting:,} outcomes"
        else:
            give_up(
                OperationItem.objects.filter(operation=operation, state=ItemState.SENT),
                detail=f"{actor} stopped waiting for its outcome; its job may have run.",
                now=now,
            )
            text = f"Stopped waiting for {waiting:,} outcomes"
        _write(operation, actor, now, "note", "continue", text, "stopped waiting for outcomes of")
    return operation


def _change(operation: Operation, verb: str, allowed: Iterable[OperationState], **values: Any) -> None:
    """Change the row if its state allows it now, and bring ``operation`` up to date.

    Raises:
        OperationRefused: when the state does not allow it.
    """
    states = list(allowed)
    # Without values the row is still locked by an UPDATE, so that the runner cannot pass in between.
    changed = Operation.objects.filter(pk=operation.pk, state__in=states).update(
        **(values or {"state": F("state")})
    )
    operation.refresh_from_db()
    if not changed:
        raise OperationRefused(
            f"Cannot {verb} operation {operation.pk}: it is {operation.get_state_display().lower()},"
            f" and must be {' or '.join(states)} for that."
        )


def _forgive(operation: Operation, now: datetime) -> str:
    """Leave what finished so far out of the stage's share; say what that was."""
    stage = current_stage(operation)
    if stage is None:
        return "what stopped it"
    pending = OperationItem.objects.filter(operation=operation, state=ItemState.PENDING).count()
    counts = stage_counts(operation, stage, pending=pending)
    plain = StageCounts(counts.size, pending, counts.waiting, counts.done, counts.died, counts.unknown)
    OperationStage.objects.filter(pk=stage.pk).update(
        forgiven_finished=plain.finished,
        forgiven_bad=plain.bad,
        ended_at=None if plain.left or plain.waiting else now,
    )
    return f"{plain.bad:,} of {plain.finished:,} that died again in stage {stage.number}"


def _write(
    operation: Operation,
    actor: Actor,
    now: datetime,
    kind: str,
    action: str,
    event: str,
    audited: str,
    *,
    details: dict[str, Any] | None = None,
) -> None:
    OperationEvent.objects.create(operation=operation, at=now, actor=str(actor), kind=kind, text=event[:500])
    audit.record(
        actor=actor,
        action=action,
        text=f"{audited} operation {operation.pk} ({operation.kind} of {operation.selected_count:,} letters)",
        operation=operation,
        details=details,
        now=now,
    )
