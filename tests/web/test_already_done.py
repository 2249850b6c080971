"""What the idempotency ledger knows, wherever a replay is decided or told."""

from __future__ import annotations

import html
import json
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from jobs.core.words import ItemState, LedgerState, LetterState, Reason
from jobs.models import DeadLetter, IdempotencyRecord, Operation, OperationItem, OperationStage
from tests.factories import NOW, make_group, make_item, make_letter, make_operation
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
    detail = "Job b04e6d1c had done its idempotency key; nothing ran."
    make_item(
        operation, letter, state=ItemState.ALREADY_DONE, ended_at=NOW + timedelta(seconds=2), detail=detail
    )

    text = letter_text(client, letter)

    assert "Already done. Its replay found at 03:12:02 that another job had done it" in text
    assert f"Already done its replay ran nothing {detail}" in text
    assert "its replay found at 03:12:00 that another job had done it already: nothing ran." in text


@pytest.fixture
def replay() -> Operation:
    """A replay of six: 2 done, 3 already done, 1 died again."""
    operation = make_operation(selected_count=6, started_at=NOW, stages=[])
    states = [ItemState.DONE] * 2 + [ItemState.ALREADY_DONE] * 3 + [ItemState.DIED]
    for number, state in enumerate(states):
        make_item(
            operation,
            make_letter(idempotency_key=f"receipt:{number}"),
            state=state,
            stage=1,
            sent_at=NOW,
            ended_at=NOW + timedelta(seconds=1),
        )
    return operation


def test_a_replay_counts_what_was_already_done_apart_from_what_ran(client: Client, replay: Operation) -> None:
    response = client.get(reverse("console:operation", args=[replay.pk]))
    text = text_of(response)

    assert "6 of 6 sent" in text
    assert "Done 2 33.3 % of those finished" in text
    assert "Already done 3 by another job; nothing ran" in text
    assert "Died again 1 16.7 %, in 1 group" in text
    assert 'aria-label="2 done, 3 already done, 1 died"' in response.content.decode()


def test_its_chart_and_its_table_have_a_colour_and_a_column_for_it(client: Client, replay: Operation) -> None:
    response = client.get(reverse("console:operation", args=[replay.pk]))
    figure = json.loads(
        html.unescape(response.content.decode().split('id="sent-figure" hidden>')[1].split("</pre>")[0])
    )

    bars = {bar["name"]: (bar["customdata"], bar["marker"]["color"]) for bar in figure["data"]}
    assert bars["Done"] == ([2], "@c-done")
    assert bars["Already done"] == ([3], "@c-5")
    assert "From (UTC) Done Already done Died again Waiting or unknown 03:12:00 2 3 1 0" in text_of(response)


def test_it_lists_the_letters_that_were_already_done(client: Client, replay: Operation, monkeypatch) -> None:
    monkeypatch.setattr("console.presenters.operation_page.ALREADY_DONE_SHOWN", 2)

    text = text_of(client.get(reverse("console:operation", args=[replay.pk])))

    assert "send_receipt receipt:2 send_receipt receipt:3 The first 2 are shown." in text


def test_a_replay_without_any_says_nothing_of_it(client: Client, replay: Operation) -> None:
    OperationItem.objects.filter(state=ItemState.ALREADY_DONE).update(state=ItemState.DONE)

    text = text_of(client.get(reverse("console:operation", args=[replay.pk])))

    assert "Already done" not in text
    assert "Done 5 83.3 % of those finished" in text


def test_the_list_of_operations_tells_it_as_well(client: Client, replay: Operation) -> None:
    text = text_of(client.get(reverse("console:operations")))

    assert "100 %: 2 done, 3 already done, 1 died again" in text


def test_a_stage_adds_up_with_what_was_already_done(client: Client, replay: Operation) -> None:
    OperationStage.objects.create(operation=replay, number=1, size=None, started_at=NOW, ended_at=NOW)

    assert "1 6 letters Finished 6 2 + 3 already 1 16.7 %" in text_of(
        client.get(reverse("console:operation", args=[replay.pk]))
    )


def replay_text(client: Client) -> str:
    return text_of(client.get(reverse("console:replay"), {"q": ""}))


def test_before_a_replay_the_page_says_what_will_do_nothing_and_what_will_run(client: Client) -> None:
    ledger()
    group = make_group()
    for number in range(3):
        make_letter(group=group, idempotency_key=KEY if number else "receipt:another")

    text = replay_text(client)

    assert "2 are already done. The idempotency ledger has their keys as done. A replay runs nothing:" in text
    assert "1 has an idempotency key and no completed run: it will run." in text
    assert (
        "of letters with the same key one runs and the others end as already done. What a failed attempt did outside, the ledger cannot see."
        in text
    )
    assert "Replay 3 letters" in text
    assert "no idempotency key" not in text


def test_letters_without_a_key_still_say_that_effects_may_repeat(client: Client) -> None:
    make_letter()

    text = replay_text(client)

    assert "1 has no idempotency key. What an attempt did before its error is done again." in text
    assert "no completed run" not in text
    assert "already done" not in text


def test_a_letter_that_cannot_be_replayed_is_not_said_to_run(client: Client) -> None:
    make_letter(idempotency_key=KEY, unreplayable="The body is cut off.")

    assert "no completed run" not in replay_text(client)
