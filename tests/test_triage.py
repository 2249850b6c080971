"""Triage: notes, owners, mutes, resolutions, reveals; each refused in the wrong state."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from jobs import triage
from jobs.audit import Actor
from jobs.core.words import GroupState
from jobs.models import AuditEntry, FailureGroup
from jobs.triage import TriageRefused
from tests.factories import NOW, make_group, make_letter, make_operation

pytestmark = pytest.mark.django_db


@pytest.fixture
def mara() -> User:
    return User.objects.create_user("mara", first_name="Mara", last_name="Lindqvist")


@pytest.fixture
def actor(mara: User) -> Actor:
    return Actor(user=mara)


def test_a_note_on_a_letter_is_kept_whole_in_the_audit(actor: Actor) -> None:
    letter = make_letter()

    entry = triage.note_letter(letter=letter, text="  partial outage, EU\nINC-2291 ", actor=actor, now=NOW)

    assert (entry.action, entry.why, entry.actor) == (
        "note",
        "partial outage, EU\nINC-2291",
        "Mara Lindqvist",
    )
    assert (entry.letter, entry.group, entry.at) == (letter, letter.group, NOW)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  \n", "it is empty. Write at least one word."),
        ("x" * 4_001, "it has 4,001 characters, the limit is 4,000. Shorten it."),
    ],
)
def test_a_note_that_cannot_be_kept_is_refused(actor: Actor, text: str, says: str) -> None:
    letter = make_letter()

    with pytest.raises(TriageRefused) as refusal:
        triage.note_letter(letter=letter, text=text, actor=actor, now=NOW)

    assert str(refusal.value) == f"Cannot write a note on letter {letter.short_id}: {says}"
    assert not AuditEntry.objects.exists()


def test_a_nul_in_a_note_is_dropped_because_postgresql_refuses_it(actor: Actor) -> None:
    entry = triage.note_letter(letter=make_letter(), text="a\x00b", actor=actor, now=NOW)

    assert entry.why == "ab"


def test_a_note_on_an_operation_is_a_line_of_its_log_and_of_the_audit(actor: Actor) -> None:
    operation = make_operation()

    event = triage.note_operation(operation=operation, text="receipts arrive", actor=actor, now=NOW)

    assert (event.kind, event.text, event.actor) == ("note", "Note: receipts arrive", "Mara Lindqvist")
    assert AuditEntry.objects.get().why == "receipts arrive"


def test_a_group_is_given_to_a_person_and_taken_away(actor: Actor, mara: User) -> None:
    group = make_group()

    triage.assign_group(group=group, owner=mara, actor=actor, now=NOW)
    assert FailureGroup.objects.get().owner == mara

    triage.assign_group(group=group, owner=None, actor=actor, now=NOW)
    assert FailureGroup.objects.get().owner is None
    assert [entry.action for entry in AuditEntry.objects.all()] == ["assign", "assign"]


def test_assigning_what_changes_nothing_is_refused(actor: Actor, mara: User) -> None:
    group = make_group(owner=mara)

    with pytest.raises(
        TriageRefused, match=re.escape("Mara Lindqvist owns it already. Choose somebody else")
    ):
        triage.assign_group(group=group, owner=mara, actor=actor, now=NOW)
    with pytest.raises(TriageRefused, match=re.escape("nobody owns it. Nothing was changed")):
        triage.assign_group(group=make_group(), owner=None, actor=actor, now=NOW)


def test_a_mute_ends_when_it_was_said_to(actor: Actor) -> None:
    group = make_group()

    triage.mute_group(
        group=group, until=NOW + timedelta(days=7), why="customers upload PDFs", actor=actor, now=NOW
    )

    group = FailureGroup.objects.get()
    assert (group.state, group.muted_until) == (GroupState.MUTED, NOW + timedelta(days=7))
    assert group.note == "customers upload PDFs"
    assert AuditEntry.objects.get().why == "customers upload PDFs"


def test_a_mute_without_words_leaves_the_note(actor: Actor) -> None:
    group = make_group(note="SHOP-1884")

    triage.mute_group(group=group, until=None, actor=actor, now=NOW)

    group = FailureGroup.objects.get()
    assert (group.note, group.muted_until) == ("SHOP-1884", None)


def test_a_mute_into_the_past_is_refused(actor: Actor) -> None:
    with pytest.raises(
        TriageRefused, match=re.escape("until 2026-11-12 03:12 UTC: that time has passed. Choose a later")
    ):
        triage.mute_group(group=make_group(), until=NOW, actor=actor, now=NOW)


def test_unmute_makes_a_group_known(actor: Actor) -> None:
    group = make_group(state=GroupState.MUTED, muted_until=NOW + timedelta(days=1))

    triage.unmute_group(group=group, actor=actor, now=NOW)

    group = FailureGroup.objects.get()
    assert (group.state, group.muted_until) == (GroupState.KNOWN, None)


def test_resolve_says_who_and_when(actor: Actor, mara: User) -> None:
    group = make_group(state=GroupState.MUTED, muted_until=NOW + timedelta(days=1))

    triage.resolve_group(group=group, actor=actor, now=NOW)

    group = FailureGroup.objects.get()
    assert (group.state, group.resolved_at, group.resolved_by) == (GroupState.RESOLVED, NOW, mara)
    assert group.muted_until is None


@pytest.mark.parametrize("state", [GroupState.NEW, GroupState.REGRESSED, GroupState.RESOLVED])
def test_a_group_is_marked_known(actor: Actor, state: GroupState) -> None:
    group = make_group(state=state)

    triage.know_group(group=group, actor=actor, now=NOW)

    assert FailureGroup.objects.get().state == GroupState.KNOWN
    assert AuditEntry.objects.get().action == "know"


@pytest.mark.parametrize(
    ("action", "state", "says"),
    [
        ("mute", GroupState.MUTED, "it is muted. Unmute it first."),
        ("unmute", GroupState.NEW, "it is new. It needs no unmuting."),
        ("resolve", GroupState.RESOLVED, "it is resolved. The next death of one of its jobs opens it again."),
        ("know", GroupState.KNOWN, "it is known. It needs no marking."),
        ("know", GroupState.MUTED, "it is muted. Unmute it instead."),
    ],
)
def test_the_wrong_state_is_refused_and_named(
    actor: Actor, action: str, state: GroupState, says: str
) -> None:
    group = make_group(state=state)
    arguments = {"until": None} if action == "mute" else {}

    with pytest.raises(TriageRefused) as refusal:
        getattr(triage, f"{action}_group")(group=group, actor=actor, now=NOW, **arguments)

    assert says in str(refusal.value)
    assert FailureGroup.objects.get().state == state
    assert not AuditEntry.objects.exists()


def test_a_state_that_changed_under_the_reader_is_refused(actor: Actor) -> None:
    """The collector makes a resolved group regressed at any moment."""
    group = make_group(state=GroupState.NEW)
    FailureGroup.objects.update(state=GroupState.REGRESSED)

    with pytest.raises(TriageRefused, match=re.escape("it is no longer new. Look at it again first")):
        triage.resolve_group(group=group, actor=actor, now=NOW)

    assert FailureGroup.objects.get().state == GroupState.REGRESSED
    assert not AuditEntry.objects.exists()


def test_the_note_of_a_group_is_set_and_taken_away(actor: Actor) -> None:
    group = make_group()

    triage.note_group(group=group, text="SHOP-1884: feed v2 has no sku", actor=actor, now=NOW)
    assert FailureGroup.objects.get().note == "SHOP-1884: feed v2 has no sku"

    triage.note_group(group=group, text="", actor=actor, now=NOW)
    assert FailureGroup.objects.get().note == ""


def test_a_group_note_that_changes_nothing_or_is_too_long_is_refused(actor: Actor) -> None:
    group = make_group(note="same")

    with pytest.raises(TriageRefused, match=re.escape("it says that already")):
        triage.note_group(group=group, text=" same ", actor=actor, now=NOW)
    with pytest.raises(TriageRefused, match=re.escape("it has 501 characters, the limit is 500")):
        triage.note_group(group=group, text="x" * 501, actor=actor, now=NOW)


def test_a_link_is_set_and_taken_away(actor: Actor) -> None:
    group = make_group()

    triage.link_group(group=group, link="https://issues.example/SHOP-1884", actor=actor, now=NOW)
    assert FailureGroup.objects.get().link == "https://issues.example/SHOP-1884"

    triage.link_group(group=group, link="", actor=actor, now=NOW)
    assert FailureGroup.objects.get().link == ""


@pytest.mark.parametrize(
    "link",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example/",
        "SHOP-1884",
        "https://",
        "https://a b/",
        "https://[::1",
        "https://a:port/",
        "https://a/\u202eb",
    ],
)
def test_what_is_not_a_web_address_is_refused_as_a_link(actor: Actor, link: str) -> None:
    with pytest.raises(
        TriageRefused, match=re.escape("it is not a web address. Write one that begins with https://")
    ):
        triage.link_group(group=make_group(), link=link, actor=actor, now=NOW)


def test_a_link_too_long_for_its_column_is_refused(actor: Actor) -> None:
    with pytest.raises(TriageRefused, match=re.escape("the limit is 500")):
        triage.link_group(group=make_group(), link="https://a.example/" + "x" * 500, actor=actor, now=NOW)


def test_a_reveal_is_written_down(actor: Actor, mara: User) -> None:
    letter = make_letter()

    entry = triage.reveal(letter=letter, actor=actor, now=NOW)

    assert (entry.action, entry.letter, entry.user) == ("reveal", letter, mara)
    assert entry.text == f"revealed the masked arguments of letter {letter.short_id}"
