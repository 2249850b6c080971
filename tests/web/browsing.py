"""A real browser on the console, logged in as Mara."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, Page

from tests import night


class Problems(list[str]):
    """What the browser complained about."""


def open_page(browser: Browser, console_url: str, **options: Any) -> tuple[Page, Problems]:
    """Log in as Mara; collect errors of scripts and violations of the policy."""
    page = browser.new_context(base_url=console_url, **options).new_page()
    problems = Problems()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console",
        lambda message: problems.append(message.text) if "Content Security" in message.text else None,
    )
    page.goto("/login/")
    page.get_by_label("Name").fill("mara")
    page.get_by_label("Password").fill(night.PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{console_url}/")
    return page, problems
