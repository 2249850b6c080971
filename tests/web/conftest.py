"""The browser of the tests and a console with the night of the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from console import recent
from tests.web import kept_night
from tests.web.browsing import Problems, open_page


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    return {**browser_type_launch_args, "executable_path": "/usr/bin/chromium", "args": ["--no-sandbox"]}


@pytest.fixture
def console_url(live_server) -> str:
    """Serve the console with the night of the pictures."""
    kept_night.fill_database()
    return str(live_server.url)


@pytest.fixture
def opened(browser, console_url) -> Iterator[tuple[Page, Problems]]:
    page, problems = open_page(browser, console_url, viewport={"width": 1440, "height": 1000})
    yield page, problems
    page.context.close()
    assert problems == []


@pytest.fixture
def console_page(opened) -> Page:
    return opened[0]


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    """Let no poll be told what another test's page was told."""
    recent.forget()
