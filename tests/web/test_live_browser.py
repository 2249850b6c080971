"""Pages that change by themselves in a real browser: rows, a letter, the undo of a purge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from jobs.core.words import LetterState, OperationKind, OperationState
from jobs.models import DeadLetter
from tests.factories import make_item, make_letter, make_operation
from tests.web.browsing import poll

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def _set_state(letter_id: str, state: LetterState, **fields: object) -> None:
    DeadLetter.objects.filter(uuid=letter_id).update(state=state, **fields)


def test_a_replayed_row_is_dimmed_where_it_stands(console_page):
    page = console_page
    page.goto("/dead-letters/?q=queue:critical")
    page.keyboard.press("j")
    page.keyboard.press("j")
    row = page.locator("[data-row-of]").nth(1)
    letter_id = row.get_attribute("data-row-of")
    box = row.bounding_box()

    _set_state(letter_id, LetterState.REPLAYING)

    poll(page)
    expect(row.get_by_text("Replaying")).to_be_visible()
    assert row.get_attribute("data-row-of") == letter_id
    assert row.bounding_box() == box
    expect(row).to_have_attribute("data-cursor", "")
    expect(row.locator(".row-link")).to_be_focused()
    _set_state(letter_id, LetterState.RESOLVED)
    poll(page)
    expect(row.get_by_text("Resolved")).to_be_visible()
    assert row.bounding_box() == box


def test_rows_hold_still_while_one_is_ticked(console_page):
    page = console_page
    page.goto("/dead-letters/?q=queue:critical")
    row = page.locator("[data-row-of]").first
    row.locator(".tick").click()
    _set_state(row.get_attribute("data-row-of"), LetterState.REPLAYING)
    expect(page.locator("#live")).to_contain_text("Held while rows are selected")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    poll(page)
    page.evaluate("new Promise(requestAnimationFrame)")
    assert asked == []
    page.keyboard.press("Escape")
    poll(page)

    expect(row.get_by_text("Replaying")).to_be_visible()


def test_a_letters_page_follows_its_replay_to_the_end(console_page):
    page = console_page
    letter = make_letter(state=LetterState.REPLAYING, died_at=datetime.now(UTC))
    make_item(make_operation(), letter, sent_at=datetime.now(UTC))
    page.goto(reverse("console:letter", args=[letter.uuid]))
    expect(page.locator("#letter-head .badge").first).to_have_text("Replaying")
    page.locator(".frame-library summary").first.click()
    page.locator("#note-text").fill("Half a note")
    page.locator("#note-text").blur()

    _set_state(str(letter.uuid), LetterState.RESOLVED, state_changed_at=datetime.now(UTC))

    poll(page)
    expect(page.locator("#letter-head .badge").first).to_have_text("Resolved")
    expect(page.locator("#live")).to_contain_text("The replay has ended")
    expect(page.locator("#note-text")).to_have_value("Half a note")


def test_the_undo_of_a_purge_stays_until_it_is_dismissed(console_page):
    page = console_page
    now = datetime.now(UTC)
    purge = make_operation(
        kind=OperationKind.PURGE, selected_count=1, changed_count=1, started_at=now, created_at=now
    )
    make_letter(state=LetterState.PURGED, purged_by=purge, delete_after=now + timedelta(days=7))
    page.goto(reverse("console:operation", args=[purge.pk]))
    expect(page.locator(".toast")).to_have_count(0)
    purge.state, purge.ended_at = OperationState.FINISHED, now
    purge.delete_after = now + timedelta(days=7)
    purge.save()

    toast = page.locator(".toast", has_text="1 letter purged. Deleted on")
    poll(page)
    expect(toast.get_by_role("button", name="Undo")).to_be_visible()
    page.evaluate("toast('Copied.')")
    expect(page.locator(".toast", has_text="Copied.")).to_have_count(1)
    expect(page.locator(".toast", has_text="Copied.")).to_have_count(0, timeout=10_000)
    expect(toast).to_be_visible()
    toast.get_by_role("button", name="Dismiss").click()
    expect(toast).to_have_count(0)
    page.reload()

    expect(page.get_by_role("heading", name="Purge of 1 letter")).to_be_visible()
    expect(toast).to_have_count(0)
