"""The addresses in mails are those of the pages."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from django.urls import Resolver404, resolve, reverse

from jobs.alerts import addresses


@pytest.fixture(autouse=True)
def _console(settings) -> None:
    settings.CONSOLE_URL = "https://jobs.shop.example"


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (addresses.overview, "overview"),
        (addresses.queues, "queues"),
        (addresses.workers, "workers"),
        (addresses.outbox, "outbox"),
        (lambda: addresses.letters("x"), "letters"),
        (lambda: addresses.jobs("x"), "jobs"),
        (lambda: addresses.alert(7), "alert"),
        (lambda: addresses.rule(7), "alert-rule"),
        (lambda: addresses.silence(7), "alert-silence"),
        (lambda: addresses.queue("x"), "queue"),
        (lambda: addresses.worker("x"), "worker"),
        (lambda: addresses.task("x"), "task"),
    ],
)
def test_each_leads_to_its_page(address, name: str) -> None:
    path = urlsplit(address()).path

    try:
        found = resolve(path)
    except Resolver404:
        pytest.fail(f"{path} leads nowhere; the page {name} is at another address now")
    assert found.view_name == f"console:{name}"
    assert reverse(f"console:{name}", kwargs=found.kwargs) == path


@pytest.mark.parametrize("name", ["a b", "a&b=c", "ä/ö?#", "x\r\ny", "100%", '"><script>'])
def test_names_survive_the_way_through_an_address(name: str) -> None:
    for address in (addresses.queue(name), addresses.worker(name), addresses.task(name)):
        assert parse_qs(urlsplit(address).query)["name"] == [name]
        assert address.isascii()
        assert address.isprintable()


def test_a_search_survives_and_stays_readable() -> None:
    query = 'state:dead group:1,2 task:"a b" since:2026-11-12T02:41Z'

    address = addresses.letters(query)

    assert parse_qs(urlsplit(address).query)["q"] == [query]
    assert "?q=state:dead+group:1,2+" in address


def test_a_console_under_a_path_keeps_it(settings) -> None:
    settings.CONSOLE_URL = "https://shop.example/jobs/"

    assert addresses.alert(7) == "https://shop.example/jobs/alerts/7/"
