"""A real browser on the console, logged in as Mara."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

# Every layout once and both colours once; only the colours decide on the contrast, which is most of the work of axe.
LOOKS = ((380, "light", True), (1000, "light", False), (1440, "dark", True))
DRAWN = "[...document.querySelectorAll('[data-chart]')].every(chart => chart.querySelector('.main-svg'))"
# The rows of a table are all made by one template: eight of fifty show what it does.
RUN_AXE = """async rules => (await axe.run(
        {include: [document], exclude: [["tr:nth-child(n + 9)"]]}, {resultTypes: ["violations"], rules}
    )).violations
    .filter(fault => ["serious", "critical"].includes(fault.impact))
    .map(fault => `${fault.id}: ${fault.nodes[0].html.slice(0, 160)}`)"""


class Browsing:
    """Opens pages in one browser; scripts are fetched and compiled once for all of them.

    Compiling them again (plotly.js alone is 4.5 MB) and the login form cost 2.6 s of CPU a page. So the contexts stay,
    and in each a tab, which keeps the process of the browser that has compiled them.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self._browser = browser
        self._contexts: dict[tuple[bool, bool], BrowserContext] = {}
        self._pages: list[Page] = []
        self._problems: list[str] = []

    def open(
        self, *, width: int = 1440, height: int = 1000, touch: bool = False, scripts: bool = True
    ) -> Page:
        """Return a page of its own on which Mara is logged in; it has been nowhere yet."""
        context = self._context(touch=touch, scripts=scripts)
        client = Client()
        client.force_login(get_user_model().objects.get(username="mara"))
        context.clear_cookies()
        name = settings.SESSION_COOKIE_NAME
        context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": self.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: self._problems.append(str(error)))
        page.on("console", self._hear)
        look(page, width=width, height=height)
        self._pages.append(page)
        return page

    def close_pages(self) -> list[str]:
        """Close what was opened; return the errors of scripts and the violations of the policy since the last time."""
        for page in self._pages:
            page.close()
        problems, self._pages, self._problems = self._problems, [], []
        return problems

    def close(self) -> None:
        """Close all contexts."""
        for context in self._contexts.values():
            context.close()

    def _context(self, *, touch: bool, scripts: bool) -> BrowserContext:
        key = (touch, scripts)
        if key not in self._contexts:
            context = self._browser.new_context(
                base_url=self.url, has_touch=touch, java_script_enabled=scripts
            )
            context.new_page().goto("/static/console/tick.svg")
            self._contexts[key] = context
        return self._contexts[key]

    def _hear(self, message: ConsoleMessage) -> None:
        if "Content Security" in message.text:
            self._problems.append(message.text)


def look(page: Page, *, width: int, height: int = 900, scheme: Any = "light") -> None:
    """Let the window have this size and these colours; what would change slowly changes at once."""
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")


def poll(page: Page) -> None:
    """Do now what the page does every five seconds; the test of a new letter in the list waits for the clock."""
    page.evaluate("htmx.trigger('#live', 'refresh')")


def find_faults(page: Page, addresses: Sequence[str]) -> list[str]:
    """Load each address on a phone, then widen it; tell what scrolls sideways or fails the accessibility rules."""
    faults = []
    for address in addresses:
        look(page, width=LOOKS[0][0], scheme=LOOKS[0][1])
        page.goto(address)
        page.wait_for_function(DRAWN)
        page.evaluate(Axe().axe_script)
        for width, scheme, has_contrast in LOOKS:
            look(page, width=width, scheme=scheme)
            found = page.evaluate(RUN_AXE, {"color-contrast": {"enabled": has_contrast}})
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append("scrolls sideways")
            faults += [f"{address} at {width} px, {scheme}: {fault}" for fault in found]
    return faults
