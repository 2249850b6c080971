"""One running product for all journeys; each journey has its own orders and suppliers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from jobs.core.words import AlertKind
from jobs.models import AlertRule
from tests.journeys.alert_place import AlertPlace, Watch
from tests.stack import Stack

PASSWORD = "journeys only"


class SoonStack(Stack):
    """The product with shorter waits: workers tell each second, the relay takes over after four."""

    @property
    def env(self) -> dict[str, str]:
        return {
            **super().env,
            "JOBS_HEARTBEAT_SECONDS": "1",
            "JOBS_OUTBOX_TIMEOUT_SECONDS": "0.5",
            "JOBS_OUTBOX_GRACE_SECONDS": "4",
        }


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    stack = SoonStack()
    try:
        stack.start()
        for name, role in (("olga", "Operator"), ("ada", "Admin"), ("vera", "Viewer")):
            stack.add_user(name, password=PASSWORD, role=role)
        yield stack
    finally:
        stack.stop()


@pytest.fixture
def broken_shop(stack: Stack) -> Stack:
    """The product with the shop's bugs in place."""
    stack.switch.unlink(missing_ok=True)
    return stack


def log_in(page: Page, stack: Stack, name: str) -> None:
    page.goto(f"{stack.url}/login/")
    page.locator("#id_username").fill(name)
    page.locator("#id_password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{stack.url}/")


class Complaints:
    """What the browser complained about: script errors, refused inline code, failed requests."""

    def __init__(self, page: Page) -> None:
        self.heard: list[str] = []
        page.on("pageerror", lambda error: self.heard.append(f"script error: {error}"))
        page.on("console", self._hear)

    def _hear(self, message: ConsoleMessage) -> None:
        # A form that is refused answers 400 or 422, and Chromium logs that like a broken link.
        is_refusal = "status of 400" in message.text or "status of 422" in message.text
        if message.type == "error" and not is_refusal:
            self.heard.append(f"console: {message.text}")


@pytest.fixture
def admin(page: Page, stack: Stack) -> Iterator[Page]:
    """A page on which an admin is logged in; the browser must not complain."""
    complaints = Complaints(page)
    page.set_default_timeout(20_000)
    log_in(page, stack, "ada")
    yield page
    assert complaints.heard == []


@pytest.fixture
def without_script(browser: Browser, stack: Stack) -> Iterator[Page]:
    """The same with JavaScript off."""
    context: BrowserContext = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(20_000)
    log_in(page, stack, "ada")
    yield page
    context.close()


@pytest.fixture
def place(django_db_setup, django_db_blocker) -> Iterator[AlertPlace]:
    place = AlertPlace()
    with django_db_blocker.unblock(), place.entered(), ExitStack() as stack:
        place.mails.start()
        stack.callback(place.mails.stop)
        yield place


@pytest.fixture
def watch(place: AlertPlace) -> Watch:
    """Makes a rule that is the only one; it recovers and fires again at once unless the test says otherwise."""

    def make(kind: AlertKind, **fields: Any) -> AlertRule:
        AlertRule.objects.update(is_enabled=False)
        quick = {"recovery_hold_seconds": 0, "cool_down_seconds": 0, "reminder_seconds": 0}
        return AlertRule.objects.create(name="Watched", kind=kind, **{**quick, **fields})

    return make
