"""Where the pages are that mails point at. The paths are those of the product's pages under CONSOLE_URL.

``tests/alerts/test_addresses.py`` holds them against the pages.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from jobs import conf


def letters(query: str) -> str:
    """Return the address of the dead letters that a search finds."""
    return _page("dead-letters/", f"q={quote(query, safe=':, ').replace(' ', '+')}")


def jobs(query: str) -> str:
    """Return the address of the attempts that a search finds."""
    return _page("jobs/", f"q={quote(query, safe=':, ').replace(' ', '+')}")


def alert(alert_id: int) -> str:
    """Return the address of an alert."""
    return _page(f"alerts/{alert_id}/")


def rule(rule_id: int) -> str:
    """Return the address of a rule."""
    return _page(f"alerts/rules/{rule_id}/")


def silence(rule_id: int) -> str:
    """Return the address of the page that asks for how long to silence a rule."""
    return _page("alerts/silence/", urlencode({"rule": rule_id}))


def queue(name: str) -> str:
    """Return the address of a queue."""
    return _page("queues/one/", urlencode({"name": name}))


def queues() -> str:
    """Return the address of the list of queues."""
    return _page("queues/")


def worker(hostname: str) -> str:
    """Return the address of a worker."""
    return _page("workers/one/", urlencode({"name": hostname}))


def workers() -> str:
    """Return the address of the list of workers."""
    return _page("workers/")


def task(name: str) -> str:
    """Return the address of a task."""
    return _page("tasks/one/", urlencode({"name": name}))


def outbox() -> str:
    """Return the address of the outbox."""
    return _page("outbox/")


def overview() -> str:
    """Return the address of the overview."""
    return _page("")


def _page(path: str, query: str = "") -> str:
    return f"{conf.current().console_url}/{path}{'?' if query else ''}{query}"
