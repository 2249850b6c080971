"""The pages of queues: what waits, who consumes, worst first; and what is done to a queue."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.core.words import LetterState, QueueActionState
from jobs.models import Lease, QueueAction, QueuePause
from jobs.roles import OPERATOR, VIEWER
from tests.factories import NOW, make_letter
from tests.metrics_rows import TASK, make_boot, make_heartbeat, make_rollup, make_sample, running_job
from tests.servers import free_port
from tests.web.acting import audited, field_of
from tests.web.people import HTMX, admin, client_of, href, operator, tags, viewer

pytestmark = pytest.mark.django_db

QUEUES = "/queues/"
CRITICAL = "/queues/one/?name=critical"
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def page(address: str = QUEUES, client: Any = None, status: int = 200) -> str:
    response = (client or client_of(VIEWER, login=f"viewer-{uuid.uuid4()}")).get(address)
    assert response.status_code == status
    return tags(response).text


def rows(text: str) -> str:
    return text[text.index("Dead letters ", text.index("Latency p95")) :]


# The list


def test_an_empty_list_says_what_would_be_here_and_what_to_do():
    text = page()

    assert "No queue is known yet." in text
    assert "Start a worker, and attach the agent to it" in text


def test_the_sentence_begins_with_the_queues_that_nobody_consumes():
    make_sample(queue="typo", ready=12, consumers=0)
    make_sample(queue="critical", ready=3, consumers=2, oldest_age_seconds=8.0)

    text = page()

    assert (
        "Nobody consumes the queue typo, where 12 messages wait. 15 messages wait in all on 2 queues" in text
    )
    assert "the oldest has waited 8 s, on critical." in text


def test_row_101_a_queue_that_nobody_consumes_is_marked_and_stands_first():
    make_sample(queue="critical", ready=9_000, consumers=2)
    make_sample(queue="typo", ready=1, consumers=0)

    text = rows(page())

    assert text.index("typo Nobody consumes") < text.index("critical Consumed")


def test_a_queue_without_messages_and_consumers_is_no_alarm():
    make_sample(queue="old", ready=0, consumers=0)

    text = page()

    assert "old No consumer" in rows(text)
    assert "No message waits." in text


def test_a_queue_shows_its_depth_with_the_change_and_its_rates():
    make_sample(at=NOW - 30 * MINUTE, ready=142)
    make_sample(ready=1_610, unacknowledged=16, held_by_workers=37, consumers=4, oldest_age_seconds=134.0)
    for ago in range(1, 11):
        make_rollup(at=NOW - ago * MINUTE, received=30, done=18, dead=2, latency=[1.6] * 20)
    make_letter(queue="critical")

    text = rows(page())

    assert "critical Consumed 1,610 +1,468" in text
    assert "2 min 14 s" in text
    assert "16 37 held for later" in text
    # 300 received and 180 done in the ten minutes in which a worker reported.
    assert "4 18 30 received 10.0 % 1.6 s 1" in text


def test_where_held_messages_wait_is_told():
    make_sample(held_by_workers=12, held_in_outbox=3)

    response = viewer().get(QUEUES)

    assert tags(response).all("span", title="Held for later: 12 in workers, 3 in the outbox")


def test_a_failure_rate_that_rose_is_called_worse_and_one_that_fell_is_not():
    make_sample(queue="rising", ready=0)
    make_sample(queue="falling", ready=0)
    make_rollup(at=NOW - 90 * MINUTE, queue="rising", done=99, dead=1)
    make_rollup(at=NOW - MINUTE, queue="rising", done=90, dead=10)
    make_rollup(at=NOW - 90 * MINUTE, queue="falling", done=90, dead=10)
    make_rollup(at=NOW - MINUTE, queue="falling", done=99, dead=1)

    text = page()

    assert "worse: 10.0 %" in text
    assert "worse: 1.0 %" not in text


def test_what_is_not_known_is_not_zero():
    make_sample(
        queue="elsewhere", ready=None, unacknowledged=None, consumers=None, trouble="It is not declared."
    )

    response = viewer().get(QUEUES)
    text = tags(response).text

    assert "elsewhere Not known not known" in text
    assert tags(response).all("td", title="It is not declared.")


def test_a_queue_that_is_known_by_its_jobs_only_is_listed():
    make_rollup(at=NOW - MINUTE, queue="unsampled", done=5, received=5)

    assert "unsampled Not known not known" in page()


def test_counts_that_are_not_up_to_date_say_so_and_why():
    make_sample(at=NOW - 5 * MINUTE, ready=12)
    Lease.objects.create(
        duty="queues",
        holder="runops@web-1:411",
        renewed_at=NOW,
        expires_at=NOW,
        trouble="The broker does not answer.",
        trouble_since=NOW - 5 * MINUTE,
    )

    text = page()

    assert "What waits on the queues is not known now: nobody has measured it lately." in text
    assert "What waits is not up to date. The broker does not answer." in text
    assert "critical Not known not known" in text


def test_the_window_is_that_of_the_address_and_links_keep_it():
    make_sample(ready=1)

    response = viewer().get(f"{QUEUES}?window=24h")

    assert "Depth, last 24 hours" in tags(response).text
    assert href(response, "critical") == "/queues/one/?name=critical&window=24h"


def test_a_rate_is_the_same_on_each_page_that_shows_it():
    for ago in (1, 2):
        make_rollup(at=NOW - ago * MINUTE, received=60, done=60)
    client = viewer()

    listed = rows(page(f"{QUEUES}?window=6h", client))
    one = page(f"{CRITICAL}&window=6h", client)
    overview = page("/?window=6h", client)

    # Of two minutes out of six hours workers told, though a step of the charts is of five.
    assert " 60 60 received 0.0 %" in listed
    assert "Done 60 /min" in one
    assert " 60 60 0.0 %" in overview[overview.index("By queue") :]


def test_the_lives_of_the_workers_are_read_once():
    make_sample(ready=1)
    client = viewer()

    for address in (QUEUES, CRITICAL):
        with CaptureQueriesContext(connection) as asked:
            client.get(address)
        assert sum("jobs_workerboot" in each["sql"] for each in asked) == 1


def test_hostile_names_are_escaped_and_their_direction_marks_shown():
    name = "<script>alert(1)</script>\u202e"
    make_sample(queue=name, ready=3, consumers=0)

    response = viewer().get(QUEUES)
    html = response.content.decode()

    assert "<script>alert(1)" not in html
    assert "\\u202e" in tags(response).text
    assert "\u202e" not in html
    assert "3 messages wait" in page(href(response, "script"))


def test_the_poll_answers_with_the_list_alone():
    make_sample(ready=1)

    response = viewer().get(QUEUES, **HTMX)

    assert response.content.decode().lstrip().startswith('<div id="queues">')


def test_who_looks_at_days_is_not_polled_each_five_seconds():
    make_sample(ready=1)

    assert b'hx-trigger="every 5s, refresh"' in viewer().get(QUEUES).content
    assert b'hx-trigger="every 15s, refresh"' in client_of(OPERATOR).get(f"{QUEUES}?window=7d").content


def test_the_list_asks_no_more_with_more_queues():
    client = viewer()
    make_sample(queue="one", ready=1)
    with CaptureQueriesContext(connection) as few:
        client.get(QUEUES)
    for number in range(30):
        make_sample(queue=f"queue-{number}", ready=number)
        make_rollup(at=NOW - MINUTE, queue=f"queue-{number}", done=3)

    with CaptureQueriesContext(connection) as many:
        client.get(QUEUES)

    assert len(many) == len(few)


# One queue


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


# Pause and resume


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


# Purge


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


def test_letters_that_were_purged_from_a_queue_do_not_count_as_dead():
    make_letter(queue="critical", state=LetterState.PURGED)

    assert "critical" not in rows_of(page())


def rows_of(text: str) -> str:
    return text if "No queue is known" in text else rows(text)


def test_every_role_reads_the_list_and_nobody_without_a_role():
    make_sample(ready=1)

    assert client_of(OPERATOR).get(QUEUES).status_code == 200
    assert client_of(None).get(QUEUES).status_code == 403
