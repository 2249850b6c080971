"""What an operator does, in Chromium, against the whole product running."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.servers import wait_until
from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.worker]

# What a web request does: it changes its rows and enqueues a job, in one transaction.
ENQUEUE = """
from django.db import transaction
from console.celery import app
from jobs import Job

@app.task(base=Job, name="shop.tasks.send_receipt", queue="celery", idempotency_key="receipt:{order_id}")
def send_receipt(order_id): ...

with transaction.atomic():
    send_receipt.delay(order_id=%d)
"""


def fail_receipts(stack: Stack, first: int, count: int) -> None:
    """Let ``count`` receipts die and wait until their letters are there."""
    for number in range(first, first + count):
        stack.app.send_task("shop.tasks.send_receipt", kwargs={"order_id": number})
    query = "args.order_id:" + ",".join(str(number) for number in range(first, first + count))
    wait_until(lambda: len(stack.letters(query)) == count, seconds=30, what="the letters of the receipts")


def states(stack: Stack, query: str) -> list[str]:
    return [letter["state"] for letter in stack.letters(f"{query} state:any")]


def finished(page: Page) -> Locator:
    """Return the badge of an operation that has ended; "none finished yet" stands there from the first."""
    return page.locator("#operation .badges").get_by_text("Finished", exact=True)


def test_letters_are_found_previewed_replayed_in_stages_and_resolved(broken_shop: Stack, admin: Page) -> None:
    stack, page = broken_shop, admin
    fail_receipts(stack, 1000, 30)

    page.goto(f"{stack.url}/dead-letters/")
    page.keyboard.press("f")
    page.keyboard.type("task:shop.tasks.send_receipt")
    page.keyboard.press("Enter")
    expect(page.locator("tr.row").first).to_contain_text("ConnectionError")
    page.get_by_label("Select all on this page").check()
    everything = page.get_by_role("button", name=re.compile("Select all .* that match"))
    if everything.is_visible():
        everything.click()
    stack.switch.touch()
    page.locator("#selection").get_by_role("button", name="Replay…").click()
    expect(page.get_by_role("heading", name="Replay dead letters")).to_be_visible()
    page.get_by_label("Letters in stage 1").fill("1")
    page.get_by_label("Letters in stage 2").fill("10")
    page.get_by_label("Letters in stage 3").fill("")
    page.get_by_label("Rate", exact=True).fill("50")
    page.get_by_label("Reason").fill("The mail relay is back.")
    page.get_by_role("button", name=re.compile(r"Replay \d+ letters")).click()

    expect(finished(page)).to_be_visible(timeout=60_000)
    expect(page.locator("#operation")).to_contain_text("30 done")
    assert set(states(stack, "args.order_id:1000,1010,1029")) == {"resolved"}


def test_a_range_brushed_on_the_timeline_becomes_the_search(broken_shop: Stack, admin: Page) -> None:
    stack, page = broken_shop, admin
    fail_receipts(stack, 2000, 5)

    page.goto(f"{stack.url}/dead-letters/?q=state:any")
    plot = page.locator(".chart-timeline .nsewdrag").first
    plot.wait_for()
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, middle, steps=8)
    page.mouse.move(box["x"] + box["width"] - 2, middle, steps=4)
    page.mouse.up()

    page.wait_for_url(re.compile("since"))
    expect(page.locator("#search .chip").filter(has_text="since:")).to_be_visible()
    expect(page.locator("#search .chip").filter(has_text="until:")).to_be_visible()
    expect(page.locator("tr.row").first).to_be_visible()


def test_a_group_is_purged_and_the_purge_undone(broken_shop: Stack, admin: Page) -> None:
    stack, page = broken_shop, admin
    for _ in range(3):
        stack.app.send_task("shop.tasks.import_feed", args=["nordwind", [{"sku": 7}]])
    wait_until(lambda: len(stack.letters("task:shop.tasks.import_feed")) == 3, what="three letters")

    page.goto(f"{stack.url}/groups/?q=task:shop.tasks.import_feed")
    page.get_by_label(re.compile("Select group")).first.check()
    page.locator("#selection").get_by_role("button", name="Purge…").click()
    page.get_by_label("Reason").fill("The supplier sends them again.")
    page.get_by_role("button", name="Purge 3 letters").click()
    expect(finished(page)).to_be_visible(timeout=60_000)
    assert states(stack, "task:shop.tasks.import_feed") == ["purged"] * 3

    page.get_by_role("link", name="Restore…").first.click()
    page.get_by_label("Reason").fill("They were needed after all.")
    page.get_by_role("button", name=re.compile("Restore 3 letters")).click()
    expect(finished(page)).to_be_visible(timeout=60_000)
    assert states(stack, "task:shop.tasks.import_feed") == ["dead"] * 3


def test_a_letter_is_edited_and_replayed(broken_shop: Stack, admin: Page) -> None:
    stack, page = broken_shop, admin
    stack.app.send_task("shop.tasks.charge_card", kwargs={"order_id": 3001, "amount": -5})
    wait_until(lambda: stack.letters("args.order_id:3001"), what="the letter")
    letter = stack.letters("args.order_id:3001")[0]

    page.goto(f"{stack.url}/dead-letters/{letter['id']}/")
    page.get_by_role("link", name="Edit and replay…").click()
    editor = page.get_by_label(re.compile("^Named"))
    editor.fill(editor.input_value().replace("-5", '"five'))
    page.get_by_role("button", name="Check the changes").click()
    expect(page.locator("[aria-invalid=true]").first).to_be_visible()
    editor = page.get_by_label(re.compile("^Named"))
    editor.fill('{"order_id": 3001, "amount": 5}')
    page.get_by_role("button", name=re.compile("Check")).click()
    page.get_by_label("Reason").fill("The amount had the wrong sign.")
    page.get_by_role("button", name=re.compile("^Replay")).click()

    wait_until(lambda: states(stack, "args.order_id:3001") == ["resolved"], what="the letter to be resolved")


def test_everything_but_charts_works_without_javascript(broken_shop: Stack, without_script: Page) -> None:
    stack, page = broken_shop, without_script
    fail_receipts(stack, 4000, 3)

    page.goto(f"{stack.url}/dead-letters/")
    page.get_by_label("Add a word or a qualifier").fill("args.order_id:4000,4001,4002")
    page.get_by_label("Add a word or a qualifier").press("Enter")
    expect(page.locator("tr.row")).to_have_count(3)
    page.locator("tr.row input[type=checkbox]").nth(0).check()
    page.locator("tr.row input[type=checkbox]").nth(1).check()
    stack.switch.touch()
    page.locator("#selection").get_by_role("button", name="Replay…").click()
    page.get_by_label("Reason").fill("Mended.")
    page.get_by_role("button", name=re.compile("Replay 2 letters")).click()
    page.wait_for_url(re.compile(r"/operations/\d+/"))
    address = page.url

    def is_finished() -> bool:
        page.goto(address)
        return finished(page).is_visible()

    wait_until(is_finished, seconds=40, what="the operation to finish")
    assert sorted(states(stack, "args.order_id:4000,4001,4002")) == ["dead", "resolved", "resolved"]


def test_a_wrong_qualifier_is_named_with_the_one_that_was_meant(stack: Stack, admin: Page) -> None:
    page = admin

    with page.expect_response(re.compile("dead-letters")) as answer:
        page.goto(f"{stack.url}/dead-letters/")
    assert answer.value.ok
    page.get_by_label("Add a word or a qualifier").fill("queeu:critical")
    page.get_by_label("Add a word or a qualifier").press("Enter")

    expect(page.get_by_role("alert")).to_contain_text("queue:")


def test_a_viewer_sees_why_replay_is_refused(broken_shop: Stack, page: Page) -> None:
    from tests.journeys.conftest import log_in

    stack = broken_shop
    fail_receipts(stack, 5000, 1)
    log_in(page, stack, "vera")
    letter = stack.letters("args.order_id:5000")[0]

    page.goto(f"{stack.url}/dead-letters/{letter['id']}/")

    refused = page.locator("[aria-disabled=true]").filter(has_text="Replay…").first
    expect(refused).to_be_visible()
    response = page.goto(f"{stack.url}/dead-letters/replay/?id={letter['id']}")
    assert response is not None
    assert response.status == 403


def enqueue(stack: Stack, order: int) -> None:
    stack.command("shell", "-v", "0", "-c", ENQUEUE % order)


def test_what_a_broker_outage_holds_up_is_shown_with_its_cause_and_leaves_once_it_is_over(
    broken_shop: Stack, admin: Page
) -> None:
    stack, page = broken_shop, admin
    stack.switch.touch()
    stack.broker.stop()
    try:
        enqueue(stack, 7001)

        page.goto(f"{stack.url}/outbox/")
        row = page.locator("tr.row")
        expect(row).to_contain_text("receipt:7001")
        expect(page.get_by_text("The relay has been unable to send for")).to_be_visible(timeout=60_000)
        expect(page.locator("#outbox-status")).to_contain_text(
            re.compile(r"Lag\s+[1-9][\d.]*\s+s"), timeout=60_000
        )
        row.get_by_role("button", name="Retry now").click()
        expect(page.get_by_text("1 message is due now; the relay sends it next.")).to_be_visible()
    finally:
        stack.broker.start()

    expect(page.locator("tr.row")).to_contain_text("Sent", timeout=60_000)
    expect(
        page.get_by_text("Nothing waits: every message of a committed transaction has been sent.")
    ).to_be_visible(timeout=20_000)
    expect(page.get_by_text("The relay has been unable to send for")).to_have_count(0)
    page.goto(f"{stack.url}/outbox/?state=published&q=receipt:7001")
    expect(page.locator("tr.row")).to_have_count(1)
    wait_until(lambda: b"sent 7001" in stack.log("worker"), seconds=60, what="the job to run")
