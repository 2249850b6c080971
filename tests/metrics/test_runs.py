"""Searches of finished attempts find exactly what they say, page by page, on both databases."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.db import connection
from prometheus_client.parser import text_string_to_metric_families as parse_metrics

from jobs import exposition
from jobs.core.run_query import parse
from jobs.core.words import RunOutcome
from jobs.errors import QueryError
from jobs.metrics import job_life, names, runs
from jobs.models import Run
from jobs.queue_report import queue_report
from tests.factories import NOW, make_letter
from tests.metrics_rows import make_rollup, make_run, make_sample
from tests.web.outbox_rows import make_message

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


def found(text: str) -> list[str]:
    return [run.task_id for run in runs.page(parse(text, now=NOW), limit=100).runs]


@pytest.fixture
def attempts():
    """One attempt for each thing a search can tell apart, newest first."""

    def at(minutes: float):
        return NOW - timedelta(minutes=minutes)

    make_run(task_id="receipt", finished_at=at(1))
    make_run(
        task_id="card",
        finished_at=at(2),
        task="shop.pay.charge_card",
        queue="pay",
        worker="celery@pay-1",
        outcome=RunOutcome.DEAD,
        error_type="requests.exceptions.HTTPError",
    )
    make_run(
        task_id="image",
        finished_at=at(3),
        task="resize_image",
        queue="long",
        worker="celery@img-1",
        outcome=RunOutcome.RETRIED,
        error_type="OSError",
    )
    make_run(task_id="image-child", root_id="image", finished_at=at(4), task="notify", queue="low")
    make_run(task_id="revoked", finished_at=at(90), outcome=RunOutcome.REVOKED, queue="a_b%c")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["receipt", "card", "image", "image-child", "revoked"]),
        ("task:charge_card", ["card"]),
        ("task:shop.pay.charge_card", ["card"]),
        ("task:charge_card,notify", ["card", "image-child"]),
        ("task:*card", ["card"]),
        ("task:card", []),
        ("-task:send_receipt", ["card", "image", "image-child"]),
        ("queue:pay,long", ["card", "image"]),
        ("queue:a_b%c", ["revoked"]),
        ("queue:a*c", ["revoked"]),
        ("queue:aXb%c", []),
        ("-queue:critical", ["card", "image", "image-child", "revoked"]),
        ("outcome:dead", ["card"]),
        ("-outcome:done", ["card", "image", "revoked"]),
        ("worker:celery@pay-1", ["card"]),
        ("worker:celery@*-1 -worker:celery@web-1", ["card", "image"]),
        ("error:httperror", ["card"]),
        ("error:Error", ["card", "image"]),
        ("-error:Error", ["receipt", "image-child", "revoked"]),
        ("since:1h", ["receipt", "card", "image", "image-child"]),
        ("until:1h", ["revoked"]),
        ("id:card", ["card"]),
        ("image", ["image", "image-child"]),
        ("imag", ["image", "image-child"]),
        ("IMAGE", []),
        ("id:card,receipt", ["receipt", "card"]),
        ("-id:image", ["receipt", "card", "revoked"]),
        ("image outcome:retried", ["image"]),
        ("task:nothing-like-it", []),
    ],
)  # fmt: skip
def test_a_search_finds_exactly_what_it_says_newest_first(attempts, text, expected):
    assert found(text) == expected


def test_pages_by_keyset_show_each_attempt_once_in_both_directions():
    chance = random.Random(4)
    # Several end at the same moment, as a batch reports them.
    for _ in range(57):
        make_run(finished_at=NOW - timedelta(seconds=chance.randrange(9)))
    query = parse("", now=NOW)
    wanted = list(Run.objects.order_by("-finished_at", "-id").values_list("pk", flat=True))

    pages, cursor = [], None
    while True:
        page = runs.page(query, cursor=cursor, limit=10)
        pages.append([run.pk for run in page.runs])
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    back = []
    while page.previous_cursor is not None:
        page = runs.page(query, cursor=page.previous_cursor, limit=10)
        back.append([run.pk for run in page.runs])

    assert [pk for each in pages for pk in each] == wanted
    assert back == pages[-2::-1]
    assert page.total == 57


def test_a_page_is_a_fixed_number_of_queries(attempts, django_assert_num_queries):
    with django_assert_num_queries(1):
        runs.page(parse("queue:pay,long outcome:dead image", now=NOW), limit=50)
    # The names of a task: term are looked up first; a full page is counted.
    with django_assert_num_queries(3):
        runs.page(parse("-task:send_receipt", now=NOW), limit=2)


def test_a_count_ends_where_nobody_reads_on(monkeypatch, attempts):
    monkeypatch.setattr(runs, "MOST_COUNTED", 3)

    page = runs.page(parse("", now=NOW), limit=2)

    assert (page.total, page.has_more) == (3, True)


@pytest.mark.parametrize(
    "cursor", ["", "x", "after.1.2.3", "after.20261112T031200000000.0", "next.20261112T031200000000.4"]
)
def test_a_cursor_of_ones_own_is_refused(cursor):
    with pytest.raises(QueryError, match="is not a place in this list"):
        runs.page(parse("", now=NOW), cursor=cursor)


def test_newer_attempts_are_counted_from_a_row_on(attempts):
    newest = Run.objects.get(task_id="card")

    assert runs.newer_count(parse("", now=NOW), after=newest.finished_at, after_id=newest.pk) == 1
    assert runs.newer_count(parse("queue:pay", now=NOW), after=newest.finished_at, after_id=newest.pk) == 0


@pytest.mark.parametrize(
    ("text", "task", "queue"),
    [
        ("", "", ""),
        ("task:charge_card since:1h", "shop.pay.charge_card", ""),
        ("queue:pay", "", "pay"),
        ("task:charge_card queue:pay", "shop.pay.charge_card", "pay"),
    ],
)
def test_what_the_rollups_can_count_of_a_search_is_told(attempts, text, task, queue):
    scope = runs.scope_of(parse(text, now=NOW), kept=timedelta(hours=24))

    assert scope is not None
    assert (scope.task, scope.queue) == (task, queue)
    assert scope.start.second == scope.end.second == 0
    assert scope.end >= NOW


@pytest.mark.parametrize(
    "text", ["outcome:dead", "-queue:pay", "queue:a,b", "queue:a*", "task:nope", "image", "error:x"]
)
def test_what_the_rollups_cannot_count_has_no_scope(attempts, text):
    assert runs.scope_of(parse(text, now=NOW), kept=timedelta(hours=24)) is None


def test_ids_and_rare_names_are_found_by_an_index_and_not_by_reading_all(attempts, each_database):
    """At 1,000,000 rows a page that reads the table takes seconds; measured once, its plan is held here."""
    for text, index in (
        ("id:image", "run_task_id"),
        ("id:image", "run_root_id"),
        ("queue:pay", "run_newest"),
    ):
        matched = runs.matching(parse(text, now=NOW)).order_by("-finished_at", "-id")[:50]
        if each_database == "postgresql":
            with connection.cursor() as cursor:
                # Of five rows PostgreSQL would read the table.
                cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
        assert index in matched.explain(), (text, matched.explain())


def test_names_are_known_from_letters_rollups_and_samples():
    make_letter(task="shop.old.send_receipt", queue="only-letters")
    make_rollup(task="shop.tasks.notify", queue="only-rollups", done=1)
    make_sample(queue="only-samples")

    known = [names.is_queue(f"only-{each}", now=NOW) for each in ("letters", "rollups", "samples", "nothing")]

    assert known == [True, True, True, False]
    assert names.tasks_named("notify", now=NOW) == ["shop.tasks.notify"]
    assert names.tasks_named("shop.tasks.notify", now=NOW) == ["shop.tasks.notify"]
    assert names.tasks_named("otify", now=NOW) == []


def test_jobs_are_found_by_their_id_in_the_outbox_and_by_its_beginning():
    waiting = make_message()
    make_run(task_id="aaaa-1")
    make_run(task_id="aaaa-2")
    make_run(task_id="bbbb-1")
    make_run(task_id="bbbb-1", attempt=1)

    assert names.jobs_of(waiting.task_id) == [waiting.task_id]
    assert names.jobs_of("bbbb") == ["bbbb-1"]
    assert names.jobs_of("aaaa") == ["aaaa-1", "aaaa-2"]
    assert names.jobs_of("aaaa-1") == ["aaaa-1"]
    assert names.jobs_of("aaa") == names.jobs_of("cccc") == []


def test_what_machines_read_and_the_life_of_a_job_are_the_same_on_both_databases(attempts):
    make_rollup(done=3, dead=1, latency=[0.2, 0.2, 0.4, 3.0], runtime=[0.1] * 4)
    make_sample(ready=12, oldest_age_seconds=4.0)
    make_letter(task_id="card", root_id="image")
    make_message(task_id="card")

    text = exposition.text("", now=NOW)[1].decode()
    report = queue_report(now=NOW)
    life = job_life.read("card", now=NOW)

    samples = {
        (each.name, each.labels.get("le", each.labels.get("outcome", ""))): each.value
        for family in parse_metrics(text)
        for each in family.samples
    }
    assert samples[("jobs_attempts_total", "done")] == 3
    assert samples[("jobs_queue_latency_seconds_bucket", "0.5")] == 3
    assert samples[("jobs_queue_depth", "")] == 12
    assert (report.queues[0].depth, report.queues[0].failure_rate, report.dead_letters) == (12, 0.25, 1)
    assert [len(each) for each in (life.runs, life.letters, life.deaths, life.messages)] == [1, 1, 1, 1]
    assert {each.task_id for each in life.relatives} == {"image", "image-child"}
