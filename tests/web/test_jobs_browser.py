"""Jobs in a real browser: every width and both themes, by keyboard, and what comes while one looks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from jobs.core.words import LetterState, RunOutcome
from jobs.models import DeadLetter, Run
from tests.metrics_rows import make_boot, make_run, running_job
from tests.web.browsing import Browsing, find_faults, poll

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

HOSTILE = "x" * 250 + "<b>\u202e"


@pytest.fixture
def attempts(browsing: Browsing) -> list[Run]:
    """Sixty attempts of the last minutes beside the night, and one whose names are as long and bad as they can be."""
    now = datetime.now(UTC)
    outcomes = list(RunOutcome)
    made = [
        make_run(
            task_id=f"job-{number:02}",
            finished_at=now - timedelta(seconds=number),
            outcome=outcomes[number % len(outcomes)],
            error_type="builtins.ValueError" if number % len(outcomes) in {1, 2} else "",
        )
        for number in range(60)
    ]
    made.append(
        make_run(
            task=HOSTILE,
            queue=HOSTILE,
            worker=HOSTILE,
            error_type=HOSTILE,
            task_id=HOSTILE[:255],
            finished_at=now,
        )
    )
    return made


def job(task_id: str) -> str:
    return f"/jobs/one/?{urlencode({'id': task_id})}"


def test_no_page_of_jobs_scrolls_sideways_or_fails_the_accessibility_rules(attempts, console_page: Page):
    letters = [
        DeadLetter.objects.filter(state=state).exclude(task_id="").first()
        for state in (LetterState.DEAD, LetterState.RESOLVED)
    ]
    addresses = [
        "/jobs/",
        "/jobs/?q=outcme:dead",
        "/jobs/?q=outcome:dead+since:6h",
        "/jobs/?q=nothing-like-it",
        job("nothing-like-it"),
        job(HOSTILE[:255]),
        *(job(letter.task_id) for letter in letters if letter is not None),
    ]

    assert len(addresses) == 8
    assert find_faults(console_page, addresses) == []


def test_a_job_is_opened_with_keys_and_its_page_leads_back(attempts, console_page: Page):
    page = console_page
    page.goto("/jobs/?q=job-0")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("e")

    page.wait_for_url(re.compile(r"id=job-01"))
    expect(page.get_by_role("img", name=re.compile("waits for a worker 1 s"))).to_be_visible()
    page.get_by_role("link", name="Jobs").first.click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


def test_what_ends_while_one_looks_is_counted_and_shown_when_asked_for(attempts, console_page: Page):
    page = console_page
    page.goto("/jobs/?q=task:brand_new")
    expect(page.get_by_text("No recorded attempt matches")).to_be_visible()

    make_run(task="shop.tasks.brand_new", finished_at=datetime.now(UTC) + timedelta(seconds=1))

    poll(page)
    page.get_by_text("1 new, show").click()
    expect(page.locator("tr.row")).to_have_count(1)


def test_the_page_of_a_job_that_runs_follows_it_to_its_end(attempts, console_page: Page):
    page, now = console_page, datetime.now(UTC)
    boot = make_boot(
        "celery@here",
        last_seen_at=now,
        running=[
            running_job(task_id="long-one", started_at=now.timestamp() - 5, published_at=now.timestamp() - 6)
        ],
    )
    page.goto(job("long-one"))
    expect(page.get_by_text("Attempt 1 has been running for")).to_be_visible()

    boot.running = []
    boot.save(update_fields=["running"])
    make_run(task_id="long-one", finished_at=datetime.now(UTC))

    poll(page)
    expect(page.get_by_text("It was done, ")).to_be_visible()
    expect(page.get_by_text("The job has ended")).to_be_visible()


def test_without_scripts_the_list_is_searched_and_a_job_is_opened(browsing: Browsing, attempts):
    page = browsing.open(scripts=False)
    page.goto("/jobs/")

    page.get_by_label("Add a word or a qualifier").fill("id:job-07")
    page.keyboard.press("Enter")
    page.locator("tr.row a.row-link").click()

    expect(page.get_by_text("job-07", exact=True)).to_be_visible()
