"""Triage in the browser: a group's page and its actions."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from jobs.core.words import GroupState
from jobs.models import FailureGroup
from jobs.roles import OPERATOR, VIEWER
from tests.factories import NOW, make_group, make_letter
from tests.web.acting import audited, client_of, form_actions, person, text_of

pytestmark = pytest.mark.django_db

ACTIONS = ("assign", "mute", "unmute", "resolve", "know", "note", "link")


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(NOW + timedelta(minutes=4), tick=False):
        yield


@pytest.fixture
def tomas() -> User:
    return person("tomas", role=OPERATOR)


@pytest.fixture
def client(tomas: User) -> Client:
    return client_of(tomas)


def page(group: FailureGroup) -> str:
    return reverse("console:group", args=[group.pk])


def url(group: FailureGroup, action: str) -> str:
    return reverse("console:group-triage", args=[group.pk, action])


def test_the_page_tells_what_is_known_and_leads_to_the_letters(client: Client) -> None:
    group = make_group(note="SHOP-1884: feed v2 has no sku")
    letter = make_letter(group=group)
    make_letter(group=group, state="resolved", died_at=NOW - timedelta(hours=1))

    response = client.get(page(group))

    text = text_of(response)
    assert "1 dead of 2 letters" in text
    assert "SHOP-1884: feed v2 has no sku" in text
    body = response.content.decode()
    assert f'{reverse("console:replay")}?q=group:{group.pk}"' in body
    assert reverse("console:letter", args=[letter.uuid]) in body


@pytest.mark.parametrize(
    ("action", "fields", "state", "says"),
    [
        (
            "mute",
            {"until": "7d", "why": "customers upload PDFs"},
            GroupState.MUTED,
            "Muted until 2026-11-19 03:16 UTC.",
        ),
        ("mute", {"until": "forever"}, GroupState.MUTED, "Muted until somebody unmutes it."),
        ("mute", {"until": "2026-12-01"}, GroupState.MUTED, "Muted until 2026-12-01 00:00 UTC."),
        ("resolve", {}, GroupState.RESOLVED, "Resolved."),
        ("know", {}, GroupState.KNOWN, "Marked as known."),
    ],
)
def test_the_state_changes_and_the_page_says_so(
    client: Client, action: str, fields: dict, state: GroupState, says: str
) -> None:
    group = make_group()

    response = client.post(url(group, action), fields, follow=True)

    assert FailureGroup.objects.get().state == state
    assert says in text_of(response)
    assert response.redirect_chain == [(page(group), 302)]


def test_unmute(client: Client) -> None:
    group = make_group(state=GroupState.MUTED)

    client.post(url(group, "unmute"))

    assert FailureGroup.objects.get().state == GroupState.KNOWN


@pytest.mark.parametrize("fields", [{"owner": "me"}, {"owner": "nobody", "me": "me"}])
def test_a_group_is_taken_by_the_reader(client: Client, tomas: User, fields: dict) -> None:
    """The button "Assign to me" stands in the form of the list, which has its own choice."""
    group = make_group()

    client.post(url(group, "assign"), fields)

    assert FailureGroup.objects.get().owner == tomas


def test_a_group_is_given_to_another_and_to_nobody(client: Client) -> None:
    group = make_group()
    mara = person()

    client.post(url(group, "assign"), {"owner": mara.pk})
    assert FailureGroup.objects.get().owner == mara

    client.post(url(group, "assign"), {"owner": "nobody"})
    assert FailureGroup.objects.get().owner is None


def test_a_user_who_left_cannot_be_given_a_group(client: Client) -> None:
    group = make_group()
    gone = person("gone")
    gone.is_active = False
    gone.save()

    response = client.post(url(group, "assign"), {"owner": gone.pk})

    assert response.status_code == 409
    assert f"“{gone.pk}” is no active user. Choose one of the list." in text_of(response)
    assert FailureGroup.objects.get().owner is None


def test_note_and_link_are_kept(client: Client) -> None:
    group = make_group()

    client.post(url(group, "note"), {"text": "SHOP-1884"})
    client.post(url(group, "link"), {"link": "https://issues.example/SHOP-1884"})

    group.refresh_from_db()
    assert (group.note, group.link) == ("SHOP-1884", "https://issues.example/SHOP-1884")
    assert (
        'href="https://issues.example/SHOP-1884" rel="noreferrer noopener"'
        in client.get(page(group)).content.decode()
    )


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        (
            "link",
            {"link": "javascript:alert(1)"},
            "it is not a web address. Write one that begins with https://",
        ),
        ("mute", {"until": "yesterday"}, "“yesterday” is not a date. Write one such as 2026-11-30"),
        ("mute", {"until": "2020-01-01"}, "that time has passed. Choose a later one."),
        ("unmute", {}, "it is new. It needs no unmuting."),
        ("assign", {"owner": "nobody"}, "nobody owns it. Nothing was changed."),
        ("note", {"text": "x" * 501}, "it has 501 characters, the limit is 500. Shorten it."),
    ],
)
def test_what_cannot_be_done_says_why_and_keeps_what_was_typed(
    client: Client, action: str, fields: dict, says: str
) -> None:
    group = make_group()

    response = client.post(url(group, action), fields)

    assert response.status_code == 409
    assert says in text_of(response)
    assert not audited().exists()
    if action in {"link", "note"}:
        assert next(iter(fields.values())) in response.content.decode()


@pytest.mark.parametrize("action", ACTIONS)
def test_every_action_is_refused_by_get_by_role_and_without_csrf(action: str) -> None:
    group = make_group()

    assert client_of(person("a")).get(url(group, action))["Location"] == page(group)
    refused = client_of(person("ines", role=VIEWER)).post(url(group, action))
    assert refused.status_code == 403
    assert "Changing a group takes the permission “triage failure groups”." in text_of(refused)
    assert client_of(person("b"), enforce_csrf_checks=True).post(url(group, action)).status_code == 403
    assert FailureGroup.objects.get().state == GroupState.NEW
    assert not audited().exists()


def test_a_viewer_is_shown_the_group_and_no_form() -> None:
    group = make_group()

    response = client_of(person("ines", role=VIEWER)).get(page(group))

    assert "Changing a group takes the permission “triage failure groups”. Ask an admin." in text_of(response)
    assert not [address for address in form_actions(response) if address.startswith("/groups/")]


def test_an_action_leads_back_to_the_page_it_was_asked_on_and_nowhere_else(client: Client) -> None:
    group = make_group()

    ours = client.post(url(group, "know"), {"next": "/groups/?q=queue:low"})
    theirs = client.post(url(group, "resolve"), {"next": "https://evil.example/"})

    assert ours["Location"] == "/groups/?q=queue:low"
    assert theirs["Location"] == page(group)


def test_an_unknown_action_and_an_unknown_group_are_not_found(client: Client) -> None:
    assert client.post(url(make_group(), "explode")).status_code == 404
    assert client.post("/groups/987/know/").status_code == 404
    assert client.get(f"/groups/{2**70}/").status_code == 404


def test_hostile_words_of_a_group_are_escaped(client: Client) -> None:
    evil = "<script>alert(1)</script>\u202e"
    group = make_group(title=evil, task=evil, error_type=evil, note=evil)

    body = client.get(page(group)).content.decode()

    assert "<script>alert" not in body
