"""Operations that cannot be are refused, with the reason, and change nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.core.words import OperationState
from jobs.models import AuditEntry, DeadLetter, Operation
from jobs.operations import (
    OperationRefused,
    Selection,
    cancel,
    continue_stage,
    pause,
    resume,
    start_replay,
)
from tests.operations.starting import MARA, letters, replay

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate_per_second": 0}, "0 letters a second"),
        ({"rate_per_second": float("nan")}, "nan letters a second"),
        ({"stages": (1, 0)}, "stage 2 has 0 letters"),
        ({"stages": (None, 5)}, "stage 1 of 2 takes all"),
        ({"stop_above_percent": 101}, "101 %"),
        ({"target_queue": "a\nb"}, "printable"),
        ({"target_queue": "jobs.dead"}, "the collector reads it"),
        ({"expected_count": 5}, "2 match now"),
        ({"edited_arguments": {"args": []}}, "list of args"),
        ({"edited_arguments": {"args": [], "kwargs": {}}}, "more than one letter"),
        ({"why": "x" * 2001}, "2,001 characters"),
    ],
)
def test_a_replay_that_cannot_be_is_refused_and_changes_nothing(database, clock, options, words) -> None:
    letters(2)

    with pytest.raises(OperationRefused) as refusal:
        start_replay(
            **{
                "selection": Selection.of_query("", now=clock.now),
                "actor": MARA,
                "why": "",
                "now": clock.now,
                **options,
            }
        )

    assert words in str(refusal.value)
    assert not Operation.objects.exists()


def test_a_letter_that_died_again_after_it_was_looked_at_is_refused_with_when(database, clock) -> None:
    letter = letters(1)[0]
    seen = Selection.of_ids([letter.uuid], now=clock.now)
    DeadLetter.objects.filter(pk=letter.pk).update(state_changed_at=clock.now + timedelta(minutes=1))

    with pytest.raises(OperationRefused, match=f"Letter {letter.short_id} changed at"):
        start_replay(selection=seen, actor=MARA, why="", now=clock.now + timedelta(minutes=2))


def test_letters_that_are_not_dead_are_skipped_when_chosen_by_hand_and_refused_when_all(
    database, clock
) -> None:
    resolved, dead = letters(1, state="resolved")[0], letters(1)[0]

    with pytest.raises(OperationRefused, match="none of them is dead"):
        start_replay(
            selection=Selection.of_ids([resolved.uuid], now=clock.now), actor=MARA, why="", now=clock.now
        )
    operation = start_replay(
        selection=Selection.of_ids([resolved.uuid, dead.uuid], now=clock.now),
        actor=MARA,
        why="",
        now=clock.now,
    )

    assert operation.selected_count == 2


@pytest.mark.parametrize(
    ("action", "state", "words"),
    [
        (pause, OperationState.PAUSED, "it is paused, and must be running"),
        (pause, OperationState.FINISHED, "it is finished"),
        (resume, OperationState.RUNNING, "must be paused or stopped"),
        (cancel, OperationState.CANCELLED, "it is cancelled"),
        (continue_stage, OperationState.PAUSED, "it is paused"),
    ],
)
def test_a_change_in_the_wrong_state_is_refused_with_the_state(database, clock, action, state, words) -> None:
    letters(1)
    operation = replay(clock)
    Operation.objects.update(state=state)

    with pytest.raises(OperationRefused, match=words):
        action(operation=operation, actor=MARA, now=clock.now)

    assert not AuditEntry.objects.exclude(action="replay").exists()
