"""The list of queues: what waits, who consumes, worst first."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.core.words import LetterState
from jobs.models import Lease
from jobs.roles import OPERATOR
from tests.factories import NOW, make_letter
from tests.metrics_rows import make_rollup, make_sample
from tests.web.people import HTMX, client_of, href, tags, viewer
from tests.web.queue_pages import CRITICAL, QUEUES, page, rows

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


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


def rows_of(text: str) -> str:
    return text if "No queue is known" in text else rows(text)


def test_letters_that_were_purged_from_a_queue_do_not_count_as_dead():
    make_letter(queue="critical", state=LetterState.PURGED)

    assert "critical" not in rows_of(page())


def test_every_role_reads_the_list_and_nobody_without_a_role():
    make_sample(ready=1)

    assert client_of(OPERATOR).get(QUEUES).status_code == 200
    assert client_of(None).get(QUEUES).status_code == 403
