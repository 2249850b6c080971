"""What the idempotency ledger knows, wherever a replay is decided or told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from jobs.core.words import ItemState, LedgerState, LetterState, Reason
from jobs.models import DeadLetter, IdempotencyRecord
from tests.factories import NOW, make_item, make_letter, make_operation
from tests.web.acting import client_of, person, text_of

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=4)
KEY = "receipt:48213"


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(LATER, tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


def ledger(**fields: Any) -> IdempotencyRecord:
    """Insert the ledger's row of the letters' key: done by another job a minute after they died."""
    values = {
        "task": "shop.tasks.send_receipt",
        "key": KEY,
        "state": LedgerState.DONE,
        "task_id": "b04e6d1c-9f7a-4a51-8f0e-2f3b8a6c5d19",
        "holder": "web-2:8121",
        "created_at": NOW,
        "started_at": NOW,
        "completed_at": NOW + timedelta(seconds=61),
        "updated_at": NOW,
    }
    return IdempotencyRecord.objects.create(**{**values, **fields})


def letter_text(client: Client, letter: DeadLetter) -> str:
    return text_of(client.get(reverse("console:letter", args=[letter.uuid])))


def test_a_key_that_is_done_says_by_which_job_and_when(client: Client) -> None:
    ledger()

    text = letter_text(client, make_letter(idempotency_key=KEY))

    assert (
        "Already done at 03:13:01: a replay will do nothing. Job b04e6d1c completed receipt:48213. "
        "A replayed job returns its stored result and runs nothing."
    ) in text


def test_a_key_that_is_done_outweighs_that_its_result_was_not_stored(client: Client) -> None:
    letter = make_letter(idempotency_key=KEY, reason=Reason.RESULT_NOT_STORED)
    ledger(task_id=letter.task_id)

    text = letter_text(client, letter)

    assert "This job itself completed receipt:48213." in text
    assert "A replay repeats its effects" not in text


def test_a_key_that_is_held_says_where_and_until_when(client: Client) -> None:
    ledger(state=LedgerState.RUNNING, completed_at=None, lease_expires_at=LATER + timedelta(seconds=42))

    assert (
        "It is running now, on web-2:8121. Job b04e6d1c holds receipt:48213 until 03:16:42 UTC, and longer while it "
        "runs. A replayed job waits for that; if it is done by then, it does nothing."
    ) in letter_text(client, make_letter(idempotency_key=KEY))


def test_a_hold_that_ran_out_is_taken_over(client: Client) -> None:
    ledger(state=LedgerState.RUNNING, completed_at=None, lease_expires_at=LATER - timedelta(seconds=42))

    text = letter_text(client, make_letter(idempotency_key=KEY))

    assert "A replay takes it over. Job b04e6d1c ran it on web-2:8121 and has shown no life since" in text
    assert "ran out at 03:15:18" in text


def test_a_key_that_is_free_is_run_by_a_replay(client: Client) -> None:
    ledger(state=LedgerState.FREE, completed_at=None)

    text = letter_text(client, make_letter(idempotency_key=KEY))

    assert "The ledger has no completed run of receipt:48213, so a replay runs it." in text
    assert "Once one completes, later replays do nothing." in text


def test_the_key_of_another_task_is_another_key(client: Client) -> None:
    ledger(task="shop.tasks.charge_card")

    assert "The ledger knows no run of receipt:48213" in letter_text(client, make_letter(idempotency_key=KEY))


def test_a_letter_that_cannot_be_replayed_says_that_first(client: Client) -> None:
    ledger()

    text = letter_text(client, make_letter(idempotency_key=KEY, unreplayable="The body is cut off."))

    assert "This letter cannot be replayed as it is." in text
    assert "Already done" not in text


def test_a_replay_that_found_it_done_is_told_in_the_letters_life(client: Client) -> None:
    letter = make_letter(state=LetterState.RESOLVED, idempotency_key=KEY, state_changed_at=NOW)
    operation = make_operation()
    make_item(operation, letter, state=ItemState.ALREADY_DONE, ended_at=NOW + timedelta(seconds=2))

    text = letter_text(client, letter)

    assert "Already done. Its replay found at 03:12:02 that another job had done it" in text
    assert "Already done another job had done its key: nothing ran" in text
    assert "its replay found at 03:12:00 that another job had done it already: nothing ran." in text
