"""A job's page: its whole life on one line and as a list, and what is not known of it."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.presenters import job_events, job_page
from jobs.core import job_ids
from jobs.core.words import ItemState, LedgerState, LetterState, OutboxState, Reason, RunOutcome
from jobs.metrics import job_life, lost
from jobs.models import DeadLetter, IdempotencyRecord, JobProgress, OperationItem
from tests.factories import NOW, make_death, make_item, make_letter, make_operation
from tests.metrics_rows import make_boot, make_run, running_job
from tests.web.outbox_rows import make_message
from tests.web.people import HTMX, client_of, href, tags, viewer

pytestmark = pytest.mark.django_db
JOB = "7c1f9a2e-5b1d-4f0e-9d0a-3c2b1a098765"


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def ago(seconds: float):
    return NOW - timedelta(seconds=seconds)


def attempt(number: int, *, published: float, started: float, finished: float, **columns: Any):
    return make_run(
        **{
            "task_id": JOB,
            "publication_id": f"publication-{number}",
            "attempt": number - 1,
            "published_at": ago(published),
            "started_at": ago(started),
            "finished_at": ago(finished),
            "latency_seconds": published - started,
            "runtime_seconds": started - finished,
            **columns,
        }
    )


def page(client: Any = None):
    return tags((client or viewer()).get("/jobs/one/", {"id": JOB}))


def parts() -> list[tuple[str, float]]:
    return [(part.kind, part.seconds) for part in job_events.parts(job_life.read(JOB, now=NOW), now=NOW)]


def words() -> list[str]:
    return [f"{event.word} {event.text}".strip() for event in job_events.events(job_life.read(JOB, now=NOW))]


@pytest.fixture
def whole_life() -> DeadLetter:
    """Written to the outbox, sent by the relay, tried twice, died, replayed and done."""
    make_message(
        task_id=JOB,
        created_at=ago(100),
        published_at=ago(98),
        published_by="relay",
        state=OutboxState.PUBLISHED,
        idempotency_key="receipt:48213",
    )
    attempt(
        1,
        published=98,
        started=97,
        finished=95,
        outcome=RunOutcome.RETRIED,
        error_type="ConnectionRefusedError",
    )
    attempt(2, published=94, started=90, finished=89, outcome=RunOutcome.DEAD)
    letter = make_letter(task_id=JOB, died_at=ago(89), reason=Reason.RETRIES_EXHAUSTED, death=False)
    make_death(
        letter, publication_id="publication-2", attempt=1, task_id=JOB, died_at=ago(89), started_at=ago(90)
    )
    operation = make_operation(actor="mara")
    make_item(
        operation, letter, state=ItemState.DONE, task_id="replayed-job", sent_at=ago(20), ended_at=ago(17)
    )
    DeadLetter.objects.filter(pk=letter.pk).update(state=LetterState.RESOLVED)
    return letter


def test_the_whole_life_is_told_in_order_with_exact_times(whole_life):
    found = page()

    assert words() == [
        "Written to the outbox with the transaction that enqueued it",
        "Published by the relay to queue critical, 2 s after that",
        "Attempt 1 started on celery@web-1 after 1 s of waiting",
        "Retried attempt 1, after 2 s",
        "Attempt 2 published to queue critical",
        "Attempt 2 started on celery@web-1 after 4 s of waiting",
        "Died: retries exhausted attempt 2, after 1 s",
        f"Replayed by mara in operation {OperationItem.objects.get().operation_id}",
        "Its replay is done",
    ]
    assert (
        "It died on attempt 2, 9 s after it was published. A replay of it has been done since." in found.text
    )
    times = [each["datetime"] for each in found.all("time") if each["datetime"]]
    assert ago(97).isoformat() in times


def test_the_line_has_each_part_with_its_length_and_no_part_twice(whole_life):
    assert parts() == [
        ("outbox", 2),
        ("wait", 1),
        ("retried", 2),
        ("wait", 5),
        ("dead", 1),
        ("down", 69),
        ("replay", 3),
    ]
    bars = [
        each
        for each in page().all("rect")
        if (each["class"] or "").startswith("job-") and each.get("y") == "2"
    ]
    assert len(bars) == 7
    assert float(bars[-1]["x"] or 0) + float(bars[-1]["width"] or 0) == pytest.approx(
        job_page.LINE_WIDTH, abs=0.1
    )


def test_a_part_that_would_leave_no_room_is_broken_and_says_its_length(whole_life):
    DeadLetter.objects.update(state=LetterState.DEAD)
    OperationItem.objects.all().delete()

    with time_machine.travel(NOW + timedelta(hours=9), tick=False):
        found = tags(viewer().get("/jobs/one/", {"id": JOB}))

    assert "parts cut by a gap took longer than they are drawn" in found.text
    assert "dead 9 h 1 min" in found.text
    widths = [float(each["width"] or 0) for each in found.all("rect", y="2")]
    assert min(widths) >= 4
    assert max(widths) < 600


def test_the_job_and_its_letter_link_to_each_other(whole_life):
    client = viewer()

    of_job = client.get("/jobs/one/", {"id": JOB})
    of_letter = client.get(f"/dead-letters/{whole_life.uuid}/")

    assert href(of_job, f"letter {whole_life.short_id}") == f"/dead-letters/{whole_life.uuid}/"
    assert href(of_letter, "The whole job") == f"/jobs/one/?id={JOB}"


def test_an_attempt_of_which_death_and_record_are_known_is_told_once(whole_life):
    assert len(job_events.attempts(job_life.read(JOB, now=NOW))) == 2


def test_a_death_without_a_record_is_an_attempt_all_the_same():
    letter = make_letter(task_id=JOB, died_at=ago(5), death=False)
    make_death(letter, task_id=JOB, attempt=4, published_at=ago(9), started_at=ago(7), died_at=ago(5))

    text = page().text

    assert "It died on attempt 5, 4 s after it was published. It will not run again by itself." in text
    assert "4 attempts before the last have no record" in text
    assert "No outbox message: it was published directly" in text


def test_a_job_that_is_done_shows_no_letter_and_stops_polling():
    attempt(1, published=9, started=8, finished=6)
    client = viewer()

    answer = client.get("/jobs/one/", {"id": JOB}, **HTMX)

    assert answer.status_code == 286
    assert "It was done, 3 s after it was published." in tags(answer).text
    assert parts() == [("wait", 1), ("done", 2)]


def test_a_job_that_runs_is_told_by_its_worker_and_polls():
    job = running_job(
        task_id=JOB, attempt=1, started_at=ago(12).timestamp(), published_at=ago(20).timestamp()
    )
    make_boot(running=[running_job(), job])
    JobProgress.objects.create(
        task_id=JOB, task="x", done=340, total=1000, note="feed 3", started_at=ago(12), updated_at=ago(1)
    )

    found = page()

    assert "Attempt 2 has been running for 12 s." in found.text
    assert "Attempt 2 runs on celery@web-1 after 8 s of waiting" in found.text
    assert "340 of 1,000: feed 3" in found.text
    assert "shop.tasks.send_receipt" in found.text
    assert found.all("a", id="live")[0]["hx-get"] == f"/jobs/one/?id={JOB}"
    assert parts() == [("wait", 8), ("running", 12)]


def test_a_job_on_a_worker_that_was_lost_is_not_said_to_run():
    make_boot(running=[running_job(task_id=JOB)], last_seen_at=ago(60), lost_at=ago(30))

    text = page().text

    assert "Attempt 1 was running when its worker stopped reporting." in text
    assert "which has stopped reporting" in text
    assert "Not known" in text


def test_a_job_that_was_lost_with_its_worker_died_and_does_not_run():
    make_boot(running=[running_job(task_id=JOB, is_acknowledged=True)], last_seen_at=ago(60))
    lost.declare_lost(now=NOW)

    found = page()

    assert "It died" in found.text
    assert "It will not run again by itself." in found.text
    assert "Attempt 1 runs" not in found.text
    assert "runs now" not in found.text
    assert found.text.count("Published") == 1


def test_a_message_in_the_outbox_is_a_job_that_waits():
    make_message(task_id=JOB, seconds=30, idempotency_key="receipt:1")

    text = page().text

    assert "It has been in the outbox for 30 s." in text
    assert "Waiting" in text
    assert parts() == [("outbox", 30)]


def test_a_job_that_was_published_and_not_reported_waits_since_then():
    make_message(
        task_id=JOB, seconds=30, state=OutboxState.PUBLISHED, published_at=ago(29), published_by="commit"
    )

    assert "It was published 29 s ago; no worker has reported an attempt of it." in page().text
    assert parts() == [("outbox", 1), ("wait", 29)]


def test_a_message_that_was_given_up_says_what_the_broker_said():
    message = make_message(
        task_id=JOB, state=OutboxState.GAVE_UP, last_error="NotFound: no exchange 'partners'"
    )
    make_letter(task_id=JOB, reason=Reason.PUBLISH_FAILED, died_at=message.available_at)

    assert "NotFound: no exchange 'partners'" in page().text


def test_the_job_of_a_replay_says_which_letter_it_replays():
    letter = make_letter(task_id="the-first-one", died_at=ago(50))
    item = make_item(make_operation(actor="mara"), letter, state=ItemState.SENT, sent_at=ago(10))
    task_id, _ = job_ids.derive(b"seed", item.pk)
    OperationItem.objects.filter(pk=item.pk).update(task_id=task_id)
    make_run(task_id=task_id, published_at=ago(10), started_at=ago(9), finished_at=ago(8))

    response = viewer().get("/jobs/one/", {"id": task_id})

    text = tags(response).text
    assert f"Sent as a replay by mara in operation {item.operation_id}" in text
    assert "It was done" in text
    assert href(response, f"letter {letter.short_id}") == f"/dead-letters/{letter.uuid}/"


def test_what_followed_and_the_root_are_listed_with_their_outcomes():
    make_run(task_id=JOB, root_id="the-root")
    make_run(task_id="the-root", task="shop.tasks.begin", finished_at=ago(20))
    make_run(task_id="sibling", root_id="the-root", task="shop.tasks.notify", outcome=RunOutcome.DEAD)
    letter = make_letter(task_id="sibling", root_id="the-root", task="shop.tasks.notify")

    response = viewer().get("/jobs/one/", {"id": JOB})

    assert href(response, "shop.tasks.begin") == "/jobs/one/?id=the-root"
    assert href(response, "shop.tasks.notify") == "/jobs/one/?id=sibling"
    assert f"/dead-letters/{letter.uuid}/" in response.content.decode()


def test_a_key_says_what_the_ledger_knows(whole_life):
    IdempotencyRecord.objects.create(
        task="shop.tasks.send_receipt",
        key="receipt:48213",
        state=LedgerState.DONE,
        task_id="replayed-job",
        created_at=ago(20),
        started_at=ago(20),
        completed_at=ago(17),
        updated_at=ago(17),
    )

    assert "done by job replayed: a copy does nothing" in page().text


def test_of_an_unknown_id_the_page_says_what_is_kept_how_long_and_how_to_find_out():
    response = viewer().get("/jobs/one/", {"id": JOB})

    text = tags(response).text
    assert response.status_code == 404
    assert "Nothing is kept of this job" in text
    assert "Kept for 24 h: the record of an attempt." in text
    assert "Kept for 30 days: a letter that was replayed and done." in text
    assert href(response, "Search jobs whose id begins so") == f"/jobs/?q={JOB}"


def test_an_address_without_an_id_leads_to_the_list():
    response = viewer().get("/jobs/one/", follow=True)

    assert response.redirect_chain == [("/jobs/", 302)]
    assert "names no job" in tags(response).text


def test_clocks_that_differ_draw_no_part_backwards():
    attempt(1, published=5, started=8, finished=6, latency_seconds=0.0)
    attempt(2, published=9, started=7, finished=5)

    found = parts()

    assert all(seconds >= 0 for _, seconds in found)
    assert [kind for kind, _ in found] == ["wait", "done", "done"]


def test_hostile_ids_and_errors_are_shown_and_never_run():
    nasty = '<img src=x onerror=alert(1)>"&\u202e'
    make_run(
        task_id=nasty, task=nasty, queue=nasty, worker=nasty, error_type=nasty, outcome=RunOutcome.RETRIED
    )
    letter = make_letter(task_id=nasty, task=nasty, queue=nasty, error=nasty, error_type=nasty)
    make_death(letter, publication_id=uuid.uuid4().hex, task_id=nasty, error=nasty)

    response = viewer().get("/jobs/one/", {"id": nasty})

    assert response.status_code == 200
    assert "<img src=x" not in response.content.decode()
    assert "\u202e" not in tags(response).text


def test_the_page_takes_as_many_queries_however_long_the_life_is(whole_life):
    client = viewer()

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            client.get("/jobs/one/", {"id": JOB})
        return len(captured)

    queries()
    short = queries()
    for number in range(30):
        attempt(number + 3, published=9, started=8, finished=7)
        make_run(task_id=f"child-{number}", root_id=JOB)
        make_letter(root_id=JOB)
        make_death(whole_life, publication_id=f"more-{number}", task_id=JOB)

    assert queries() == short


def test_somebody_without_a_role_is_refused():
    response = client_of(None).get("/jobs/one/", {"id": JOB})

    assert response.status_code == 403
    assert "view runs" in tags(response).text


def test_who_may_not_see_letters_is_not_told_what_an_error_says():
    make_letter(task_id=JOB, error_type="ValueError", error="card 4111 1111", reason=Reason.FAILED)
    client = client_of(None)
    client.user.user_permissions.add(Permission.objects.get(codename="view_run"))

    text = page(client).text

    assert "Died: failed" in text
    assert "ValueError" in text
    assert "4111" not in text
    assert "4111" in page().text


@pytest.mark.parametrize("text", [JOB, JOB[:8]])
def test_find_leads_to_a_job_that_has_no_letter(text):
    make_run(task_id=JOB, finished_at=timezone.now())

    assert viewer().get("/find/", {"q": text}).headers["Location"] == f"/jobs/one/?id={JOB}"


def test_find_lists_the_jobs_whose_ids_begin_so():
    make_run(task_id="7c1f-1")
    make_run(task_id="7c1f-2")

    assert viewer().get("/find/", {"q": "7c1f"}).headers["Location"] == "/jobs/?q=7c1f"


def test_between_the_end_of_an_attempt_and_its_death_nothing_is_unknown():
    attempt(1, published=9, started=8, finished=6, outcome=RunOutcome.DEAD)
    letter = make_letter(task_id=JOB, died_at=ago(5.9), death=False)
    make_death(letter, publication_id="publication-1", task_id=JOB, died_at=ago(5.9), started_at=ago(8))

    assert parts() == [("wait", 1), ("dead", 2), ("down", 6)]
