"""Starts replays of letters, and reads how far they are."""

from __future__ import annotations

from jobs.models import DeadLetter, Operation, OperationItem
from jobs.operations import (
    Actor,
    Selection,
    start_replay,
)
from tests.broker_side import Clock
from tests.factories import make_group, make_letter

MARA = Actor(name="mara")


def letters(count: int, **fields: object) -> list[DeadLetter]:
    group = make_group()
    return [make_letter(group=group, kwargs={"order_id": n}, death=False, **fields) for n in range(count)]


def replay(clock: Clock, query: str = "", **options: object) -> Operation:
    return start_replay(
        selection=Selection.of_query(query, now=clock.now), actor=MARA, why="fixed", now=clock.now, **options
    )


def states(operation: Operation) -> list[str]:
    return list(
        OperationItem.objects.filter(operation=operation).order_by("pk").values_list("state", flat=True)
    )
