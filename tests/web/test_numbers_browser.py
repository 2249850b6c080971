"""The pages of queues, workers and tasks in a real browser: charts, polling, phones."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from playwright.sync_api import Page, expect

from jobs.models import QueueSample, WorkerBoot
from tests.factories import make_letter
from tests.metrics_rows import TASK, make_boot, make_rollup, make_sample, running_job
from tests.web.browsing import Browsing, poll

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

LONG = "queue-" + "very-long-name-" * 14
MINUTE = timedelta(minutes=1)
PAGES = (
    "/queues/",
    "/queues/one/?name=critical",
    f"/queues/one/?name={LONG}",
    "/queues/one/pause/?name=critical",
    "/queues/one/purge/?name=critical",
    "/workers/",
    "/workers/one/?name=celery%40web-1",
    "/workers/one/shut-down/?name=celery%40web-1",
    "/workers/revoke/?id=8f3c",
    f"/tasks/one/?name={TASK}",
)


def seed() -> datetime:
    now = datetime.now(UTC)
    for name, ready, consumers in (("critical", 1_610, 4), (LONG, 12, 0)):
        for ago in (40, 20, 1):
            make_sample(queue=name, at=now - ago * MINUTE, ready=ready - ago, consumers=consumers)
        make_sample(queue=name, at=now, ready=ready, consumers=consumers, oldest_age_seconds=134.0)
    for ago in range(1, 20, 3):
        make_rollup(at=now - ago * MINUTE, done=9, dead=1, retried=3, latency=[0.4, 1.6], runtime=[0.1, 0.3])
        make_rollup(at=now - ago * MINUTE, queue=LONG, task="shop.tasks." + "long_" * 30, done=1)
    jobs = [running_job(task_id=f"8f3c-{number}", started_at=now.timestamp() - 9) for number in range(3)]
    make_boot(last_seen_at=now, started_at=now - timedelta(hours=9), queues=["critical", LONG], running=jobs)
    make_boot("celery@img-2", last_seen_at=now - 21 * MINUTE, lost_at=now - 20 * MINUTE, jobs_lost=3)
    make_letter(task=TASK, queue="critical", died_at=now - MINUTE)
    return now


@pytest.fixture
def _numbers(browsing: Browsing) -> None:
    with transaction.atomic():
        QueueSample.objects.all().delete()
        WorkerBoot.objects.all().delete()
        seed()


@pytest.fixture
def numbers_page(_numbers: None, browsing: Browsing) -> Page:
    return browsing.open()


@pytest.fixture
def phone(_numbers: None, browsing: Browsing) -> Page:
    return browsing.open(width=380, height=800, touch=True)


@pytest.mark.parametrize(
    ("address", "charts"),
    [
        ("/queues/one/?name=critical", ("depth", "oldest", "latency", "throughput")),
        (f"/tasks/one/?name={TASK}", ("throughput", "failure-rate", "latency", "runtime")),
    ],
)
def test_charts_are_drawn_under_the_policy_and_drawn_anew_when_they_come_again(numbers_page, address, charts):
    page = numbers_page
    page.goto(address)
    for name in charts:
        expect(page.locator(f"#{name}-chart .main-svg").first).to_be_visible()

    page.locator(f"#{charts[0]}-details summary").click()
    with page.expect_response(lambda response: "part=charts" in response.url):
        page.evaluate("htmx.trigger(document.querySelector('#charts [hx-get]'), 'refresh')")

    for name in charts:
        expect(page.locator(f"#{name}-chart .main-svg").first).to_be_visible()
    expect(page.locator(f"#{charts[0]}-table")).to_be_visible()


def test_figures_change_by_themselves_and_the_charts_stay(numbers_page):
    page = numbers_page
    page.goto("/queues/one/?name=critical")
    expect(page.locator("#depth-chart .main-svg").first).to_be_visible()
    page.evaluate("document.querySelector('#depth-chart').dataset.kept = 'yes'")

    make_sample(queue="critical", at=datetime.now(UTC), ready=7, consumers=4)

    poll(page)
    expect(page.locator("#queue .tile").first).to_contain_text("Waiting 7")
    assert page.locator("#depth-chart").get_attribute("data-kept") == "yes"


def test_a_worker_that_is_lost_is_seen_on_its_page_without_a_reload(numbers_page):
    page = numbers_page
    page.goto("/workers/one/?name=celery%40web-1")
    expect(page.locator("#worker .badges")).to_have_text("Online")

    WorkerBoot.objects.filter(hostname="celery@web-1").update(lost_at=datetime.now(UTC), jobs_lost=1)

    poll(page)
    expect(page.locator("#worker .badges")).to_have_text("Lost")
    expect(page.locator("#worker")).to_contain_text("is a dead letter now.")
    expect(page.get_by_role("link", name="Shut down…")).to_have_count(0)


def test_no_page_scrolls_sideways_on_a_phone_whatever_its_names_are(phone):
    wide = {}
    for address in PAGES:
        phone.goto(address)
        width = phone.evaluate("document.documentElement.scrollWidth")
        if width > 380:
            wide[address] = width

    assert wide == {}


def test_tables_scroll_within_themselves_with_the_name_in_place(phone):
    phone.goto("/queues/")
    region = phone.get_by_role("region", name="Queues, worst first")
    name = region.get_by_role("link", name="critical", exact=True)
    before = name.bounding_box()

    region.evaluate("element => { element.scrollLeft = 9999 }")

    expect(region.get_by_text("Dead letters")).to_be_in_viewport()
    assert name.bounding_box() == before


def test_the_window_is_kept_from_page_to_page(numbers_page):
    page = numbers_page
    page.goto("/queues/")
    page.get_by_role("navigation", name="Time window").get_by_role("link", name="6 h").click()
    page.get_by_role("link", name="critical", exact=True).click()
    expect(page.get_by_role("heading", name="Last 6 hours")).to_be_visible()
    page.get_by_role("link", name="send_receipt").first.click()

    expect(page.get_by_role("heading", name="Last 6 hours")).to_be_visible()
    page.get_by_role("link", name="Queues", exact=True).first.click()
    expect(page.get_by_text("Depth, last 6 hours")).to_be_visible()


@pytest.mark.parametrize(
    ("address", "body", "opened_page"),
    [
        ("/queues/?window=6h", "#queues", r"/queues/one/\?name=critical&window=6h$"),
        ("/workers/?window=6h", "#workers", r"/workers/one/\?name=celery%40web-1&window=6h$"),
    ],
)
def test_a_list_of_queues_or_workers_is_walked_with_keys_and_keeps_its_place_when_it_is_read_anew(
    numbers_page: Page, address: str, body: str, opened_page: str
) -> None:
    page = numbers_page
    page.goto(address)
    cursor = page.locator("[data-cursor]")
    for _ in range(3):
        page.keyboard.press("j")
    expect(cursor).to_have_count(1)
    last = page.locator(f"{body} tbody tr").last
    expect(last).to_have_attribute("data-cursor", "")
    page.keyboard.press("k")
    expect(last).not_to_have_attribute("data-cursor", "")
    page.keyboard.press("j")

    page.evaluate("body => document.querySelector(body).setAttribute('data-old', '')", body)
    poll(page)

    expect(page.locator(f"{body}[data-old]")).to_have_count(0)
    expect(last).to_have_attribute("data-cursor", "")
    expect(last.locator("th a")).to_be_focused()
    page.keyboard.press("e")
    page.wait_for_url(re.compile(opened_page))
