"""The overview in a real browser: charts that are drawn, kept over polls, brushed into a window, and read as tables."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from playwright.sync_api import expect

from jobs.models import StateSample
from tests.metrics_rows import make_rollup, make_sample
from tests.servers import wait_until
from tests.web.browsing import poll

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def overview(console_page):
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    with transaction.atomic():
        for minutes in range(1, 40, 2):
            at = now - timedelta(minutes=minutes)
            make_rollup(
                at=at, done=90, retried=4, dead=2, received=96, latency=[0.1] * 20 + [2.0], runtime=[0.2]
            )
            make_sample(at=at, ready=minutes, oldest_age_seconds=minutes)
            StateSample.objects.create(level="minute", at=at, dead_letters=4000 - minutes)
    console_page.goto("/")
    console_page.locator("#throughput-chart .main-svg").first.wait_for()
    return console_page


def test_all_charts_are_drawn_and_nothing_is_wider_than_the_page(overview):
    for name in ("throughput", "latency", "depth", "dead-letters", "failure-rate", "oldest"):
        overview.locator(f"#{name}-chart .main-svg").first.wait_for()

    for width in (1440, 1000, 760, 380):
        overview.set_viewport_size({"width": width, "height": 900})
        assert overview.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_range_dragged_over_a_chart_becomes_the_time_window(overview):
    overview.locator("#throughput-chart").scroll_into_view_if_needed()
    box = overview.locator("#throughput-chart .nsewdrag").first.bounding_box()
    overview.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    overview.mouse.down()
    overview.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + 80)
    overview.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 80)
    overview.mouse.up()

    overview.wait_for_url(re.compile(r"\?from=.*&to="))
    shown = overview.locator(".window-choice button[aria-current]")
    assert re.fullmatch(r"(\d+ \w+ )?\d\d:\d\d–(\d+ \w+ )?\d\d:\d\d", shown.inner_text().strip())
    assert overview.locator("#throughput-chart .main-svg").count() > 0


def test_a_poll_of_the_charts_keeps_what_is_drawn_and_the_table_that_is_open(overview):
    overview.locator("#throughput-details summary").click()
    overview.locator("#throughput-table").evaluate("table => { table.scrollTop = 120; }")
    overview.evaluate("document.querySelector('#throughput-chart').mark = 'the same element'")
    sentence = overview.locator("#overview-charts .chart-summary").first
    sentence.evaluate("element => { element.textContent = 'old'; }")

    with overview.expect_response(re.compile("part=charts")):
        overview.evaluate("htmx.trigger('#charts-again', 'refresh')")
    expect(sentence).not_to_have_text("old")

    assert overview.evaluate("document.querySelector('#throughput-chart').mark") == "the same element"
    expect(overview.locator("#throughput-details")).to_have_attribute("open", "")
    assert overview.locator("#throughput-table").evaluate("table => table.scrollTop") == 120
    assert overview.locator("#throughput-chart .main-svg").count() > 0


def test_a_poll_of_the_figures_leaves_the_charts_alone(overview):
    overview.evaluate("document.querySelector('#overview-charts').mark = 'untouched'")

    with overview.expect_response(lambda response: response.request.headers.get("hx-target") == "overview"):
        poll(overview)

    expect(overview.locator("#overview .tile")).to_have_count(6)
    assert overview.evaluate("document.querySelector('#overview-charts').mark") == "untouched"
    assert overview.locator("#overview-tables").count() == 1


def test_the_window_of_ones_own_is_chosen_by_a_form(overview):
    overview.get_by_role("button", name="Custom…").click()
    overview.get_by_label("From").fill("2020-01-01T10:00")
    overview.get_by_label("To").fill("2020-01-01T09:00")
    overview.get_by_role("button", name="Show this time").click()

    expect(overview.locator("#overview")).to_contain_text("The range ends before it begins.")


def test_colours_follow_the_theme(overview):
    def colour() -> str:
        return overview.locator("#dead-letters-chart .js-line").first.evaluate(
            "path => getComputedStyle(path).stroke"
        )

    light = colour()
    overview.get_by_role("button", name="Light or dark").click()

    wait_until(lambda: colour() != light)
