"""What polls are answered: rows that changed, a letter that is being replayed, a purge that has just ended."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.core.words import LetterState, OperationKind, OperationState
from jobs.models import DeadLetter, Operation
from jobs.roles import VIEWER
from tests.factories import NOW, make_item, make_letter, make_operation
from tests.web.acting import client_of, person, text_of
from tests.web.people import HTMX

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW + timedelta(minutes=4), tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


def poll_list(client: Client, shown: dict[DeadLetter, str]) -> str:
    rows = ",".join(f"{letter.uuid}:{version}" for letter, version in shown.items())
    response = client.get("/dead-letters/", {"after": "0", "rows": rows}, **HTMX)
    assert response.status_code == 200
    return response.content.decode()


def row_ids(answer: str) -> list[str]:
    return re.findall(r'<tr class="row[^"]*" id="letter-([0-9a-f-]+)"', answer)


def test_a_poll_is_answered_the_rows_that_changed_and_no_other(client: Client) -> None:
    same, replaying = make_letter(), make_letter(state=LetterState.REPLAYING)
    again = make_letter(deaths=2)

    answer = poll_list(client, {same: "dead.1", replaying: "dead.1", again: "replaying.1"})

    assert set(row_ids(answer)) == {str(replaying.uuid), str(again.uuid)}
    row = answer[answer.index(f'id="letter-{replaying.uuid}"') :]
    row = " ".join(row[: row.index(">")].split())
    assert 'data-version="replaying.1" hx-swap-oob="true"' in row


def test_a_row_says_its_version_and_a_page_is_not_swapped_out_of_band(client: Client) -> None:
    make_letter(deaths=3)

    body = client.get("/dead-letters/").content.decode()

    assert 'data-version="dead.3"' in body
    assert "hx-swap-oob" not in body


def test_rows_nobody_can_have_seen_are_left_out(client: Client) -> None:
    rows = f"nonsense,{uuid.uuid4()}:dead.1,:,'--"

    response = client.get("/dead-letters/", {"after": "0", "rows": rows}, **HTMX)

    assert response.status_code == 200
    assert row_ids(response.content.decode()) == []


def test_a_poll_asks_the_database_the_same_for_one_row_and_for_fifty(client: Client) -> None:
    letters = [make_letter(state=LetterState.REPLAYING, death=False) for _ in range(50)]
    poll_list(client, dict.fromkeys(letters, "dead.1"))

    with CaptureQueriesContext(
        connection,
    ) as one:
        poll_list(client, dict.fromkeys(letters[:1], "dead.1"))
    with CaptureQueriesContext(connection) as fifty:
        poll_list(client, dict.fromkeys(letters, "dead.1"))

    assert len(one) == len(fifty)


def test_a_letter_that_is_being_replayed_polls_its_changing_parts(client: Client) -> None:
    letter = make_letter(state=LetterState.REPLAYING)
    make_item(make_operation(), letter, sent_at=NOW)
    address = reverse("console:letter", args=[letter.uuid]) + "?q="

    page = client.get(address).content.decode()
    answer = client.get(address, **HTMX)

    assert f'hx-get="{address}" hx-trigger="every 2s, refresh" hx-target="#letter-head"' in page
    assert answer.status_code == 200
    body = answer.content.decode()
    parts = re.findall(r'id="([\w-]+)"[^>]* hx-swap-oob="true"', body)
    assert parts == ["letter-notice", "happened", "life", "dead-count"]
    assert 'id="letter-head"' in body
    assert "note-text" not in body


@pytest.mark.parametrize("state", [LetterState.RESOLVED, LetterState.DEAD])
def test_the_last_answer_says_how_the_replay_ended(client: Client, state: LetterState) -> None:
    letter = make_letter(state=state)
    address = reverse("console:letter", args=[letter.uuid])

    answer = client.get(address, **HTMX)

    assert answer.status_code == 286
    body = answer.content.decode()
    assert {"traceback", "letter-group"} <= set(re.findall(r'id="([\w-]+)"[^>]* hx-swap-oob="true"', body))
    whole = client.get(address)
    assert whole.status_code == 200
    assert "data-poll" not in whole.content.decode()


@pytest.fixture
def purge() -> Operation:
    """A purge of two letters that has just ended."""
    operation = make_operation(
        kind=OperationKind.PURGE,
        state=OperationState.FINISHED,
        selected_count=2,
        changed_count=2,
        started_at=NOW + timedelta(minutes=3),
        ended_at=NOW + timedelta(minutes=3),
        delete_after=NOW + timedelta(days=7),
    )
    for _ in range(2):
        make_letter(state=LetterState.PURGED, purged_by=operation, delete_after=operation.delete_after)
    return operation


def test_a_purge_that_has_just_ended_offers_its_undo(client: Client, purge: Operation) -> None:
    page = client.get(reverse("console:operation", args=[purge.pk]))

    assert "2 letters purged. Deleted on 19 Nov" in text_of(page)


def test_the_undo_restores_without_javascript_and_keeps_its_reason(client: Client, purge: Operation) -> None:
    body = client.get(reverse("console:operation", args=[purge.pk])).content.decode()
    toast = body[body.index("data-toast-key") :]
    address = re.search(r'action="([^"]+)"', toast)
    why = re.search(r'name="why" value="([^"]+)"', toast)
    assert address is not None
    assert why is not None

    response = client.post(address[1], {"why": why[1]})

    restore = Operation.objects.get(kind=OperationKind.RESTORE)
    assert response["Location"] == reverse("console:operation", args=[restore.pk])
    assert (restore.restores_id, restore.why) == (
        purge.pk,
        f"Undo of operation {purge.pk}, right after the purge",
    )


def test_the_answer_to_a_poll_brings_the_undo_along(client: Client, purge: Operation) -> None:
    answer = client.get(reverse("console:operation", args=[purge.pk]), **HTMX)

    assert answer.status_code == 286
    assert '<div hx-swap-oob="beforeend:#flash">' in answer.content.decode()
    assert "2 letters purged." in text_of(answer)


def test_the_answer_to_a_poll_counts_the_dead_letters_of_the_side_bar_anew(
    client: Client, purge: Operation
) -> None:
    make_letter()

    answer = client.get(reverse("console:operation", args=[purge.pk]), **HTMX).content.decode()

    assert re.search(r'id="dead-count"\s+hx-swap-oob="true">1</span>', answer)


def test_no_undo_is_offered_later_or_for_nothing(client: Client, purge: Operation) -> None:
    address = reverse("console:operation", args=[purge.pk])
    Operation.objects.update(ended_at=NOW - timedelta(minutes=57))
    assert "Undo" not in text_of(client.get(address))

    Operation.objects.update(ended_at=NOW)
    DeadLetter.objects.update(state=LetterState.DEAD, purged_by=None)
    assert "Undo" not in text_of(client.get(address))


def test_who_may_not_restore_sees_why(purge: Operation) -> None:
    viewer = client_of(person(role=VIEWER))

    body = viewer.get(reverse("console:operation", args=[purge.pk])).content.decode()

    toast = body[body.index("data-toast-key") : body.index("data-dismiss")]
    assert "Restoring takes the permission" in toast
    assert "<button" not in toast.replace('<button class="toast-close', "")
