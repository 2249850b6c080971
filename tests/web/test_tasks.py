"""The page of a task: how often it runs, how long it waits and runs, where, and how it fails."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from jobs.models import Worker
from jobs.roles import VIEWER
from tests.factories import NOW, make_group, make_letter
from tests.metrics_rows import TASK, make_rollup
from tests.web.people import HTMX, client_of, href, tags

pytestmark = pytest.mark.django_db

PAGE = f"/tasks/one/?name={TASK}"
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def viewer() -> Any:
    return client_of(VIEWER, login=f"viewer-{uuid.uuid4()}")


def page(address: str = PAGE, status: int = 200) -> str:
    response = viewer().get(address)
    assert response.status_code == status
    return tags(response).text


def test_a_task_that_nothing_is_known_of_is_not_found():
    assert "No task of the name shop.tasks.send_receipt is known" in page(status=404)


def test_a_task_tells_its_figures_with_what_changed():
    make_rollup(at=NOW - 90 * MINUTE, done=100, runtime=[0.1] * 100, latency=[0.5] * 100)
    make_rollup(at=NOW - MINUTE, done=75, dead=25, retried=100, runtime=[0.4] * 200, latency=[1.6] * 200)
    make_letter(task=TASK)

    text = page()

    assert "25 of 100 jobs that finished in the last hour died, 25.0 %. 1 dead letter waits" in text
    assert "Dead letters 1 25 jobs died in this time" in text
    assert "Failure rate 25.0 % up 25.0 points from 0.0 % 25 of 100 jobs" in text
    assert re.search(r"Runtime p95 [34]\d0 ms up \S+ m?s from", text)
    assert "Retried 50.0 % up 50.0 points from 0.0 % 100 of 200 attempts" in text


def test_a_task_without_failures_says_that_all_were_done():
    make_rollup(at=NOW - MINUTE, done=9)

    assert "All 9 jobs of send_receipt that finished in the last hour were done." in page()


def test_a_task_that_no_worker_knows_says_so():
    make_letter(task=TASK)

    text = page()

    assert (
        "No job of send_receipt finished in the last hour. No worker knows it now. 1 dead letter waits"
        in text
    )
    assert "no worker that told its tasks lately" in text


def test_its_queues_its_groups_and_its_parameters_are_shown():
    make_rollup(at=NOW - MINUTE, done=9, dead=1)
    make_rollup(at=NOW - MINUTE, queue="default", done=4)
    group = make_group(task=TASK)
    make_letter(task=TASK, group=group)
    Worker.objects.create(
        hostname="celery@web-1",
        seen_at=NOW,
        tasks={TASK: {"names": ["order_id"], "required": 1, "kwonly": [], "kwonly_required": []}},
    )

    response = viewer().get(PAGE)
    text = tags(response).text

    queues = text[text.index("Queues it runs on") :]
    assert queues.index("critical") < queues.index("default")
    assert href(response, "Connection refused") == f"/groups/{group.pk}/"
    assert "Parameters order_id" in text
    assert "Known by celery@web-1" in text


def test_letters_and_recent_jobs_of_the_task_are_a_link_away():
    make_letter(task=TASK)

    response = viewer().get(PAGE)

    for words, start in (("1 dead letter", "/dead-letters/?q=task"), ("Recent jobs", "/jobs/?q=task")):
        address = href(response, words)
        assert address.startswith(start)
        assert viewer().get(address).status_code == 200


def test_the_window_of_the_address_counts():
    make_rollup(at=NOW - 5 * 60 * MINUTE, done=5)

    assert "No job of send_receipt finished in the last hour" in page()
    assert "All 5 jobs of send_receipt that finished in the last 6 hours were done." in page(
        f"{PAGE}&window=6h"
    )


def test_charts_come_with_the_page_and_once_a_minute():
    make_rollup(at=NOW - MINUTE, done=9, runtime=[0.2], latency=[0.5])
    client = viewer()

    whole = client.get(PAGE).content
    polled = client.get(PAGE, **HTMX).content
    charts = client.get(f"{PAGE}&part=charts", **HTMX).content

    for name in (b"throughput-figure", b"failure-rate-figure", b"latency-figure", b"runtime-figure"):
        assert name in whole
        assert name not in polled
        assert name in charts
    assert b'id="task-tables" hx-swap-oob="true"' in polled


def test_a_hostile_name_is_escaped():
    make_rollup(at=NOW - MINUTE, task="<b>x</b>\u202e", done=1)

    response = viewer().get("/tasks/one/", {"name": "<b>x</b>\u202e"})

    assert response.status_code == 200
    assert "<b>x</b>\u202e" not in response.content.decode()
    assert "\u202e" not in tags(response).text
