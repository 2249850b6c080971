"""The pages of workers: who lives, what each runs, what became of the lost; and the pages that ask."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import worker_control
from jobs.errors import WorkerRefused
from jobs.metrics.workers import boots_now
from jobs.models import AuditEntry, Worker
from jobs.roles import OPERATOR, VIEWER
from jobs.worker_control import Revoked
from tests.factories import NOW
from tests.metrics_rows import make_boot, running_job
from tests.web.people import HTMX, admin, client_of, href, operator, tags

pytestmark = pytest.mark.django_db

WORKERS = "/workers/"
WEB_1 = "/workers/one/?name=celery%40web-1"
JOB = "00000000-0000-4000-8000-000000000001"
REVOKE = f"/workers/revoke/?id={JOB}"
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def viewer() -> Any:
    return client_of(VIEWER, login=f"viewer-{uuid.uuid4()}")


def page(address: str = WORKERS, client: Any = None, status: int = 200) -> str:
    response = (client or viewer()).get(address)
    assert response.status_code == status
    return tags(response).text


def make_lost(hostname: str = "celery@img-2", **columns: Any) -> Any:
    seen = NOW - 21 * MINUTE
    return make_boot(hostname, last_seen_at=seen, lost_at=seen + timedelta(seconds=30), **columns)


# The list


def test_an_empty_list_says_how_a_worker_comes_into_it():
    text = page()

    assert "No worker is known" in text
    assert "A worker appears here within seconds of its start when it has the agent" in text


def test_the_sentence_counts_who_is_online_and_what_runs():
    make_boot("celery@web-1", concurrency=4, running=[running_job(), running_job()])
    make_boot("celery@web-2", concurrency=4, running=[running_job()])

    assert "2 workers are online and run 3 jobs of the 8 that fit." in page()


def test_a_lost_worker_is_told_first_with_its_jobs():
    make_boot("celery@web-1")
    make_lost(jobs_lost=3)

    text = page()

    assert "celery@img-2 was lost with 3 jobs, which are dead letters now. 1 worker is online" in text
    assert text.index("celery@img-2 Lost") < text.index("celery@web-1 Online")


def test_a_worker_that_was_lost_and_is_back_is_not_told_as_lost():
    make_lost("celery@web-1", jobs_lost=1)
    make_boot("celery@web-1")

    assert "lost" not in page().split("1 worker is online")[0].lower()


def test_when_no_worker_is_online_nothing_runs():
    make_lost()

    assert "celery@img-2 was lost. No worker is online: nothing runs." in page()


def test_a_row_shows_pool_load_memory_and_what_waits_in_its_memory():
    make_boot(
        running=[running_job()],
        reserved={"critical": 16},
        held={"critical": 12},
        queues=["critical", "default"],
        dropped=2_310,
    )

    text = page()

    assert "celery@web-1 Online 1 of 4 critical, default prefork, 4 16 12 held for later 0.62 412 MB" in text
    assert "18,204 2,310 records dropped" in text
    assert "0 s ago 9 h" in text


def test_what_a_worker_does_not_tell_is_not_zero():
    make_boot(load=None, memory_bytes=None, concurrency=None, pool="")

    assert "celery@web-1 Online 0 critical – 0 – – 18,204" in page()


def test_a_worker_without_the_agent_is_listed_with_what_is_missing():
    Worker.objects.create(hostname="celery@old", seen_at=NOW, queues=["critical"], has_agent=False)

    text = page()

    assert "celery@old Online without the agent's reports – critical" in text
    assert "1 worker has no agent. What it runs, its load and its dead jobs are not known." in text


def test_the_list_asks_no_more_with_more_workers():
    client = viewer()
    make_boot("celery@one")
    with CaptureQueriesContext(connection) as few:
        client.get(WORKERS)
    for number in range(20):
        make_boot(f"celery@web-{number}", running=[running_job()])

    with CaptureQueriesContext(connection) as many:
        client.get(WORKERS)

    assert len(many) == len(few)


def test_more_workers_than_anybody_reads_are_counted_and_not_listed(monkeypatch):
    monkeypatch.setattr("console.presenters.worker_list.MOST_SHOWN", 3)
    for number in range(5):
        make_boot(f"celery@web-{number}")

    text = page()

    assert "5 workers are online" in text
    assert ("celery@web-2" in text, "celery@web-3" in text) == (True, False)
    assert "2 more workers are not listed." in text


def test_the_poll_answers_with_the_list_alone():
    make_boot()

    assert viewer().get(WORKERS, **HTMX).content.decode().lstrip().startswith('<div id="workers">')
    assert viewer().get(WEB_1, **HTMX).content.decode().lstrip().startswith('<div id="worker"')


def test_a_hostile_name_is_escaped():
    make_boot("<img src=x onerror=alert(1)>\u202e")

    response = viewer().get(WORKERS)

    assert "<img src=x" not in response.content.decode()
    assert "\\u202e" in tags(response).text


# One worker


def test_a_worker_that_is_not_known_is_not_found():
    assert "No worker of the name celery@nowhere is known." in page(
        "/workers/one/?name=celery%40nowhere", status=404
    )


def test_the_page_of_a_worker_reads_its_own_lives_alone():
    make_lost("celery@web-1")
    make_boot("celery@web-1")
    make_boot("celery@web-1", goodbye_at=NOW - MINUTE, started_at=NOW - 20 * MINUTE)
    make_lost("celery@web-2")
    make_boot("celery@web-3", goodbye_at=NOW - MINUTE)
    known = boots_now(now=NOW)
    client = viewer()

    with CaptureQueriesContext(connection) as asked:
        client.get(WEB_1)

    assert {each.hostname for each in known} == {"celery@web-1", "celery@web-2", "celery@web-3"}
    for hostname in ("celery@web-1", "celery@web-2", "celery@web-3"):
        alone = boots_now(hostname=hostname, now=NOW)
        assert alone == [each for each in known if each.hostname == hostname]
    (read,) = [each["sql"] for each in asked if "jobs_workerboot" in each["sql"]]
    assert "\"hostname\" = 'celery@web-1'" in read


def test_what_a_worker_runs_says_since_when_and_what_a_crash_would_do():
    make_boot(running=[running_job(task_id=JOB), running_job(is_acknowledged=True, attempt=2)])

    response = viewer().get(WEB_1)
    text = tags(response).text

    assert "It runs 2 jobs of the 4 that fit and has been up for 9 h." in text
    assert "shop.tasks.send_receipt 00000000 critical 1 12 s ago when it is done" in text
    assert "critical 3 12 s ago before it ran" in text
    titles = [each["title"] for each in tags(response).all("td") if each.get("title")]
    assert "Nobody else has its message: if this worker dies, the job becomes a dead letter." in titles
    assert href(response, "00000000") == f"/jobs/one/?id={JOB}"


def test_a_worker_names_its_tasks_with_their_parameters():
    make_boot()
    parameters = {
        "names": ["order_id", "note"],
        "required": 1,
        "var_args": False,
        "var_kwargs": True,
        "kwonly": ["express"],
        "kwonly_required": [],
    }
    Worker.objects.create(
        hostname="celery@web-1",
        seen_at=NOW,
        has_agent=True,
        tasks={"shop.ship": parameters, "shop.any": None},
    )

    text = page(WEB_1)

    assert (
        "Tasks it knows 2, with their parameters shop.any shop.ship (order_id, note=…, express=…, **kwargs)"
        in text
    )


def test_a_lost_worker_says_what_became_of_its_jobs_with_a_link_to_their_letters(settings: Any):
    settings.BROKER_URL = "redis://r/0"
    make_lost(jobs_lost=3, running=[running_job(), running_job(is_acknowledged=True)])

    response = viewer().get("/workers/one/?name=celery%40img-2")
    text = tags(response).text

    assert (
        "It was lost 21 min ago. 3 jobs that it had acknowledged before they ran are dead letters now."
        in text
    )
    assert "It had taken 1 message and not acknowledged it (1 running): Redis hands it out again" in text
    letters = href(response, "Look at the dead letters")
    assert letters == "/dead-letters/?q=reason%3Aworker_lost+worker%3Acelery%40img-2+state%3Aany"
    assert viewer().get(letters).status_code == 200
    assert not tags(response).all("a", href="/workers/one/grow/?name=celery%40img-2")


@pytest.mark.parametrize(
    ("broker", "options", "words"),
    [
        (
            "redis://r/0",
            {},
            "Redis hands them out again when the visibility timeout is over, by 2026-11-12 03:51 UTC",
        ),
        (
            "redis://r/0",
            {"visibility_timeout": 600},
            "Redis has had them to hand out again since 2026-11-12 03:01 UTC at the latest.",
        ),
        ("amqp://r", {}, "the broker hands them out again as soon as it sees that the connection is gone."),
        ("memory://", {}, "the broker hands them out again."),
    ],
)
def test_a_lost_worker_tells_what_it_had_not_acknowledged_and_when_that_comes_back(
    broker: str, options: dict[str, Any], words: str, settings: Any
) -> None:
    settings.BROKER_URL, settings.BROKER_TRANSPORT_OPTIONS = broker, options
    make_lost(
        reserved={"critical": 4}, held={"low": 2}, running=[running_job(), running_job(is_acknowledged=True)]
    )

    text = page("/workers/one/?name=celery%40img-2")

    taken = "It had taken 7 messages and not acknowledged them (1 running, 4 not begun, 2 held for later)"
    assert f"{taken}: {words}" in text
    assert "Taken 4 2 more held for later" in text


def test_a_worker_that_was_stopped_tells_what_it_gave_back():
    make_boot("celery@web-1", goodbye_at=NOW - MINUTE, last_seen_at=NOW - MINUTE, reserved={"critical": 4})

    text = page(WEB_1)

    assert "It had taken 4 messages that it had not acknowledged. A worker that stops gives them back" in text


def test_a_worker_that_was_stopped_with_nothing_taken_says_nothing_of_it():
    make_boot("celery@web-1", goodbye_at=NOW - MINUTE, last_seen_at=NOW - MINUTE)

    assert "had not acknowledged" not in page(WEB_1)


def test_a_worker_that_came_back_tells_of_its_loss_too():
    make_lost("celery@web-1", jobs_lost=1)
    make_boot("celery@web-1")

    text = page(WEB_1)

    assert (
        "It was lost 21 min ago, and has started again since. 1 job that it had acknowledged before it ran"
        in text
    )
    assert "It runs nothing now" in text


def test_a_worker_without_the_agent_says_what_is_missing_and_how_to_get_it():
    Worker.objects.create(hostname="celery@old", seen_at=NOW, queues=["critical"], has_agent=False)

    text = page("/workers/one/?name=celery%40old")

    assert "This worker has no agent. It answers Celery's remote control" in text
    assert "Attach the agent: from jobs.agent import attach; attach(app)." in text


# The time window


@pytest.mark.parametrize("address", ["/workers/?window=6h", f"{WEB_1}&window=6h"])
def test_links_among_pages_of_numbers_keep_the_time_window(address: str) -> None:
    make_boot(running=[running_job()])
    Worker.objects.create(hostname="celery@web-1", seen_at=NOW, tasks={"shop.any": None}, has_agent=True)

    links = tags(admin().get(address)).all("a")

    of_numbers = [
        str(each.get("href"))
        for each in links
        if str(each.get("href")).startswith(("/workers/", "/queues/", "/tasks/", "/?"))
        or each.get("href") == "/"
    ]
    assert len(of_numbers) >= 4
    assert [each for each in of_numbers if "window=6h" not in each] == []


@pytest.mark.parametrize("action", ["grow", "shrink", "shut-down", "revoke"])
def test_what_is_done_to_a_worker_leads_back_into_the_time_window(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_boot(running=[running_job(task_id=JOB)])
    for name in ("grow", "shrink", "shut_down"):
        monkeypatch.setattr(worker_control, name, lambda **_: None)
    monkeypatch.setattr(worker_control, "revoke", lambda **_: Revoked(1, ""))
    address = REVOKE if action == "revoke" else f"/workers/one/{action}/?name=celery%40web-1"
    client = admin()

    asked = tags(client.get(f"{address}&window=6h"))
    done = client.post(f"{address}&window=6h", {"why": "it is too slow"})

    assert asked.all("a", href=f"{WEB_1}&window=6h")
    assert asked.all("a", href="/workers/?window=6h")
    assert done.headers["Location"] == f"{WEB_1}&window=6h"


# What is done to it


@pytest.mark.parametrize(
    ("action", "asked", "button"),
    [
        ("grow", "It runs up to 4 now, 5 then.", "Grow to 5"),
        ("shrink", "It runs up to 4 now, 3 then. Only an idle process ends", "Shrink to 3"),
        ("shut-down", "It finishes the 1 job that runs now, and then ends.", "Shut down after 1 job"),
    ],
)
def test_each_action_asks_on_a_page_of_its_own_and_a_get_does_nothing(action, asked, button):
    make_boot(running=[running_job()])

    text = page(f"/workers/one/{action}/?name=celery%40web-1", admin())

    assert asked in text
    assert button in text
    assert "Nothing is done until you press the button on this page." in text
    assert not AuditEntry.objects.exclude(action="login").exists()


@pytest.mark.parametrize("action", ["grow", "shrink", "shut-down"])
def test_only_an_admin_controls_a_worker(action):
    make_boot()

    response = operator().post(f"/workers/one/{action}/?name=celery%40web-1", {"why": "x"})

    assert response.status_code == 403
    assert (
        "Controlling a worker takes the permission “grow, shrink and shut down workers”"
        in tags(response).text
    )


def test_what_a_worker_answers_is_said_and_a_refusal_stays_on_the_page(monkeypatch):
    make_boot()
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(worker_control, "grow", lambda **values: told.append(values))
    client = admin()

    done = client.post("/workers/one/grow/?name=celery%40web-1", {"why": "the feed is late"}, follow=True)

    assert (told[0]["hostname"], told[0]["why"]) == ("celery@web-1", "the feed is late")
    assert done.redirect_chain == [(WEB_1, 302)]
    assert "celery@web-1 runs one more job at a time until it restarts." in tags(done).text

    def refuse(**_: Any) -> None:
        raise WorkerRefused("celery@web-1 did not grow: it scales by itself.")

    monkeypatch.setattr(worker_control, "grow", refuse)
    refused = client.post("/workers/one/grow/?name=celery%40web-1", {"why": "the feed is late"})

    assert refused.status_code == 409
    assert "Nothing was changed. celery@web-1 did not grow: it scales by itself." in tags(refused).text
    assert "the feed is late" in tags(refused).text


def test_an_action_without_a_reason_is_refused(monkeypatch):
    make_boot()
    monkeypatch.setattr(worker_control, "shut_down", lambda **_: pytest.fail("it was told"))

    response = admin().post("/workers/one/shut-down/?name=celery%40web-1", {"why": ""})

    assert response.status_code == 422
    assert "Write why: it is kept in the audit log with your name." in tags(response).text


@pytest.mark.parametrize(
    ("columns", "action", "why"),
    [
        ({"pool": "threads"}, "grow", "Celery cannot change the size of a threads pool while it runs."),
        (
            {"concurrency": 1},
            "shrink",
            "It runs one job at a time: one less would take messages and run none.",
        ),
        ({"goodbye_at": NOW - MINUTE}, "shut-down", "It is not online."),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(columns, action, why, monkeypatch):
    make_boot(**columns)
    for name in ("grow", "shrink", "shut_down"):
        monkeypatch.setattr(worker_control, name, lambda **_: pytest.fail("it was told"))
    client = admin()
    address = f"/workers/one/{action}/?name=celery%40web-1"

    assert why in page(address, client)
    assert client.post(address, {"why": "x"}).status_code == 409


# Revoking a job


def test_the_revoke_page_says_where_it_runs_and_what_follows():
    make_boot(running=[running_job(task_id=JOB)])

    response = operator().get(REVOKE)
    text = tags(response).text

    assert "It runs on celery@web-1, started 12 s ago." in text
    assert "A revoked job is neither retried nor a dead letter." in text
    assert "Stop it where it runs, with SIGTERM" in text
    assert "checked" not in tags(response).all("input", name="terminate")[0]


def test_a_job_that_runs_nowhere_can_be_revoked_but_not_stopped():
    make_boot()

    response = operator().get(REVOKE)

    assert "No worker reports that it runs this job now." in tags(response).text
    assert not tags(response).all("input", name="terminate")


def test_a_pool_that_cannot_stop_a_job_says_so():
    make_boot(pool="threads", running=[running_job(task_id=JOB)])

    response = operator().get(REVOKE)

    assert "The pool threads cannot stop a job that runs: it goes on to its end." in tags(response).text
    assert "disabled" in tags(response).all("input", name="terminate")[0]


def test_a_job_is_revoked_with_a_reason_and_what_came_of_it_is_said(monkeypatch):
    make_boot(running=[running_job(task_id=JOB)])
    told: list[dict[str, Any]] = []

    def revoke(**values: Any) -> Revoked:
        told.append(values)
        return Revoked(workers=7, stopped_by="celery@web-1")

    monkeypatch.setattr(worker_control, "revoke", revoke)

    done = operator().post(REVOKE, {"why": "it charges twice", "terminate": "1"}, follow=True)

    assert (told[0]["task_id"], told[0]["terminate"], told[0]["why"]) == (JOB, True, "it charges twice")
    assert done.redirect_chain == [(WEB_1, 302)]
    assert "Job 00000000 is revoked, and celery@web-1 stops it; 7 workers know it." in tags(done).text


def test_revoking_takes_its_permission_and_names_a_job():
    assert viewer().post(REVOKE, {"why": "x"}).status_code == 403
    assert client_of(OPERATOR).get("/workers/revoke/").status_code == 404
