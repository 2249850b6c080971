"""The page of one queue: its figures, charts and tasks, and what may be done to it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine

from jobs.roles import VIEWER
from tests.factories import NOW, make_letter
from tests.metrics_rows import TASK, make_boot, make_heartbeat, make_rollup, make_sample, running_job
from tests.web.people import HTMX, admin, client_of, href, operator, tags, viewer
from tests.web.queue_pages import CRITICAL, page, rows

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def test_a_queue_that_was_quiet_in_the_window_has_its_page_all_the_same():
    make_rollup(at=NOW - timedelta(days=3), done=5)

    assert "Nobody has measured this queue." in page(CRITICAL)
    assert "No job ran from this queue in this time." in page(CRITICAL)


def test_a_queue_that_nothing_is_known_of_is_not_found():
    assert "No queue of the name nowhere is known" in page("/queues/one/?name=nowhere", status=404)
    assert page("/queues/one/", status=404)


def test_the_page_of_a_queue_tells_its_figures_with_what_changed():
    make_sample(at=NOW - 50 * MINUTE, ready=150)
    make_sample(ready=1_610, unacknowledged=16, held_by_workers=37, consumers=4, oldest_age_seconds=134.0)
    make_boot(queues=["critical"])
    make_rollup(at=NOW - 90 * MINUTE, done=100, received=100, latency=[0.5] * 100)
    make_rollup(at=NOW - MINUTE, done=75, dead=25, received=120, latency=[1.6] * 100)

    text = page(CRITICAL)

    assert "1,610 messages wait; the oldest has waited 2 min 14 s. 4 consumers take from it." in text
    assert "Waiting 1,610 up 1,460 from 150 oldest 2 min 14 s" in text
    assert "With workers 16 37 held for later" in text
    assert "Consumers 4 celery@web-1" in text
    assert "Failure rate 25.0 % up 25.0 points from 0.0 % 25 of 100 jobs" in text
    assert re.search(r"Latency p95 1\.[67]\d* s up 1(\.\d)? s from [45]\d0 ms p50 1\.[67]\d* s, p99 1", text)


def test_minutes_of_which_nobody_told_do_not_lower_the_rate_before():
    # Workers began to report five minutes before the window did.
    for ago in (*range(1, 60), *range(61, 66)):
        make_rollup(at=NOW - ago * MINUTE, received=30, done=30)

    assert "Done 30 /min no change from 30" in page(CRITICAL)


def lose_worker(minutes_ago: int = 21, **columns: Any) -> None:
    seen = NOW - minutes_ago * MINUTE
    make_boot("celery@img-2", last_seen_at=seen, lost_at=seen + timedelta(seconds=30), **columns)


def test_messages_that_a_lost_worker_took_are_told_apart_from_those_that_living_ones_have(settings: Any):
    settings.BROKER_URL = "redis://r/0"
    make_boot(reserved={"critical": 2})
    lose_worker(reserved={"critical": 3}, running=[running_job(), running_job(is_acknowledged=True)])
    make_sample(unacknowledged=6)

    response = client_of(VIEWER).get(CRITICAL)

    assert "With workers 6 4 with lost workers" in tags(response).text
    assert "4 of these were taken by workers that are lost: Redis hands them out again when" in (
        response.content.decode()
    )
    assert "6 4 with lost workers" in page()


@pytest.mark.parametrize(
    ("broker", "minutes_ago", "delivered"),
    [("redis://r/0", 21, 2), ("redis://r/0", 61, 6), ("amqp://r", 21, 6)],
    ids=["all are with the living", "back by now", "this broker counts the living only"],
)
def test_no_message_is_said_to_be_with_a_lost_worker_where_that_is_not_known(
    settings: Any, broker: str, minutes_ago: int, delivered: int
) -> None:
    settings.BROKER_URL = broker
    make_boot(reserved={"critical": 2})
    lose_worker(minutes_ago, reserved={"critical": 4})
    make_sample(unacknowledged=delivered)

    assert f"With workers {delivered} none held for later" in page(CRITICAL)
    assert "with lost workers" not in page()


def test_without_numbers_a_tile_says_why_and_shows_no_zero():
    make_sample(ready=0)

    text = page(CRITICAL)

    assert "Failure rate – No worker reported in this time." in text
    assert "Latency p95 – No worker reported in this time." in text


def test_an_hour_without_jobs_says_that_nothing_finished():
    make_sample(ready=0)
    make_heartbeat(at=NOW - MINUTE)

    text = page(CRITICAL)

    assert "Done 0 /min" in text
    assert "Failure rate – Nothing finished in this time." in text


def test_why_a_queue_is_not_known_is_said_once_and_nothing_of_it_is_called_none():
    make_sample(at=NOW - 5 * MINUTE, ready=12)

    text = page(CRITICAL)

    assert text.count("Queues have not been counted lately") == 1
    for tile in ("Waiting", "With workers", "Consumers"):
        assert f"{tile} – Not known now." in text


def test_a_queue_that_nobody_consumes_says_what_follows():
    make_sample(ready=12, consumers=0)

    text = page(CRITICAL)

    assert "12 messages wait, and no worker consumes from it: nothing will run until one does." in text
    assert "Consumers 0 nobody consumes" in text


def test_the_tasks_of_a_queue_are_listed_those_that_died_most_first():
    make_sample(ready=0)
    make_rollup(at=NOW - MINUTE, task="shop.tasks.busy", done=90, runtime=[0.2] * 90)
    make_rollup(
        at=NOW - MINUTE, task=TASK, done=10, dead=10, retried=4, latency=[2.0] * 20, runtime=[0.18] * 24
    )

    response = viewer().get(CRITICAL)
    text = tags(response).text

    listed = text[text.index("Tasks on this queue") :]
    assert listed.index("send_receipt") < listed.index("busy")
    assert "shop.tasks.send_receipt 10 4 10 50.0 %" in listed
    assert href(response, "send_receipt") == f"/tasks/one/?name={TASK}"


def test_charts_are_drawn_with_a_table_behind_and_polled_once_a_minute():
    make_sample(ready=12)
    make_rollup(at=NOW - MINUTE, done=9, latency=[0.5])
    client = viewer()

    text = page(CRITICAL, client)
    polled = client.get(CRITICAL, **HTMX)
    charts = client.get(f"{CRITICAL}&part=charts", **HTMX)

    for title in ("Queue depth messages waiting", "Oldest message", "Latency", "Throughput attempts /min"):
        assert title in text
    assert "Show as a table" in text
    assert b"depth-figure" not in polled.content
    assert b'id="queue-tables" hx-swap-oob="true"' in polled.content
    assert charts.content.startswith(b'<div class="halves" id="charts"')
    assert b'id="depth-figure"' in charts.content


def test_dead_letters_and_recent_jobs_of_the_queue_are_a_link_away():
    make_letter(queue="critical")

    response = viewer().get(CRITICAL)

    assert href(response, "1 dead letter") == "/dead-letters/?q=queue%3Acritical"
    assert href(response, "Recent jobs") == "/jobs/?q=queue%3Acritical"


def test_a_viewer_sees_the_actions_refused_with_their_reason():
    make_sample(ready=12)

    response = viewer().get(CRITICAL)

    refused = [each["title"] for each in tags(response).all("span", aria_disabled="true")]
    assert refused == [
        "Looking into a queue takes the permission “look at the messages that wait on a queue”. Ask an admin.",
        "Pausing a queue takes the permission “pause and resume queues”. Ask an admin.",
        "Purging a queue takes the permission “purge the messages that wait on a queue”. Ask an admin.",
    ]


def test_an_operator_may_pause_and_look_but_not_purge():
    make_sample(ready=12)

    response = operator().get(CRITICAL)

    assert href(response, "Pause") == "/queues/one/pause/?name=critical"
    assert href(response, "Look at the oldest 20") == "/queues/one/waiting/?name=critical"
    assert len(tags(response).all("span", aria_disabled="true")) == 1


def test_row_83_what_the_broker_holds_until_its_time_is_no_queue_to_act_on():
    make_sample(queue="celery_delayed", ready=0, held_by_broker=40, consumers=None, unacknowledged=None)

    listed, one = page(), admin().get("/queues/one/?name=celery_delayed")

    assert "celery_delayed Delayed 0" in rows(listed)
    assert "40 held for later" in listed
    assert (
        "The broker holds 40 messages until their time. It does not tell for which queues." in tags(one).text
    )
    assert not tags(one).all("a", href="/queues/one/pause/?name=celery_delayed")
