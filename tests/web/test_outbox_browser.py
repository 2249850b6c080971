"""The outbox in a real browser: ticks, keys, rows that change where they stand, every width and both themes."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from django.urls import reverse
from playwright.sync_api import Page, expect

from jobs.core.words import LetterState, OutboxState
from jobs.models import AuditEntry, DeadLetter, JobProgress, OutboxMessage
from jobs.outbox.service import OutboxView
from tests.web.browsing import find_faults, poll

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

STUCK = "/outbox/?state=stuck"


@pytest.fixture
def page(console_page: Page) -> Page:
    return console_page


def addresses() -> list[str]:
    """Return the lists, the question, a message of each state, and letters that tell of keys and progress."""
    lists = [f"/outbox/?state={view}" for view in OutboxView]
    found = []
    for state in OutboxState:
        message = OutboxMessage.objects.filter(state=state).order_by("-attempts").first()
        found.append(reverse("console:outbox-message", args=[message.uuid]))
    told = DeadLetter.objects.get(task_id__in=JobProgress.objects.values("task_id"))
    keyed = DeadLetter.objects.filter(state=LetterState.DEAD).exclude(idempotency_key="").first()
    letters = [reverse("console:letter", args=[letter.uuid]) for letter in (told, keyed)]
    return [*lists, "/outbox/?q=nothing", "/outbox/retry/", *found, *letters]


def test_no_page_scrolls_sideways_or_fails_the_accessibility_rules(page):
    assert find_faults(page, addresses()) == []


def test_every_row_shows_its_job_and_its_button_on_a_screen_wider_than_a_phone(page):
    page.goto(STUCK)
    buttons = page.locator("tr.row").get_by_role("button", name="Retry now")
    assert buttons.count() == page.locator("tr.row").count() > 1
    for width in (1700, 1440, 1280, 1024, 800):
        page.set_viewport_size({"width": width, "height": 900})
        for button in buttons.all():
            button.click(trial=True)
            box = button.bounding_box()
            assert box["x"] + box["width"] < width
        for job in page.locator("tr.row .cell-job").all():
            assert job.bounding_box()["width"] >= 170, width
            assert job.evaluate("cell => cell.scrollWidth <= cell.clientWidth"), width

    buttons.last.click()

    expect(page.get_by_text("1 message is due now; the relay sends it next.")).to_be_visible()


def test_on_a_phone_a_row_is_ticked_or_opened_to_be_retried(page):
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto(STUCK)
    page.locator("tr.row .tick-cell label").first.click()
    page.locator("#selection-foot").get_by_role("button", name="Retry ticked now").click()
    expect(page.get_by_text("1 message is due now; the relay sends it next.")).to_be_visible()

    page.locator("tr.row .row-link").last.click()
    page.wait_for_url(re.compile(r"/outbox/[0-9a-f-]{36}/"))
    page.get_by_role("button", name="Retry now").click()

    expect(page.get_by_text("1 message is due now; the relay sends it next.")).to_be_visible()


def test_ticked_messages_are_retried_with_a_key(page):
    page.goto(STUCK)
    expect(page.locator("#selection [data-replay] button")).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("2 selected.")).to_be_visible()
    expect(page.locator("#live")).to_contain_text("Held while rows are selected")

    page.keyboard.press("r")

    expect(page.get_by_text("2 messages are due now; the relay sends them next.")).to_be_visible()
    assert page.url.endswith(STUCK)
    assert AuditEntry.objects.get(action="retry").actor == "Mara Lindqvist"


def test_the_row_under_the_cursor_is_retried_with_a_key(page):
    page.goto(STUCK)
    page.keyboard.press("j")

    page.keyboard.press("r")

    expect(page.get_by_text("1 message is due now; the relay sends it next.")).to_be_visible()


def test_a_message_that_leaves_is_dimmed_where_it_stands(page):
    page.goto(STUCK)
    row = page.locator("[data-row-of]").first
    box = row.bounding_box()

    OutboxMessage.objects.filter(uuid=row.get_attribute("data-row-of")).update(
        state=OutboxState.PUBLISHED, published_at=datetime.now(UTC), published_by="relay"
    )

    poll(page)
    expect(row.locator(".badge")).to_have_text("Sent")
    expect(row).to_have_class(re.compile("row-dimmed"))
    assert row.bounding_box() == box
    expect(row.locator(".tick")).to_have_count(0)
    expect(page.locator("#outbox-foot")).to_contain_text(re.compile(r"3 of 3; now \d"))


def test_the_page_of_a_message_follows_it_until_it_is_sent(page):
    message = OutboxMessage.objects.filter(attempts__gt=0, state=OutboxState.PENDING).first()
    page.goto(reverse("console:outbox-message", args=[message.uuid]))
    expect(page.locator(".badge").first).to_have_text("Stuck")

    OutboxMessage.objects.filter(pk=message.pk).update(
        state=OutboxState.PUBLISHED, published_at=datetime.now(UTC), published_by="relay"
    )

    poll(page)
    expect(page.locator(".badge").first).to_have_text("Sent")
    expect(page.locator("#live")).to_contain_text("It has left the outbox")
    expect(page.locator("#outbox-history")).to_contain_text("Sent by the relay")


def test_everything_works_without_javascript(browsing):
    page = browsing.open(scripts=False)
    page.goto(STUCK)
    expect(page.get_by_text("Tick what is to be sent now")).to_be_visible()
    page.locator(".tick[data-row]").first.check()
    page.locator("#selection [data-replay] button").click()
    expect(page.get_by_text("1 message is due now; the relay sends it next.")).to_be_visible()

    page.get_by_role("link", name=re.compile(r"Retry \d stuck…")).click()
    page.get_by_role("button", name=re.compile(r"Retry \d messages now")).click()

    expect(page.get_by_text("are due now; the relay sends them next.")).to_be_visible()
