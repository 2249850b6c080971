"""Triage of several groups in one go."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client

from jobs.core.words import GroupState
from jobs.models import AuditEntry, FailureGroup
from jobs.roles import VIEWER
from tests.factories import NOW, make_group, make_letter
from tests.web.acting import client_of, person, text_of
from tests.web.people import tags

pytestmark = pytest.mark.django_db
URL = "/groups/triage/"


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


@pytest.fixture
def groups() -> list[FailureGroup]:
    """One new, one known, one muted."""
    found = [make_group(state=state) for state in (GroupState.NEW, GroupState.KNOWN, GroupState.MUTED)]
    for group in found:
        make_letter(group=group)
    return found


def chosen(groups: list[FailureGroup]) -> list[int]:
    return [group.pk for group in groups]


def states(groups: list[FailureGroup]) -> list[str]:
    return [FailureGroup.objects.get(pk=group.pk).state for group in groups]


def test_ticked_groups_lead_to_a_page_whose_buttons_carry_counts(client: Client, groups) -> None:
    response = client.get(
        "/groups/selected/", {"go": "triage", "group": chosen(groups), "q": ""}, follow=True
    )

    assert response.request["PATH_INFO"] == URL
    text = text_of(response)
    assert "What to do with 3 groups" in text
    for words in ("Mark 1 group as known", "Resolve 3 groups", "Mute 2 groups"):
        assert words in text


def test_without_a_tick_all_groups_that_match_are_meant(client: Client, groups) -> None:
    response = client.get("/groups/selected/", {"go": "triage", "q": "task:*send_receipt"}, follow=True)

    assert "What to do with 3 groups" in text_of(response)


@pytest.mark.parametrize(
    ("action", "after", "said"),
    [
        ("know", ["known", "known", "muted"], "1 group marked as known."),
        ("resolve", ["resolved"] * 3, "3 groups resolved."),
        ("mute", ["muted"] * 3, "2 groups muted until 19 Nov."),
    ],
)
def test_an_action_changes_those_it_can_and_says_how_many(client, groups, action, after, said) -> None:
    form = {"group": chosen(groups), "action": action, "until": "7d", "why": "INC-2291"}

    response = client.post(URL, form, follow=True)

    assert states(groups) == after
    assert said in text_of(response)
    changed = AuditEntry.objects.filter(action=action)
    assert changed.count() == int(said[0])


def test_a_mute_keeps_its_reason_as_the_note(client: Client, groups) -> None:
    client.post(URL, {"group": chosen(groups[:1]), "action": "mute", "until": "forever", "why": "INC-2291"})

    group = FailureGroup.objects.get(pk=groups[0].pk)
    assert (group.note, group.muted_until) == ("INC-2291", None)


@pytest.mark.parametrize(
    ("until", "says"),
    [("soon", "“soon” is not a date."), ("2026-11-01", "that time has passed")],
)
def test_an_end_that_cannot_be_changes_nothing(client: Client, groups, until, says) -> None:
    response = client.post(URL, {"group": chosen(groups[:1]), "action": "mute", "until": until}, follow=True)

    assert says in text_of(response)
    assert states(groups) == ["new", "known", "muted"]


def test_an_unknown_action_and_no_group_change_nothing(client: Client, groups) -> None:
    assert client.post(URL, {"group": chosen(groups), "action": "delete"}).status_code == 404
    assert "No group is chosen" in text_of(client.get(URL))
    assert "No group is chosen" in text_of(client.get(URL, {"group": ["x", "9" * 30]}))
    assert states(groups) == ["new", "known", "muted"]


def test_a_viewer_is_refused(groups) -> None:
    viewer = client_of(person(role=VIEWER))

    assert viewer.get(URL, {"group": chosen(groups)}).status_code == 403
    assert viewer.post(URL, {"group": chosen(groups), "action": "resolve"}).status_code == 403
    assert states(groups) == ["new", "known", "muted"]


def test_in_a_list_of_one_state_the_buttons_mean_its_groups_alone(client: Client, groups) -> None:
    page = client.get("/groups/?group_state=new")

    assert "the buttons mean all 1 that match" in text_of(page)
    fields = tags(page).all("form", action="/groups/selected/")
    assert len(fields) == 1
    hidden = {each["value"] for each in tags(page).all("input", name="q", type="hidden")}
    assert f"group:{groups[0].pk}" in hidden
    went = client.get("/groups/selected/", {"go": "purge", "q": f"group:{groups[0].pk}"}, follow=True)
    assert "Purge 1 letter" in text_of(went)


def test_groups_are_listed_newest_first(client: Client) -> None:
    older = make_group(last_seen_at=NOW - timedelta(hours=2), title="Older: x", error_type="Older")
    newer = make_group(last_seen_at=NOW - timedelta(hours=1), title="Newer: x", error_type="Newer")

    text = text_of(client.get(URL, {"group": [older.pk, newer.pk]}))

    assert text.index("Newer") < text.index("Older")
