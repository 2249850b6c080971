"""What is done to a queue: pause, resume and purge, each asked for on a page of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine

from jobs.core.words import QueueActionState
from jobs.models import QueueAction, QueuePause
from tests.factories import NOW
from tests.metrics_rows import make_boot, make_sample
from tests.servers import free_port
from tests.web.acting import audited, field_of
from tests.web.people import admin, operator, tags, viewer
from tests.web.queue_pages import CRITICAL, QUEUES, page

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


@pytest.mark.parametrize("action", ["pause", "resume", "purge", "waiting"])
def test_an_action_is_refused_by_role(action):
    make_sample(ready=12)

    response = viewer().post(f"/queues/one/{action}/?name=critical", {"why": "x", "expected": "12"})

    assert response.status_code in {403, 405}
    assert not QueuePause.objects.exists()
    assert not QueueAction.objects.exists()


def test_the_pause_page_says_what_follows_and_does_nothing():
    make_sample(ready=12, consumers=2)

    text = page("/queues/one/pause/?name=critical", operator())

    assert "Pause the queue critical" in text
    assert "What workers had already taken still runs" in text
    assert "2 consumers take from it now." in text
    assert not QueuePause.objects.exists()


def test_a_queue_is_paused_with_a_reason_and_says_who_and_why():
    make_sample(ready=12)
    client = operator()

    response = client.post("/queues/one/pause/?name=critical", {"why": "the gateway is down"}, follow=True)
    text = tags(response).text

    assert response.redirect_chain == [("/queues/one/?name=critical", 302)]
    assert "critical is paused." in text
    assert "Mara Lindqvist paused this queue 0 s ago. Messages still arrive and wait here." in text
    assert "Reason: the gateway is down" in text
    assert "critical Paused" in page(QUEUES, client)
    entry = audited().get()
    assert (entry.action, entry.text, entry.why) == (
        "pause_queue",
        "paused the queue critical",
        "the gateway is down",
    )


def test_a_pause_without_a_reason_is_refused():
    make_sample(ready=12)

    response = operator().post("/queues/one/pause/?name=critical", {"why": " "})

    assert response.status_code == 422
    assert "Write why: it is kept in the audit log with your name." in tags(response).text
    assert not QueuePause.objects.exists()


def test_a_queue_that_is_paused_cannot_be_paused_again():
    make_sample(ready=12)
    QueuePause.objects.create(queue="critical", paused_at=NOW, actor="Tomas", why="")
    client = operator()

    asked = page("/queues/one/pause/?name=critical", client)
    response = client.post("/queues/one/pause/?name=critical", {"why": "again"})

    assert "Tomas paused it already." in asked
    assert response.status_code == 409
    assert "it is paused already by Tomas" in tags(response).text


def test_a_pause_that_nobody_could_be_told_says_why(settings: Any):
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    make_sample(ready=12)
    make_boot(queues=["critical"])

    response = operator().post("/queues/one/pause/?name=critical", {"why": "x"}, follow=True)

    assert "celery@web-1 did not answer and will be told again. The broker" in tags(response).text


def test_a_queue_is_resumed_by_post_only():
    make_sample(ready=12)
    QueuePause.objects.create(queue="critical", paused_at=NOW, actor="Tomas", why="")
    client = operator()

    looked = client.get("/queues/one/resume/?name=critical", follow=True)
    assert QueuePause.objects.exists()
    assert "Nothing was done: only the button on this page acts." in tags(looked).text

    done = client.post("/queues/one/resume/?name=critical", follow=True)
    again = client.post("/queues/one/resume/?name=critical", follow=True)

    assert not QueuePause.objects.exists()
    assert "critical is resumed." in tags(done).text
    assert "it is not paused" in tags(again).text


def test_row_75_the_purge_page_shows_what_goes_and_what_stays_apart():
    make_sample(ready=12, unacknowledged=4, held_by_workers=3, held_in_outbox=2)

    text = page("/queues/one/purge/?name=critical", admin())

    assert (
        "12 wait on the queue: purged 1 with workers: they stay and run 5 held for later: they stay" in text
    )
    assert "kept as purged letters until 19 Nov, 03:12 UTC" in text
    assert "Purge 12 messages" in text


def test_a_purge_under_consumers_advises_a_pause_first():
    make_sample(ready=12, consumers=4)
    make_sample(queue="quiet", ready=12, consumers=0)
    client = admin()

    advice = (
        "4 consumers take messages from it meanwhile, and these run. Pause the queue first if none is to run."
    )
    assert advice in page("/queues/one/purge/?name=critical", client)
    assert "Pause the queue first" not in page("/queues/one/purge/?name=quiet", client)


def test_counts_that_nobody_knows_are_not_called_zero_on_the_purge_page():
    make_sample(ready=12, unacknowledged=None)

    assert "– with workers: not known, they stay" in page("/queues/one/purge/?name=critical", admin())


@pytest.mark.parametrize(
    ("typed", "said"),
    [("", "Type the count. 1610 messages waited."), ("161", "You typed 161. 1610 messages waited.")],
)
def test_above_a_thousand_the_count_is_typed(typed, said):
    make_sample(ready=1_610)
    client = admin()

    asked = page("/queues/one/purge/?name=critical", client)
    response = client.post(
        "/queues/one/purge/?name=critical", {"why": "stale", "expected": "1610", "typed_count": typed}
    )

    assert "Type 1610 to confirm" in asked
    assert response.status_code == 422
    assert said in tags(response).text
    assert not QueueAction.objects.exists()


def test_a_purge_that_was_refused_is_asked_again_about_what_waits_by_then():
    make_sample(ready=900)

    refused = admin().post(
        "/queues/one/purge/?name=critical", {"why": "stale", "expected": "1610", "typed_count": ""}
    )

    assert refused.status_code == 422
    assert "Type the count. 1610 messages waited. Fewer wait now" in tags(refused).text
    assert "Purge 900 messages" in tags(refused).text
    assert field_of(refused, "expected") == "900"
    assert not tags(refused).all("input", name="typed_count")


@pytest.mark.parametrize("expected", ["", "many", "-3", "0"])
def test_a_purge_without_its_count_is_refused(expected):
    make_sample(ready=12)

    response = admin().post("/queues/one/purge/?name=critical", {"why": "stale", "expected": expected})

    assert response.status_code == 422
    assert "This page does not say how many messages it is about. Open it again." in tags(response).text


def test_nothing_is_purged_where_nothing_waits_or_nobody_knows():
    make_sample(queue="empty", ready=0)
    make_sample(queue="unknown", ready=None)
    client = admin()

    assert "No message waits on it: there is nothing to purge." in page(
        "/queues/one/purge/?name=empty", client
    )
    assert "How many messages wait is not known" in page("/queues/one/purge/?name=unknown", client)


@pytest.mark.parametrize(
    ("state", "taken", "words"),
    [
        (QueueActionState.WAITING, 0, "1,610 to purge; runops has not begun."),
        (QueueActionState.RUNNING, 500, "500 of 1,610 purged so far."),
        (QueueActionState.FINISHED, 1_610, "1,610 messages purged."),
        (QueueActionState.FINISHED, 1_600, "1,600 messages purged; the other 10 had been taken by workers."),
        (QueueActionState.FAILED, 500, "stopped after 500 of 1,610: the disk is full."),
    ],
)
def test_how_far_a_purge_is_stands_on_the_page(state, taken, words):
    make_sample(ready=12)
    QueueAction.objects.create(
        kind="purge",
        state=state,
        queue="critical",
        created_at=NOW - MINUTE,
        actor="Mara Lindqvist",
        why="stale",
        expected=1_610,
        taken=taken,
        error="the disk is full" if state == QueueActionState.FAILED else "",
    )

    text = page(CRITICAL)

    assert f"{words} By Mara Lindqvist 1 min ago: stale" in text
