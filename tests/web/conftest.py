"""A console with the night of the pictures, in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from console import recent
from tests.web import kept_night
from tests.web.browsing import Browsing

# What is expected comes at once; five seconds, the default, are too few where many tests share the processors.
expect.set_options(timeout=15_000)


@pytest.fixture(scope="session")
def _browsing(browser: Browser, live_server: LiveServer) -> Iterator[Browsing]:
    browsing = Browsing(browser, live_server.url)
    yield browsing
    browsing.close()


@pytest.fixture
def browsing(_browsing: Browsing, live_server: LiveServer) -> Iterator[Browsing]:
    """Serve the console with the night of the pictures, to pages of a browser that must not complain."""
    kept_night.fill_database()
    yield _browsing
    assert _browsing.close_pages() == []


@pytest.fixture
def console_page(browsing: Browsing) -> Page:
    return browsing.open()


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    """Let no poll be told what another test's page was told."""
    recent.forget()
