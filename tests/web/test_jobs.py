"""The list of jobs: what it shows, how it is searched, and what it says of what it lacks."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.core.words import RunOutcome
from tests.factories import NOW
from tests.metrics_rows import make_rollup, make_run
from tests.web.people import HTMX, client_of, href, tags, viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def page(address: str = "/jobs/"):
    return tags(viewer().get(address))


def test_an_attempt_is_a_row_with_its_outcome_job_queue_durations_worker_and_end():
    make_run(
        task_id="7c1f9a2e-5b1d",
        outcome=RunOutcome.RETRIED,
        error_type="smtplib.SMTPServerDisconnected",
        attempt=2,
        latency_seconds=0.25,
        runtime_seconds=1.5,
        finished_at=NOW - timedelta(seconds=4),
    )

    found = page()

    row = found.text.split("Finished ↓")[1].split("1 recorded")[0]

    assert row.strip() == (
        "Retried shop.tasks.send_receipt SMTPServerDisconnected 7c1f9a2e critical 3 "
        "waited 250 ms ran 1.5 s celery@web-1 4 s ago"
    )
    assert found.all("a", class_="row-link")[0]["href"] == "/jobs/one/?id=7c1f9a2e-5b1d"


def test_a_duration_that_is_not_known_is_a_dash_that_says_why_and_never_zero():
    make_run(latency_seconds=None, runtime_seconds=None, started_at=None, outcome=RunOutcome.REVOKED)

    found = page()

    assert "waited – ran –" in found.text
    titles = [cell.get("title") for cell in found.all("td", class_="number")]
    assert "Not known: its publisher has no agent, or it never started." in titles
    assert "It never started." in titles


def test_the_sentence_counts_from_the_rollups_and_what_has_no_record_is_said():
    make_rollup(at=NOW - timedelta(minutes=5), done=2_300, retried=5, dead=6, dropped=2_310)
    make_run(finished_at=NOW - timedelta(minutes=5))

    text = page().text

    assert "2,311 attempts finished in the last 24 h: 2,300 done, 5 retried, 6 died." in text
    assert (
        "2,310 of these 2,311 attempts have no record: a worker left them out under load, or by sampling."
        in text
    )
    assert "All counts and percentiles include them." in text


def test_attempts_before_the_oldest_record_are_counted_and_said_to_have_none():
    make_rollup(at=NOW - timedelta(hours=3), done=900)
    make_rollup(at=NOW - timedelta(minutes=5), done=1)
    make_run(finished_at=NOW - timedelta(minutes=5))

    text = page().text

    assert "Records reach back to 03:07 UTC. Of 900 attempts before that only the count is kept." in text


def test_when_every_attempt_has_its_record_nothing_is_said_of_gaps():
    make_rollup(at=NOW - timedelta(minutes=5), done=1)
    make_run(finished_at=NOW - timedelta(minutes=5))

    text = page().text

    assert "1 attempt finished in the last 24 h: 1 done." in text
    assert "record:" not in text
    assert "only the count is kept" not in text


def test_a_search_lists_what_matches_and_its_chips_take_it_away():
    make_run(task="shop.tasks.charge_card", queue="pay")
    make_run()

    response = viewer().get("/jobs/", {"q": "task:charge_card queue:pay"})

    text = tags(response).text
    assert "charge_card" in text.split("Finished ↓")[1]
    assert "send_receipt" not in text.split("Finished ↓")[1]
    assert href(response, "Remove task:charge_card") == "/jobs/?q=queue%3Apay"


def test_what_is_typed_joins_the_search_of_the_address():
    response = viewer().get("/jobs/", {"q": "queue:pay", "add": "outcome:dead"})

    assert response.headers["Location"] == "/jobs/?q=queue%3Apay+outcome%3Adead"


@pytest.mark.parametrize(
    ("query", "location"),
    [
        ("window=6h", "/jobs/?q=since%3A6h"),
        ("q=queue:pay&window=24h", "/jobs/?q=queue%3Apay+since%3A24h"),
        (
            "from=2026-11-12T02:41Z&to=2026-11-12T02:51Z",
            "/jobs/?q=since%3A2026-11-12T02%3A41%3A00Z+until%3A2026-11-12T02%3A51%3A00Z",
        ),
    ],
)
def test_the_time_window_of_a_link_becomes_part_of_the_search(query, location):
    assert viewer().get(f"/jobs/?{query}").headers["Location"] == location


def test_a_time_that_is_searched_for_wins_over_the_window_of_a_link():
    assert viewer().get("/jobs/?q=since:15m&window=6h").status_code == 200


def test_links_from_the_list_keep_the_time_that_is_looked_at():
    make_run()

    links = [each["href"] for each in page("/jobs/?q=since:6h").all("a", class_="quiet")]

    assert links == [
        "/queues/one/?name=critical&window=6h",
        "/workers/one/?name=celery%40web-1&window=6h",
    ]


def test_a_search_that_cannot_be_read_is_a_400_that_names_the_word_and_links_to_what_was_meant():
    make_run()

    response = viewer().get("/jobs/", {"q": "task:x outcme:dead"})

    assert response.status_code == 400
    assert "Word 2: outcme: is not a qualifier. Did you mean outcome:?" in tags(response).text
    assert href(response, "task:x outcome:dead") == "/jobs/?q=task%3Ax+outcome%3Adead"


def test_a_place_that_was_made_by_hand_leads_to_the_first_page_and_says_so():
    response = viewer().get("/jobs/", {"q": "queue:pay", "at": "after.1"}, follow=True)

    assert response.redirect_chain == [("/jobs/?q=queue%3Apay", 302)]
    assert "is not a place in this list" in tags(response).text


def test_pages_lead_to_older_and_back_to_newer_attempts():
    for seconds in range(60):
        make_run(task_id=f"job-{seconds:02}", finished_at=NOW - timedelta(seconds=seconds))
    client = viewer()

    first = client.get("/jobs/")
    second = client.get(href(first, "Older"))
    again = client.get(href(second, "Newer"))

    def shown(response):
        return [link["href"] for link in tags(response).all("a", class_="row-link")]

    assert len(shown(first)) == 50
    assert shown(second) == [f"/jobs/one/?id=job-{seconds}" for seconds in range(50, 60)]
    assert shown(again) == shown(first)


def test_without_any_attempt_the_page_says_what_would_be_here_and_since_when_none_is():
    text = page().text

    assert "No attempt was reported in the last 24 h." in text
    assert "Each attempt that ends on a worker with the agent is listed here within two seconds" in text


def test_an_id_that_matches_no_record_leads_to_what_else_is_known_of_it():
    response = viewer().get("/jobs/", {"q": "7c1f9a2e-5b1d"})

    assert "No recorded attempt matches" in tags(response).text
    assert href(response, "Show what is known of") == "/jobs/one/?id=7c1f9a2e-5b1d"


def test_the_poll_counts_what_came_since_the_page_was_drawn():
    make_run()
    client = viewer()
    live = tags(client.get("/jobs/")).all("a", id="live")[0]["hx-get"]
    make_run(finished_at=NOW + timedelta(seconds=1))
    make_run(finished_at=NOW + timedelta(seconds=2))

    response = client.get(live, **HTMX)

    assert "2 new, show" in tags(response).text
    assert href(response, "2 new, show") == "/jobs/"


@pytest.mark.parametrize("after", ["", "x", "x|y", "2026-99-99T00:00:00Z|1", "2026-11-12T03:12:00|1"])
def test_a_poll_that_was_made_by_hand_shows_nothing_new(after):
    make_run()

    response = viewer().get("/jobs/", {"after": after}, **HTMX)

    assert response.status_code == 200
    assert "new, show" not in response.content.decode()


def test_hostile_names_are_shown_and_never_run():
    nasty = '<script>alert(1)</script>"&\u202e'
    make_run(task=nasty, queue=nasty, worker=nasty, error_type=nasty, task_id=nasty)

    response = viewer().get("/jobs/")

    assert "<script>alert" not in response.content.decode()
    assert "\u202e" not in tags(response).text


def test_the_list_takes_as_many_queries_for_fifty_attempts_as_for_one():
    client = viewer()
    make_run()

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            client.get("/jobs/")
        return len(captured)

    queries()
    one = queries()
    for _ in range(49):
        make_run()

    assert queries() == one


def test_somebody_without_a_role_is_refused():
    response = client_of(None).get("/jobs/")

    assert response.status_code == 403
    assert "view runs" in tags(response).text
