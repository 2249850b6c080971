"""What pages of numbers answer to polls: other tabs of the same login are told the same for seconds, nobody else is."""

from __future__ import annotations

from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console import recent
from jobs.models import QueueSample, WorkerBoot
from tests.factories import NOW
from tests.metrics_rows import TASK, make_boot, make_rollup, make_sample
from tests.web.people import HTMX, admin, tags, viewer

pytestmark = pytest.mark.django_db

PAGES = (
    "/",
    "/queues/",
    "/queues/one/?name=critical",
    "/queues/one/?name=critical&part=charts",
    f"/tasks/one/?name={TASK}",
    "/workers/",
    "/workers/one/?name=celery%40web-1",
)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        make_sample(ready=12)
        make_boot(queues=["critical"])
        make_rollup(done=3, received=3)
        yield


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Hold the clock by which the age of what is kept is measured; the last number counts."""
    passed = [0.0]
    monkeypatch.setattr(recent, "clock", lambda: passed[-1])
    return passed


def poll(client: Any, address: str) -> tuple[str, list[str]]:
    """Return the answer to a poll, and the statements that it took beside those of login and permissions."""
    with CaptureQueriesContext(connection) as asked:
        response = client.get(address, **HTMX)
    assert response.status_code == 200
    read = [each["sql"] for each in asked if "jobs_" in each["sql"]]
    return response.content.decode(), read


@pytest.mark.parametrize("address", PAGES)
def test_a_second_tab_is_told_what_the_first_was_and_asks_the_database_nothing(address, seconds):
    client = viewer()

    first, asked_first = poll(client, address)
    seconds.append(1.0)
    second, asked_second = poll(client, address)
    seconds.append(6.0)
    _, asked_later = poll(client, address)

    assert second == first
    assert asked_first
    assert asked_second == []
    if address != "/":
        assert asked_later


@pytest.mark.parametrize("address", PAGES)
def test_no_one_else_is_told_it(address, seconds):
    mine, _ = poll(admin(), address)
    theirs, asked = poll(viewer(), address)

    assert asked or address == "/"
    if address == "/queues/one/?name=critical":
        assert "aria-disabled" not in mine
        assert theirs.count('aria-disabled="true"') == 3


def test_who_loads_the_page_sees_what_is_so_now(seconds):
    client = viewer()
    poll(client, "/queues/")
    poll(client, "/workers/")

    QueueSample.objects.update(ready=77)
    WorkerBoot.objects.update(load=9.75)

    assert "77 messages wait" in tags(client.get("/queues/")).text
    assert "9.75" in tags(client.get("/workers/")).text


def test_the_page_of_a_worker_is_never_older_than_its_polls_are_apart(seconds):
    client = viewer()
    address = "/workers/one/?name=celery%40web-1"
    poll(client, address)
    WorkerBoot.objects.update(load=9.75)
    seconds.append(2.0)

    found, _ = poll(client, address)

    assert "9.75" in found
