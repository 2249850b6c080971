"""Starting a replay, a purge or a restore. Each is one short transaction; runops does the work."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from jobs import audit, conf
from jobs.audit import Actor
from jobs.core import replay
from jobs.core.stages import check_sizes
from jobs.core.words import LetterState, OperationKind, OperationState
from jobs.errors import OperationRefused
from jobs.models import DeadLetter, Operation, OperationEvent, OperationStage, Worker
from jobs.operations.selection import ACTED_ON, Selection

MAX_RATE_PER_SECOND = 100_000.0
MAX_STAGES = 20
WHY_LENGTH = 2_000
# A purge of more asks for the count to be typed.
TYPED_ABOVE = 1_000
ONLINE_SECONDS = 60


def start_replay(
    *,
    selection: Selection,
    actor: Actor,
    why: str,
    now: datetime,
    rate_per_second: float | None = None,
    stages: Sequence[int | None] = (),
    stop_above_percent: int = 20,
    target_queue: str = "",
    edited_arguments: dict[str, Any] | None = None,
    keeps_task_id: bool = False,
    expected_count: int | None = None,
) -> Operation:
    """Start a replay of the selected letters.

    ``stages`` are sizes such as ``(1, 10, 100, None)``, None for all that are left; empty sends all
    at once and never stops by itself. ``edited_arguments`` is ``{"args": […], "kwargs": {…}}`` and
    is for one letter only. ``expected_count`` is what the operator saw and confirmed.

    Raises:
        OperationRefused: when it cannot start as asked; nothing was changed.
    """
    sizes = _read_stages(stages)
    check_rate(rate_per_second)
    _check_percent(stop_above_percent)
    queue = _check_queue(target_queue)
    with transaction.atomic():
        count = _count(selection, OperationKind.REPLAY, expected_count)
        if edited_arguments is not None:
            _check_edit(selection, edited_arguments, now)
        operation = Operation.objects.create(
            kind=OperationKind.REPLAY,
            created_at=now,
            **_who(actor, why, "replay"),
            selection=selection.to_json() | {"seed": uuid.uuid4().hex},
            selection_words=selection.words,
            selected_count=count,
            rate_per_second=rate_per_second,
            stages=sizes,
            stop_above_percent=stop_above_percent,
            target_queue=queue,
            edited_arguments=edited_arguments,
            keeps_task_id=keeps_task_id,
        )
        OperationStage.objects.bulk_create(
            OperationStage(operation=operation, number=number, size=size)
            for number, size in enumerate(sizes, start=1)
        )
        _confirm(operation, actor, now, letter=_only_letter(selection))
    return operation


def start_purge(
    *,
    selection: Selection,
    actor: Actor,
    why: str,
    now: datetime,
    typed_count: int | None = None,
    expected_count: int | None = None,
) -> Operation:
    """Start a purge of the selected letters; they can be restored until ``delete_after``.

    Raises:
        OperationRefused: when it cannot start as asked, or above 1,000 letters when the typed count
            is not theirs; nothing was changed.
    """
    with transaction.atomic():
        count = _count(selection, OperationKind.PURGE, expected_count)
        if count > TYPED_ABOVE and typed_count != count:
            typed = "nothing" if typed_count is None else f"{typed_count:,}"
            raise OperationRefused(
                f"Cannot purge {count:,} letters: {typed} was typed. Type {count} to confirm how many there are."
            )
        operation = Operation.objects.create(
            kind=OperationKind.PURGE,
            created_at=now,
            **_who(actor, why, "purge"),
            selection=selection.to_json(),
            selection_words=selection.words,
            selected_count=count,
            delete_after=now + conf.current().purge_deadline,
        )
        _confirm(operation, actor, now, letter=_only_letter(selection))
    return operation


def start_restore(
    *,
    operation: Operation | None = None,
    selection: Selection | None = None,
    actor: Actor,
    why: str,
    now: datetime,
) -> Operation:
    """Start a restore: of all that a purge hid, or of selected letters that are purged.

    Raises:
        OperationRefused: when there is nothing to bring back; nothing was changed.
    """
    if (operation is None) == (selection is None):
        raise OperationRefused("Cannot restore: give either the purge to undo or the letters, not both.")
    with transaction.atomic():
        if operation is not None:
            count = _count_purged(operation)
            words = f"All letters that operation {operation.pk} purged"
            frozen: dict[str, Any] = {}
            letter = None
        else:
            assert selection is not None  # noqa: S101 - the check above says so
            count = _count(selection, OperationKind.RESTORE, None)
            words = selection.words
            frozen = selection.to_json()
            letter = _only_letter(selection)
        restore = Operation.objects.create(
            kind=OperationKind.RESTORE,
            created_at=now,
            **_who(actor, why, "restore"),
            selection=frozen,
            selection_words=words,
            selected_count=count,
            restores=operation,
        )
        _confirm(restore, actor, now, letter=letter)
    return restore


def check_rate(rate_per_second: float | None) -> None:
    """Check a rate in letters a second; None is as fast as it goes.

    Raises:
        OperationRefused: when it is not a number above zero.
    """
    if rate_per_second is None:
        return
    if not math.isfinite(rate_per_second) or not 0 < rate_per_second <= MAX_RATE_PER_SECOND:
        raise OperationRefused(
            f"Cannot send {rate_per_second:g} letters a second."
            f" Give a rate above 0 and up to {MAX_RATE_PER_SECOND:,.0f}, or none to send as fast as it goes."
        )


def purged_letters(operation: Operation) -> QuerySet[DeadLetter]:
    """Return what a purge hid and nobody has brought back or deleted since."""
    return DeadLetter.objects.filter(purged_by=operation, state=LetterState.PURGED)


def _count_purged(operation: Operation) -> int:
    if operation.kind != OperationKind.PURGE:
        raise OperationRefused(
            f"Cannot undo operation {operation.pk}: it is a {operation.kind}, and only a purge can be undone."
        )
    operation.refresh_from_db()
    if operation.state in {OperationState.RUNNING, OperationState.PAUSED}:
        raise OperationRefused(
            f"Cannot undo operation {operation.pk}: it is still {operation.state}."
            " Cancel it first, or wait for its end."
        )
    count = purged_letters(operation).count()
    if not count:
        raise OperationRefused(
            f"Cannot undo operation {operation.pk}: none of its letters is purged any more."
            " They were restored, or deleted after their time."
        )
    return count


def _read_stages(stages: Sequence[int | None]) -> list[int | None]:
    if len(stages) > MAX_STAGES:
        raise OperationRefused(f"Cannot replay in {len(stages)} stages: at most {MAX_STAGES} are kept apart.")
    try:
        return check_sizes(stages)
    except ValueError as error:
        raise OperationRefused(
            f"Cannot replay in these stages: {error}. Write for instance 1, 10, 100, all."
        ) from error


def _check_percent(percent: int) -> None:
    if not 0 <= percent <= 100:
        raise OperationRefused(
            f"Cannot stop above {percent} %: a share is between 0 and 100. 100 never stops."
        )


def _check_queue(name: str) -> str:
    queue = name.strip()
    if len(queue) > 255 or not queue.isprintable():
        raise OperationRefused(
            f"Cannot send to the queue {queue[:80]!r}: a queue's name has at most 255 printable characters."
        )
    if queue in {"jobs.dead", "jobs.runs"}:
        raise OperationRefused(
            f"Cannot send to the queue {queue}: the collector reads it. Choose one that a worker consumes."
        )
    return queue


def _check_edit(selection: Selection, edited: dict[str, Any], now: datetime) -> None:
    """Refuse an edit that cannot work: of many letters, of a body that stays closed, of wrong arguments."""
    args, kwargs = edited.get("args"), edited.get("kwargs")
    if edited.keys() != {"args", "kwargs"} or not isinstance(args, list) or not isinstance(kwargs, dict):
        raise OperationRefused(
            "Cannot replay with these arguments: they are not a list of args and an object of kwargs."
            ' Write for instance {"args": [], "kwargs": {"order_id": 48213}}.'
        )
    letters = list(selection.queryset()[:2])
    if len(letters) != 1:
        raise OperationRefused(
            "Cannot edit the arguments of more than one letter at once. Replay that letter by itself."
        )
    letter = letters[0]
    if not replay.is_json(letter.content_type):
        raise OperationRefused(
            f"Cannot edit the arguments of letter {letter.short_id}: its body is"
            f" {letter.content_type or 'of an unknown type'}, and only application/json is opened."
            " Replay it unedited."
        )
    known = Worker.objects.filter(seen_at__gte=now - timedelta(seconds=ONLINE_SECONDS)).values_list(
        "hostname", "tasks"
    )
    signatures = {str(tasks[letter.task]): tasks[letter.task] for _, tasks in known if tasks.get(letter.task)}
    complaints = [replay.explain_mismatch(parameters, args, kwargs) for parameters in signatures.values()]
    # During a deploy two signatures are online: what fits one of them may be what is wanted.
    if complaints and all(complaints):
        raise OperationRefused(f"Cannot replay {letter.task} with these arguments: {complaints[0]}.")


def _count(selection: Selection, kind: OperationKind, expected_count: int | None) -> int:
    selection.check_ids()
    acted_on = selection.found(kind).count()
    if not acted_on:
        wanted = ACTED_ON[kind]
        other = selection.left_out(kind).first()
        raise OperationRefused(
            f"Cannot {kind} these letters ({selection.words[:200]}): {_why_none(other, wanted)}."
            " Search again to see what they are now."
        )
    count = acted_on + (selection.left_out(kind).count() if selection.is_by_hand else 0)
    if expected_count is not None and expected_count not in {count, acted_on}:
        raise OperationRefused(
            f"Cannot {kind} {expected_count:,} letters: {count:,} match now."
            " Look at the selection again and confirm the new count."
        )
    return count


def _why_none(other: DeadLetter | None, wanted: str) -> str:
    """Say why nothing of a selection can be acted on, by one of the letters that are left out."""
    if other is None:
        return f"none of them is {wanted}"
    if other.state == wanted:
        # Replayed and dead again, say: it is not the letter that was looked at.
        return f"none of them is as you saw it. Letter {other.short_id} changed at {other.state_changed_at:%H:%M:%S} UTC"
    return f"none of them is {wanted}. Letter {other.short_id} is {other.state}"


def _who(actor: Actor, why: str, verb: str) -> dict[str, Any]:
    if len(why) > WHY_LENGTH:
        raise OperationRefused(
            f"Cannot {verb} with a reason of {len(why):,} characters: at most {WHY_LENGTH:,} are kept. Shorten it."
        )
    return {
        "created_by_id": None if actor.user is None else actor.user.pk,
        "actor": str(actor),
        "why": why.strip(),
    }


def _only_letter(selection: Selection) -> DeadLetter | None:
    if len(selection.ids) != 1:
        return None
    return DeadLetter.objects.filter(uuid=selection.ids[0]).only("pk").first()


def _confirm(operation: Operation, actor: Actor, now: datetime, *, letter: DeadLetter | None) -> None:
    count = f"{operation.selected_count:,} letter{'' if operation.selected_count == 1 else 's'}"
    OperationEvent.objects.create(
        operation=operation, at=now, actor=str(actor), kind="confirmed", text=f"Confirmed: {count} frozen"
    )
    audit.record(
        actor=actor,
        action=operation.kind,
        text=f"started the {operation.kind} of {count}: {operation.selection_words}",
        why=operation.why,
        letter=letter,
        operation=operation,
        details={"count": operation.selected_count},
        now=now,
    )
