"""The pages that ask before a purge and before a restore."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from jobs.core.words import LetterState, OperationKind, OperationState
from jobs.models import Operation
from jobs.roles import OPERATOR, VIEWER
from tests.factories import NOW, make_copies, make_group, make_letter, make_operation
from tests.web.acting import audited, client_of, field_of, person, text_of

pytestmark = pytest.mark.django_db

URL = "/dead-letters/purge/"
RESTORE = "/dead-letters/restore/"


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(NOW + timedelta(minutes=4), tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


@pytest.fixture
def many() -> int:
    """1,001 letters: one more than a purge takes without its count."""
    first = make_letter(death=False)
    make_copies(first, 1_000)
    return 1_001


def test_the_page_says_until_when_they_can_be_restored(client: Client) -> None:
    make_letter()

    text = text_of(client.get(f"{URL}?q="))

    assert "It disappears now and is deleted on 19 Nov, 03:16 UTC. Until then you can restore it" in text
    assert "Purge 1 letter" in text


def test_the_button_starts_the_purge(client: Client) -> None:
    group = make_group()
    for _ in range(3):
        make_letter(group=group)
    shown = client.get(f"{URL}?q=group:{group.pk}")

    response = client.post(URL, {"frozen": field_of(shown, "frozen"), "why": "customers upload PDFs"})

    operation = Operation.objects.get()
    assert response["Location"] == reverse("console:operation", args=[operation.pk])
    assert (operation.kind, operation.selected_count) == (OperationKind.PURGE, 3)
    assert audited().get().why == "customers upload PDFs"


def test_above_a_thousand_the_count_is_typed(client: Client, many: int) -> None:
    shown = client.get(f"{URL}?q=")
    assert "Type 1001 to confirm" in text_of(shown)
    token = field_of(shown, "frozen")

    wrong = client.post(URL, {"frozen": token, "why": "x", "typed_count": "431"})
    assert wrong.status_code == 422
    assert "You typed 431. The selection holds 1001." in text_of(wrong)

    missing = client.post(URL, {"frozen": token, "why": "x"})
    assert "Type the count. The selection holds 1001." in text_of(missing)
    assert not Operation.objects.exists()

    assert client.post(URL, {"frozen": token, "why": "x", "typed_count": "1,001"}).status_code == 302
    assert Operation.objects.get().selected_count == 1_001


def test_a_purge_is_refused_by_role_by_get_and_without_csrf(client: Client) -> None:
    make_letter()
    shown = client.get(f"{URL}?q=")
    values = {"frozen": field_of(shown, "frozen"), "why": "x"}

    refused = client_of(person("tomas", role=OPERATOR)).post(URL, values)

    assert refused.status_code == 403
    assert "Purging takes the permission “purge dead letters”. Ask an admin." in text_of(refused)
    assert client_of(person("x"), enforce_csrf_checks=True).post(URL, values).status_code == 403
    assert not Operation.objects.exists()


def test_a_reason_is_required(client: Client) -> None:
    make_letter()
    shown = client.get(f"{URL}?q=")

    response = client.post(URL, {"frozen": field_of(shown, "frozen"), "why": ""})

    assert response.status_code == 422
    assert "Write why: it is kept in the audit log with your name." in text_of(response)


def test_purged_letters_are_not_purged_again(client: Client) -> None:
    letter = make_letter(state=LetterState.PURGED)
    shown = client.get(f"{URL}?id={letter.uuid}")

    response = client.post(URL, {"frozen": field_of(shown, "frozen"), "why": "x"})

    assert "None of these letters can be purged now." in text_of(shown)
    assert response.status_code == 409
    assert "Letter" in text_of(response)
    assert not Operation.objects.exists()


def test_a_purged_letter_is_restored(client: Client) -> None:
    letter = make_letter(state=LetterState.PURGED)
    shown = client.get(f"{RESTORE}?id={letter.uuid}")
    assert "Restore 1 letter" in text_of(shown)

    response = client.post(RESTORE, {"frozen": field_of(shown, "frozen"), "why": "still needed"})

    operation = Operation.objects.get()
    assert response["Location"] == reverse("console:operation", args=[operation.pk])
    assert (operation.kind, operation.selected_count) == (OperationKind.RESTORE, 1)


def test_a_letter_that_is_not_purged_cannot_be_restored(client: Client) -> None:
    letter = make_letter()
    shown = client.get(f"{RESTORE}?id={letter.uuid}")

    response = client.post(RESTORE, {"frozen": field_of(shown, "frozen"), "why": "x"})

    assert "None of these letters is purged." in text_of(shown)
    assert response.status_code == 409
    assert not Operation.objects.exists()


def test_restoring_is_refused_by_role() -> None:
    response = client_of(person("ines", role=VIEWER)).get(f"{RESTORE}?q=")

    assert response.status_code == 403
    assert "Restoring takes the permission “restore purged dead letters”." in text_of(response)


def test_a_whole_purge_is_restored_from_its_operation(client: Client) -> None:
    purge = make_operation(
        kind=OperationKind.PURGE, state=OperationState.FINISHED, selected_count=2, changed_count=2
    )
    for _ in range(2):
        make_letter(state=LetterState.PURGED, purged_by=purge, delete_after=NOW + timedelta(days=7))
    address = reverse("console:operation-restore", args=[purge.pk])

    assert "Restore 2 letters" in text_of(client.get(address))
    assert client.post(address, {"why": ""}).status_code == 422
    response = client.post(address, {"why": "still needed"})

    restore = Operation.objects.get(kind=OperationKind.RESTORE)
    assert response["Location"] == reverse("console:operation", args=[restore.pk])
    assert (restore.restores, restore.selected_count) == (purge, 2)


def test_a_purge_of_which_nothing_is_left_cannot_be_restored(client: Client) -> None:
    purge = make_operation(kind=OperationKind.PURGE, state=OperationState.FINISHED)
    address = reverse("console:operation-restore", args=[purge.pk])

    assert "None of its letters is purged any more" in text_of(client.get(address))
    response = client.post(address, {"why": "x"})

    assert response.status_code == 409
    assert "none of its letters is purged any more" in text_of(response)


def test_a_replay_cannot_be_restored(client: Client) -> None:
    replay = make_operation(state=OperationState.FINISHED)
    address = reverse("console:operation-restore", args=[replay.pk])

    assert "only a purge can be undone" in text_of(client.get(address))
    assert client.post(address, {"why": "x"}).status_code == 409
