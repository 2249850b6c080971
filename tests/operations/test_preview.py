"""What is said before anything is sent, and what is counted while it is."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from typing import Any

import pytest

from jobs import retention, search
from jobs.core.words import PRESUMED_LOST, GroupState, LetterState, OperationKind, Reason
from jobs.errors import OperationRefused
from jobs.models import AuditEntry, DeadLetter, Death, FailureGroup, OperationEvent, OperationItem, Worker
from jobs.operations import Level, Selection, preview, progress
from tests.factories import NOW, make_group, make_headers, make_item, make_letter, make_operation

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]
LATER = NOW + timedelta(minutes=10)
CHORD = {"chord": {"task": "shop.tasks.collect"}}


def worker(**fields: Any) -> Worker:
    values = {
        "hostname": "celery@web-1",
        "queues": ["critical"],
        "seen_at": LATER,
        "tasks": {"shop.tasks.send_receipt": None},
    }
    return Worker.objects.create(**{**values, **fields})


def look(query: str = "", *, kind: OperationKind = OperationKind.REPLAY, now=LATER):
    return preview(Selection.of_query(query, now=now), kind=kind, now=now)


WILL_RUN = "1 has an idempotency key and no completed run: it will run."


def headlines(query: str = "", **options: Any) -> dict[str, Level]:
    return {check.headline: check.level for check in look(query, **options).checks}


def test_the_sum_adds_up_and_the_breakdown_is_that_of_the_selection() -> None:
    worker()
    group = make_group()
    for number in range(4):
        make_letter(group=group, died_at=NOW - timedelta(minutes=number))
    make_letter(group=group, unreplayable="No copy of its message was kept.")
    make_letter(group=group, queue="low")

    seen = look("queue:critical")

    assert (seen.selected, seen.refused, seen.skipped, seen.to_send) == (5, 1, 0, 4)
    assert [(share.name, share.count) for share in seen.by_queue] == [("critical", 5)]
    assert (seen.oldest, seen.newest) == (NOW - timedelta(minutes=3), NOW)
    assert len(seen.samples) == 5
    assert {letter.queue for letter in seen.samples} == {"critical"}


def test_failures_that_have_stopped_and_those_that_go_on_are_told_apart() -> None:
    worker()
    group = make_group()
    make_letter(group=group, idempotency_key="k")
    assert headlines() == {"The failures have stopped.": Level.OK, WILL_RUN: Level.INFO}

    # Outside the selection, of the same kind.
    make_letter(group=group, idempotency_key="k", died_at=LATER - timedelta(seconds=20), queue="low")

    assert headlines("queue:critical") == {
        "The failures are still going on.": Level.WARNING,
        WILL_RUN: Level.INFO,
    }


@pytest.mark.parametrize(
    ("quiet", "words"),
    [
        (timedelta(seconds=20), "the newest 20 s ago."),
        (timedelta(minutes=10, seconds=59), "died at 03:12:00, 10 min ago."),
        (timedelta(hours=2), "died at 03:12:00, 2 h ago."),
        (timedelta(hours=26, minutes=5), "died at 03:12:00, 26 h 5 min ago."),
        (timedelta(days=3), "died at 03:12:00, 3 days ago."),
    ],
)
def test_how_long_ago_the_last_one_died_is_said_as_pages_say_it(quiet: timedelta, words: str) -> None:
    make_letter()

    checks = look(now=NOW + quiet).checks
    texts = [check.text for check in checks if check.headline.startswith("The failures")]

    assert [words in text for text in texts] == [True]


def test_what_will_not_work_is_said_with_the_search_that_leaves_it_out() -> None:
    worker()
    group = make_group()
    make_letter(group=group)
    make_letter(group=group, task="shop.tasks.gone")
    make_letter(group=group, queue="typo")

    checks = {check.headline: check for check in look().checks}

    assert checks["1 will probably die again."].text == "No online worker knows shop.tasks.gone."
    assert checks["1 will probably die again."].query == "-task:shop.tasks.gone"
    assert checks["1 will wait."].query == "-queue:typo"
    assert look("-task:shop.tasks.gone -queue:typo").to_send == 1


def test_without_any_worker_that_alone_is_said() -> None:
    worker(seen_at=LATER - timedelta(minutes=5))
    make_letter()

    assert "No worker is online." in headlines()


def test_letters_that_may_repeat_effects_chord_members_and_unread_bodies_are_counted() -> None:
    worker()
    group = make_group()
    headers = make_headers(task="shop.tasks.send_receipt", task_id="x") | {"group": "g"}
    make_letter(group=group, reason=Reason.TIMED_OUT)
    make_letter(group=group, reason=Reason.TIMED_OUT, idempotency_key="receipt:1")
    make_letter(group=group, embed=CHORD, headers=headers)
    make_letter(group=group, embed=CHORD, headers=headers, reason=Reason.WORKER_LOST, idempotency_key="k")
    make_letter(group=group, body=b"\x80\x04.", content_type="application/x-python-serialize")

    found = headlines()

    assert found["1 may repeat its effects."] == Level.WARNING
    assert found["2 have no idempotency key."] == Level.WARNING
    assert found["2 belonged to a chord."] == Level.INFO
    assert found["1 is replayed unread."] == Level.INFO


def test_jobs_whose_worker_only_fell_silent_may_still_be_running() -> None:
    worker()
    group = make_group()
    presumed: dict[str, Any] = {"group": group, "reason": Reason.WORKER_LOST, "error_type": PRESUMED_LOST}
    make_letter(**presumed, worker="celery@pay-2")
    for name in ("celery@pay-1", "celery@pay-1", "celery@pay-3", "celery@pay-4"):
        make_letter(**presumed, worker=name)
    make_letter(**presumed, idempotency_key="receipt:1")
    make_letter(**presumed, unreplayable="Its message was lost with its worker, so there is nothing to send.")
    make_letter(group=group, reason=Reason.WORKER_LOST)

    checks = {check.headline: check for check in look().checks}

    check = checks["5 may still be running."]
    assert check.level == Level.WARNING
    assert check.text.endswith("that it is gone: celery@pay-1, celery@pay-2, celery@pay-3 and 1 more.")
    assert (check.query, check.query_label) == ("-error:jobs.WorkerLost", "Leave them out")
    assert look(check.query).to_send == 1
    # Of the one that died it is known.
    assert "1 in the middle when the process died" in checks["1 may repeat its effects."].text


def test_a_worker_that_was_seen_to_die_is_no_such_warning() -> None:
    worker()
    make_letter(reason=Reason.WORKER_LOST)

    assert [headline for headline in headlines() if "running" in headline] == []


def test_of_very_many_that_may_still_be_running_the_most_is_said(monkeypatch) -> None:
    monkeypatch.setattr(sys.modules[preview.__module__], "MAX_LOOKED_AT", 2)
    worker()
    for _ in range(3):
        make_letter(reason=Reason.WORKER_LOST, error_type=PRESUMED_LOST)

    assert headlines()["Up to 3 may still be running."] == Level.WARNING


def test_letters_that_failed_with_a_key_are_no_warning() -> None:
    worker()
    make_letter(idempotency_key="receipt:1")
    make_letter(reason=Reason.UNREGISTERED)

    assert [headline for headline in headlines() if "idempotency" in headline] == [WILL_RUN]


def test_of_very_many_letters_a_part_is_looked_at_and_said_to_be_one(monkeypatch) -> None:
    # The name jobs.operations.preview is the function's.
    monkeypatch.setattr(sys.modules[preview.__module__], "MAX_LOOKED_AT", 2)
    worker()
    group = make_group()
    headers = make_headers(task="shop.tasks.send_receipt", task_id="x") | {"group": "g"}
    pickled = {"body": b"\x80\x04.", "content_type": "application/x-python-serialize"}
    for _ in range(3):
        make_letter(group=group, reason=Reason.TIMED_OUT, died_at=NOW - timedelta(hours=1), **pickled)
    make_letter(group=group, embed=CHORD, headers=headers, died_at=NOW)
    make_letter(group=group, died_at=NOW, **pickled)

    found = headlines()

    assert found["Up to 3 may repeat their effects."] == Level.WARNING
    assert found["1 of the newest 2 belonged to a chord."] == Level.INFO
    assert found["1 of the newest 2 is replayed unread."] == Level.INFO


@pytest.mark.parametrize(
    "query", ["", "since:2h", "queue:critical", "reason:failed", "state:any", "state:resolved"]
)
@pytest.mark.parametrize("has_changed", [False, True])
def test_counts_from_indexes_are_those_of_the_letters(query: str, has_changed: bool) -> None:
    group, other = make_group(), make_group()
    for number in range(6):
        make_letter(
            group=group if number % 2 else other,
            task=f"shop.tasks.step_{number % 3}",
            queue="low" if number % 2 else "critical",
            reason=Reason.TIMED_OUT if number % 3 else Reason.FAILED,
            died_at=NOW - timedelta(hours=number),
            state_changed_at=NOW,
        )
    make_letter(state=LetterState.RESOLVED)
    selection = Selection.of_query(query, now=LATER)
    make_letter(died_at=LATER)
    if has_changed:
        again = DeadLetter.objects.filter(state=LetterState.DEAD).order_by("pk")[0]
        DeadLetter.objects.filter(pk=again.pk).update(state_changed_at=LATER + timedelta(seconds=1))

    expected = search.breakdown(selection.queryset())

    assert selection.breakdown() == expected
    assert selection.found().count() == expected.total


def test_the_samples_are_of_the_selection_and_differ() -> None:
    worker()
    group = make_group()
    for number in range(12):
        make_letter(group=group, died_at=NOW - timedelta(minutes=number))
    same_moment = [make_letter(group=group, queue="low", died_at=NOW) for _ in range(7)]

    spread, together = look("queue:critical").samples, look("queue:low").samples

    assert len({letter.pk for letter in spread}) == len({letter.pk for letter in together}) == 5
    assert {letter.queue for letter in spread} == {"critical"}
    assert {letter.pk for letter in together} <= {letter.pk for letter in same_moment}


def test_letters_chosen_by_hand_that_cannot_be_acted_on_are_counted_as_skipped() -> None:
    worker()
    dead, resolved = make_letter(), make_letter(state=LetterState.RESOLVED)

    seen = preview(
        Selection.of_ids([dead.uuid, resolved.uuid], now=LATER), kind=OperationKind.REPLAY, now=LATER
    )

    assert (seen.selected, seen.skipped, seen.to_send) == (2, 1, 1)
    assert "1 will be skipped." in {check.headline for check in seen.checks}


def test_a_restore_looks_at_purged_letters() -> None:
    make_letter(state=LetterState.PURGED)
    make_letter()

    assert look(kind=OperationKind.RESTORE).to_send == 1
    assert look(kind=OperationKind.PURGE).checks == []


def test_a_preview_costs_a_fixed_number_of_queries(django_assert_max_num_queries) -> None:
    worker()
    group = make_group()
    for _ in range(30):
        make_letter(group=group, death=False)

    with django_assert_max_num_queries(30):
        look()


def test_a_selection_survives_a_form_and_refuses_anything_else() -> None:
    make_letter()
    selection = Selection.of_query("since:2h task:send_receipt", now=LATER)

    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection
    for broken in ({}, {**selection.to_json(), "ids": ["x"]}, {**selection.to_json(), "frozen_at": 5}):
        with pytest.raises(OperationRefused, match="select them again"):
            Selection.from_json(broken)
    with pytest.raises(OperationRefused, match="not a letter's id"):
        Selection.of_ids(["1' or 1=1"], now=LATER)
    with pytest.raises(OperationRefused, match="0 letters"):
        Selection.of_ids([], now=LATER)


def test_a_relative_time_is_frozen_when_it_is_confirmed() -> None:
    make_letter()
    selection = Selection.of_query("since:15m", now=LATER)

    again = Selection.from_json(selection.to_json())

    assert again.parsed.since == LATER - timedelta(minutes=15)
    assert again.queryset().count() == 1


def test_progress_adds_up_and_names_the_groups_that_died_again() -> None:
    operation = make_operation(selected_count=7, state="running", started_at=NOW)
    group = make_group(title="KeyError: 'sku'")
    for state in ("done", "done", "died", "sent", "pending", "refused"):
        make_item(
            operation,
            make_letter(group=group, death=False),
            state=state,
            stage=1,
            sent_at=None if state in {"pending", "refused"} else NOW,
        )

    counts = progress(operation, now=NOW + timedelta(seconds=5))

    assert counts.total == 7
    assert counts.total == (
        counts.done
        + counts.died
        + counts.unknown
        + counts.waiting
        + counts.skipped
        + counts.refused
        + counts.not_sent
    )
    assert (counts.done, counts.died, counts.waiting, counts.skipped) == (2, 1, 1, 1)
    assert counts.oldest_waiting_seconds == 5
    assert [(found.title, found.count) for found in counts.died_groups] == [("KeyError: 'sku'", 1)]
    assert [(bucket.done, bucket.died, bucket.waiting) for bucket in counts.sent_series] == [(2, 1, 1)]


@pytest.mark.parametrize("hours", [0.01, 2, 100])
def test_the_series_stays_short_however_long_an_operation_takes(hours: float) -> None:
    operation = make_operation(selected_count=50)
    group = make_group()
    for number in range(50):
        make_item(
            operation,
            make_letter(group=group, death=False),
            sent_at=NOW + timedelta(hours=hours * number / 50),
            state="done",
        )

    counts = progress(operation, now=LATER)

    assert sum(bucket.done for bucket in counts.sent_series) == 50
    assert len(counts.sent_series) <= 130


def test_letters_past_their_time_are_deleted_and_dead_ones_never() -> None:
    due = make_letter(state=LetterState.PURGED, delete_after=NOW)
    kept = [
        make_letter(state=LetterState.PURGED, delete_after=LATER),
        make_letter(state=LetterState.RESOLVED),
        make_letter(state=LetterState.DEAD, delete_after=NOW),
        make_letter(state=LetterState.REPLAYING, delete_after=NOW),
    ]
    operation = make_operation()
    make_item(operation, due, state="done")
    OperationEvent.objects.create(operation=operation, at=NOW, actor="m", kind="died", text="x", letter=due)
    AuditEntry.objects.create(at=NOW, actor="m", action="note", text="x", letter=due)

    deleted = retention.delete_letters(now=NOW)

    assert deleted == 1
    assert set(DeadLetter.objects.values_list("pk", flat=True)) == {letter.pk for letter in kept}
    assert not Death.objects.filter(letter=due.pk).exists()
    assert not OperationItem.objects.exists()
    assert AuditEntry.objects.get().letter is None
    assert OperationEvent.objects.get().letter is None
    assert retention.delete_letters(now=NOW) == 0


def test_groups_become_known_after_a_day_and_are_forgotten_without_letters() -> None:
    new = make_group(first_seen_at=NOW - timedelta(hours=23))
    old = make_group(first_seen_at=NOW - timedelta(hours=25))
    muted = make_group(state=GroupState.MUTED, muted_until=NOW)
    empty = make_group(last_seen_at=NOW - timedelta(days=91), state=GroupState.RESOLVED)
    held = make_group(last_seen_at=NOW - timedelta(days=91), state=GroupState.RESOLVED)
    make_letter(group=held)

    retention.age_groups(now=NOW)

    states = dict(FailureGroup.objects.values_list("pk", "state"))
    assert (states[new.pk], states[old.pk], states[muted.pk]) == ("new", "known", "known")
    assert empty.pk not in states
    assert held.pk in states
