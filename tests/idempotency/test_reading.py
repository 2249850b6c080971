"""What pages, previews and retention make of the ledger."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import retention
from jobs.core.stages import StageCounts, Verdict, judge
from jobs.core.words import ItemState, LedgerState, OperationKind
from jobs.idempotency import LedgerLine, states
from jobs.idempotency.checks import check_retention
from jobs.models import IdempotencyRecord, JobProgress, Operation
from jobs.operations import Selection, preview
from jobs.operations.outcomes import report
from jobs.operations.progress import progress
from tests.factories import NOW, make_group, make_item, make_letter, make_operation

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

TASK = "shop.tasks.send_receipt"


def key(name: str, **fields: Any) -> IdempotencyRecord:
    values = {
        "task": TASK,
        "key": name,
        "state": LedgerState.DONE,
        "task_id": "the-job",
        "created_at": NOW,
        "started_at": NOW,
        "completed_at": NOW,
        "updated_at": NOW,
    }
    return IdempotencyRecord.objects.create(**{**values, **fields})


def test_the_states_of_many_keys_are_one_query() -> None:
    for number in range(20):
        key(f"receipt:{number}")
    key("receipt:1", task="shop.other", state=LedgerState.RUNNING, holder="web:7", lease_expires_at=NOW)

    with CaptureQueriesContext(connection) as queries:
        found = states(
            [(TASK, f"receipt:{number}") for number in range(1, 30)] + [("shop.other", "receipt:1")]
        )

    assert len(queries) == 1
    assert len(found) == 20
    assert found[TASK, "receipt:1"] == LedgerLine(LedgerState.DONE, "the-job", NOW, None, "")
    assert found["shop.other", "receipt:1"] == LedgerLine(LedgerState.RUNNING, "the-job", NOW, NOW, "web:7")
    assert (TASK, "receipt:29") not in found


def test_without_a_key_nothing_is_asked() -> None:
    with CaptureQueriesContext(connection) as queries:
        assert states([(TASK, ""), ("", "")]) == {}

    assert len(queries) == 0


def look() -> Any:
    return preview(Selection.of_query("", now=NOW + timedelta(hours=1)), kind=OperationKind.REPLAY, now=NOW)


def test_a_preview_counts_what_is_already_done_and_says_what_a_replay_does() -> None:
    for number in range(5):
        make_letter(task=TASK, idempotency_key=f"receipt:{number}")
    make_letter(task="shop.other", idempotency_key="receipt:1")
    make_letter(task=TASK)
    key("receipt:0")
    key("receipt:1")
    key("receipt:2", state=LedgerState.FREE)
    key("receipt:3", state=LedgerState.RUNNING, lease_expires_at=NOW)

    shown = look()

    assert shown.already_done == 2
    told = [check for check in shown.checks if "already done" in check.headline]
    assert [check.headline for check in told] == ["2 are already done."]
    assert "A replay runs nothing" in told[0].text


def test_a_preview_without_done_keys_does_not_speak_of_them() -> None:
    make_letter(task=TASK, idempotency_key="receipt:1")

    shown = look()

    assert shown.already_done == 0
    assert not [check for check in shown.checks if "already done" in check.headline]


def test_of_very_many_letters_the_newest_are_looked_up_and_that_is_said(monkeypatch) -> None:
    # The name jobs.operations.preview is the function's.
    monkeypatch.setattr(sys.modules[preview.__module__], "MAX_LOOKED_AT", 3)
    for number in range(5):
        key(f"receipt:{number}")
        make_letter(task=TASK, idempotency_key=f"receipt:{number}", died_at=NOW + timedelta(seconds=number))

    shown = look()

    assert shown.already_done == 3
    assert "3 of the newest 3 are already done." in [check.headline for check in shown.checks]


def replayed() -> Operation:
    """A replay with letters that ended in every way."""
    operation = make_operation(selected_count=6, is_materialised=True)
    for state in (
        *(ItemState.DONE, ItemState.ALREADY_DONE, ItemState.ALREADY_DONE),
        *(ItemState.DIED, ItemState.SENT, ItemState.PENDING),
    ):
        sent_at = None if state == ItemState.PENDING else NOW
        make_item(operation, make_letter(group=make_group()), state=state, sent_at=sent_at)
    return operation


def test_the_counts_of_an_operation_add_up_with_what_was_already_done() -> None:
    operation = replayed()

    counts = progress(operation, now=NOW)

    assert (counts.done, counts.already_done, counts.died, counts.sent) == (1, 2, 1, 5)
    assert counts.total == (
        counts.done
        + counts.already_done
        + counts.died
        + counts.unknown
        + counts.waiting
        + counts.skipped
        + counts.refused
        + counts.not_sent
    )
    series = [
        (bucket.done, bucket.already_done, bucket.died, bucket.waiting) for bucket in counts.sent_series
    ]
    assert series == [(1, 2, 1, 1)]
    assert not counts.did_all


def test_an_operation_whose_letters_were_all_done_did_all() -> None:
    operation = make_operation(selected_count=2, is_materialised=True)
    for state in (ItemState.DONE, ItemState.ALREADY_DONE):
        make_item(operation, make_letter(), state=state)

    assert progress(operation, now=NOW).did_all


def test_the_report_names_what_was_already_done() -> None:
    assert report(replayed()) == (
        "Of 6 replayed: 1 done, 1 died again in 1 group, 2 already done, 1 still waiting for their outcome, 1 not sent."
    )


def test_letters_that_were_already_done_let_a_stage_pass() -> None:
    counts = StageCounts(size=10, pending=5, waiting=0, done=0, died=0, unknown=0, already_done=10)

    assert (counts.sent, counts.finished, counts.bad, counts.left) == (10, 10, 0, 0)
    assert judge(counts, stop_above_percent=20) == Verdict.PASS


def test_keys_are_forgotten_so_many_days_after_their_last_change(settings) -> None:
    settings.JOBS_IDEMPOTENCY_RETENTION_DAYS = 30
    past, recent = NOW - timedelta(days=31), NOW - timedelta(days=29)

    def made(name: str, at: datetime, **fields: Any) -> None:
        key(name, updated_at=at, **fields)

    made("old done", past, completed_at=past)
    made("old free", past, state=LedgerState.FREE, completed_at=None)
    made("old lease", past, state=LedgerState.RUNNING, completed_at=None, lease_expires_at=past)
    made("live lease", past, state=LedgerState.RUNNING, completed_at=None, lease_expires_at=recent)
    made("done", recent, completed_at=recent)
    made("free", recent, state=LedgerState.FREE, completed_at=None)
    for name, at in (("gone", past), ("kept", recent)):
        JobProgress.objects.create(task_id=name, task=TASK, done=1, started_at=at, updated_at=at)

    deleted = retention.delete_ledger(now=NOW)

    assert deleted == 4
    assert set(IdempotencyRecord.objects.values_list("key", flat=True)) == {"live lease", "done", "free"}
    assert [line.task_id for line in JobProgress.objects.all()] == ["kept"]
    assert retention.delete_ledger(now=NOW) == 0


def test_keys_are_forgotten_in_batches_up_to_a_limit() -> None:
    past = NOW - timedelta(days=31)
    IdempotencyRecord.objects.bulk_create(
        IdempotencyRecord(
            task=TASK,
            key=f"receipt:{number}",
            state=LedgerState.DONE,
            task_id="a",
            created_at=past,
            started_at=past,
            updated_at=past,
        )
        for number in range(1_200)
    )

    assert retention.delete_ledger(now=NOW, limit=500) == 500
    assert retention.delete_ledger(now=NOW) == 700


@pytest.mark.parametrize(
    ("days", "found"), [(30, None), (0, "jobs.E040"), (-1, "jobs.E040"), (2, "jobs.W041")]
)
def test_a_retention_that_forgets_too_soon_is_told(settings, days, found) -> None:
    settings.JOBS_IDEMPOTENCY_RETENTION_DAYS = days

    assert [each.id for each in check_retention(None)] == ([found] if found else [])
