"""The list in a real browser: brush, ticks, keys, live refresh, theme, width, accessibility, policy."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.factories import make_letter
from tests.web.browsing import find_faults

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PAGES = [
    "/",
    "/?by=task",
    "/dead-letters/?q=since:170m",
    "/dead-letters/?q=sinc:2h",
    "/dead-letters/?q=queue:nothing",
    "/groups/",
    "/groups/triage/?q=",
    "/audit/",
    "/nothing/",
]


@pytest.fixture
def page(console_page) -> Page:
    return console_page


def query_of(page: Page) -> str:
    return parse_qs(urlsplit(page.url).query).get("q", [""])[0]


def test_a_brushed_range_becomes_the_times_of_the_search(page):
    page.goto("/dead-letters/?q=queue:critical")
    plot = page.locator(".chart-timeline .nsewdrag")
    box = plot.bounding_box()

    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 25, steps=8)
    page.mouse.move(box["x"] + box["width"] * 0.85, box["y"] + 25, steps=8)
    page.mouse.up()
    page.wait_for_url(re.compile(r"since%3A"))

    match = re.fullmatch(r"queue:critical since:(\S+Z) until:(\S+Z)", query_of(page))
    assert match is not None
    since, until = (datetime.fromisoformat(each.replace("Z", "+00:00")) for each in match.groups())
    assert timedelta(minutes=5) <= until - since <= timedelta(hours=4)
    expect(page.locator(".chip", has_text="since:")).to_be_visible()


def test_ticks_hold_the_page_still_and_all_that_match_go_by_the_search(page):
    page.goto("/dead-letters/?q=since:170m")
    page.locator("#tick-all").click()
    expect(page.get_by_text("50 on this page are selected.")).to_be_visible()
    expect(page.locator("#live")).to_contain_text("Held while rows are selected")

    page.get_by_role("button", name="Select all 4,310 that match").click()
    expect(page.get_by_text("All 4,310 that match are selected.")).to_be_visible()
    page.locator("#selection [data-replay] button").click()
    page.wait_for_url(re.compile("/dead-letters/replay/"))

    assert parse_qs(urlsplit(page.url).query).keys() == {"q"}
    expect(page.get_by_text("4,310").first).to_be_visible()


def test_ticked_rows_go_by_their_ids_with_shift_for_a_range(page):
    page.goto("/dead-letters/?q=since:170m")
    ticks = page.locator(".tick[data-row]")
    ticks.nth(1).click()
    ticks.nth(4).click(modifiers=["Shift"])
    expect(page.get_by_text("4 selected.")).to_be_visible()
    wanted = [ticks.nth(number).get_attribute("value") for number in range(1, 5)]

    page.locator("#selection [data-replay] button").click()
    page.wait_for_url(re.compile("/dead-letters/replay/"))

    assert parse_qs(urlsplit(page.url).query)["id"] == wanted


def test_a_list_is_worked_with_keys(page):
    page.goto("/dead-letters/?q=since:170m")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("1 selected.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_text("Nothing is selected")).to_be_visible()
    page.keyboard.press("f")
    expect(page.locator("#search-text")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.locator("#find-text")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    second = page.locator("[data-row-of]").nth(1).get_attribute("data-row-of")

    page.keyboard.press("e")

    page.wait_for_url(re.compile(rf"/dead-letters/{second}/"))


def test_a_new_letter_is_announced_and_no_row_jumps(page):
    page.goto("/dead-letters/?q=queue:critical")
    before = page.locator("[data-row-of]").first.get_attribute("data-row-of")
    make_letter(queue="critical", died_at=datetime.now(UTC))

    news = page.get_by_role("link", name="1 new, show")
    # The page asks each five seconds.
    expect(news).to_be_visible(timeout=30_000)

    assert page.locator("[data-row-of]").first.get_attribute("data-row-of") == before
    expect(page.locator("#dead-count").first).to_have_text("4,311")
    news.click()
    expect(page.locator("[data-row-of]").first).not_to_have_attribute("data-row-of", before)


def test_the_theme_changes_at_once_and_is_kept(page):
    page.goto("/dead-letters/")
    bar = page.locator(".chart-timeline .barlayer path").first
    light = bar.evaluate("element => getComputedStyle(element).fill")

    page.get_by_role("button", name="Light or dark").click()

    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(bar).not_to_have_css("fill", light)
    page.goto("/groups/")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_qualifier_is_put_into_the_box(page):
    page.goto("/dead-letters/")

    page.get_by_role("link", name="queue:", exact=True).click()

    expect(page.locator("#search-text")).to_have_value("queue:")
    page.keyboard.type("long")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("queue%3Along"))


def test_no_page_scrolls_sideways_or_fails_the_accessibility_rules(page):
    assert find_faults(page, PAGES) == []


def test_faults_of_a_page_are_found_at_every_width_and_in_both_colours(page):
    dark = "@media (prefers-color-scheme: dark) { p { color: #333; background: #222 } }"
    wide = "@media (min-width: 900px) and (max-width: 1100px) { p { width: 2000px } }"
    body = f"<title>T</title><style>{dark}{wide}</style><main><h1>H</h1><p>Text</p><img src=x></main>"

    found = find_faults(page, [f"data:text/html,<html lang=en>{quote(body)}</html>"])

    assert [re.sub(r".* at (\d+ px), \w+: ([\w -]+).*", r"\1 \2", fault) for fault in found] == [
        "380 px image-alt",
        "1000 px image-alt",
        "1000 px scrolls sideways",
        "1440 px color-contrast",
        "1440 px image-alt",
    ]


def test_the_lists_work_without_javascript(browsing):
    page = browsing.open(scripts=False)
    page.goto("/dead-letters/")
    page.locator("#search-text").fill("queue:long")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("q=queue%3Along$"))
    expect(page.get_by_text("198 match")).to_be_visible()

    page.get_by_role("link", name="Older", exact=True).click()
    expect(page.get_by_text("51–100 of 198")).to_be_visible()
    page.locator(".tick[data-row]").first.check()
    page.locator("#selection [data-replay] button").click()
    page.wait_for_url(re.compile("/dead-letters/replay/"))

    assert len(parse_qs(urlsplit(page.url).query)["id"]) == 1
    expect(page.get_by_role("heading", name="Replay")).to_be_visible()


def test_on_a_phone_the_actions_of_a_selection_stand_at_the_bottom(browsing):
    page = browsing.open(width=380, height=800, touch=True)
    page.goto("/dead-letters/?q=since:170m")
    page.get_by_role("button", name="Pages").click()
    expect(page.get_by_role("link", name="Operations")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(".tick[data-row]").first.click()

    page.locator("#selection-foot").get_by_role("button", name="Replay…").click()

    page.wait_for_url(re.compile("/dead-letters/replay/"))
