"""A purge and the restore of it, on both databases."""

from __future__ import annotations

import pytest

from jobs.core.words import LetterState
from jobs.models import DeadLetter
from jobs.operations import (
    OperationRefused,
    Selection,
    start_purge,
    start_replay,
    start_restore,
)
from jobs.operations.runner import Runner
from tests.broker_side import Carrier, queued
from tests.operations.starting import MARA, letters

pytestmark = pytest.mark.django_db


def test_a_purge_hides_its_letters_and_its_restore_brings_all_back(carrier, clock) -> None:
    letters(7)
    letters(2, queue="default")
    purge = start_purge(
        selection=Selection.of_query("queue:critical", now=clock.now), actor=MARA, why="noise", now=clock.now
    )
    carrier.until_ended(purge)

    assert DeadLetter.objects.filter(state="purged", purged_by=purge).count() == 7
    assert purge.outcome.startswith("Of 7 letters: 7 purged; they can be restored until 19 Nov 2026")

    undo = start_restore(operation=purge, actor=MARA, why="mistake", now=clock.now)
    carrier.until_ended(undo)

    assert DeadLetter.objects.filter(state="dead", purged_by=None, delete_after=None).count() == 9
    assert undo.outcome == "Of 7 letters: 7 restored."
    with pytest.raises(OperationRefused, match="none of its letters is purged any more"):
        start_restore(operation=purge, actor=MARA, why="again", now=clock.now)


def test_a_purge_leaves_what_has_been_replayed_since_its_freeze(carrier, clock, broker) -> None:
    letters(3)
    selection = Selection.of_query("", now=clock.now)
    chosen = DeadLetter.objects.order_by("pk").first()
    clock.advance(1)
    start_replay(selection=Selection.of_ids([chosen.uuid], now=clock.now), actor=MARA, why="", now=clock.now)
    carrier.until(lambda: len(queued(broker)) == 1)

    purge = start_purge(selection=selection, actor=MARA, why="", now=clock.now)
    carrier.until_ended(purge)

    chosen.refresh_from_db()
    assert chosen.state == LetterState.REPLAYING
    assert purge.changed_count == 2


def test_a_purge_goes_on_at_its_checkpoint_after_a_crash_and_counts_once(carrier, clock, monkeypatch) -> None:
    letters(9)
    from jobs.operations import walking

    monkeypatch.setattr(walking, "BATCH", 2)
    purge = start_purge(selection=Selection.of_query("", now=clock.now), actor=MARA, why="", now=clock.now)
    carrier.once()
    carrier.once()

    successor = Carrier.__new__(Carrier)
    successor.clock, successor.lease, successor.runner = (
        clock,
        carrier.lease,
        Runner(carrier.runner._connection),
    )
    successor.until_ended(purge)

    assert purge.changed_count == 9
    assert DeadLetter.objects.filter(purged_by=purge).count() == 9


def test_a_big_purge_asks_for_its_count(carrier, clock, monkeypatch) -> None:
    letters(3)
    from jobs.operations import starting

    monkeypatch.setattr(starting, "TYPED_ABOVE", 2)
    selection = Selection.of_query("", now=clock.now)

    with pytest.raises(OperationRefused, match=r"2 was typed\. Type 3"):
        start_purge(selection=selection, actor=MARA, why="", now=clock.now, typed_count=2)
    start_purge(selection=selection, actor=MARA, why="", now=clock.now, typed_count=3)
