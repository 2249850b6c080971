"""An outage of the broker, as the outbox's page tells it and an operator ends it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

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
