"""/metrics: over real HTTP, read by Prometheus' own parser, with a token or a login."""

from __future__ import annotations

import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from jobs import exposition
from jobs.core.words import AlertKind, AlertState, OutboxState, Severity
from jobs.models import Alert, AlertRule, Lease
from tests.factories import make_letter
from tests.metrics_rows import make_boot, make_rollup, make_run, make_sample, running_job
from tests.web.outbox_rows import make_message
from tests.web.people import client_of, viewer

TOKEN = "a-token-of-32-characters-or-more"
NOW = datetime(2026, 11, 12, 3, 12, tzinfo=UTC)


def samples(*, now: datetime = NOW) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return each sample of a scrape by name and labels; a series that is told twice fails."""
    _, text = exposition.text("", now=now)
    found: dict[Any, float] = {}
    for family in parse(text.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


def value(name: str, *, now: datetime = NOW, **labels: str) -> float | None:
    return samples(now=now).get((name, tuple(sorted(labels.items()))))


def scrape(url: str, **headers: str) -> tuple[int, str, str]:
    request = urllib.request.Request(f"{url}/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


# Over HTTP


@pytest.mark.django_db(transaction=True)
def test_prometheus_reads_the_numbers_with_the_token_over_http(live_server, settings):
    settings.METRICS_TOKEN = TOKEN
    make_rollup(at=timezone.now(), done=7)

    status, kind, text = scrape(live_server.url, Authorization=f"Bearer {TOKEN}")

    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in parse(text)}
    done = [each for each in families["jobs_attempts"].samples if each.labels["outcome"] == "done"]
    assert [(each.name, each.value) for each in done] == [("jobs_attempts_total", 7)]


@pytest.mark.django_db(transaction=True)
def test_openmetrics_is_told_to_who_asks_for_it(live_server, settings):
    settings.METRICS_TOKEN = TOKEN
    make_rollup(at=timezone.now(), done=7, latency=[0.2], runtime=[0.3])

    status, kind, text = scrape(
        live_server.url,
        Authorization=f"Bearer {TOKEN}",
        Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
    )

    assert status == 200
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert "jobs_queue_latency_seconds" in {family.name for family in parse_openmetrics(text)}


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["application/openmetrics-text;version=abc", ";;;=", "\x00,;q=", "*/*"])
def test_whoever_asks_for_a_format_that_there_is_not_is_told_in_plain_text(accept):
    kind, text = exposition.text(accept, now=NOW)

    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert "jobs_workers" in {family.name for family in parse(text.decode())}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("header", "advice"),
    [
        ({}, "Send METRICS_TOKEN as: Authorization: Bearer <token>. Or log in."),
        ({"Authorization": "Bearer wrong"}, "The token that was sent is not METRICS_TOKEN."),
        ({"Authorization": f"Basic {TOKEN}"}, "The token that was sent is not METRICS_TOKEN."),
        ({"Authorization": "Bearer"}, "The token that was sent is not METRICS_TOKEN."),
        ({"Authorization": "Bearer \xfctoken"}, "The token that was sent is not METRICS_TOKEN."),
    ],
)
def test_without_the_token_the_answer_is_401_and_says_what_to_send(live_server, settings, header, advice):
    settings.METRICS_TOKEN = TOKEN

    status, _, text = scrape(live_server.url, **header)

    assert status == 401
    assert advice in text
    assert TOKEN not in text
    assert "jobs_" not in text


@pytest.mark.django_db
@pytest.mark.parametrize(
    "header", [{}, {"HTTP_AUTHORIZATION": "Bearer "}, {"HTTP_AUTHORIZATION": "Bearer x"}]
)
def test_while_no_token_is_set_no_token_is_right(client, settings, header):
    settings.METRICS_TOKEN = ""

    answer = client.get("/metrics", **header)

    assert answer.status_code == 401
    assert "Set METRICS_TOKEN" in answer.content.decode()
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.django_db
def test_somebody_who_may_see_the_numbers_reads_them_with_a_login():
    assert viewer().get("/metrics").status_code == 200


@pytest.mark.django_db
def test_a_login_without_the_permission_is_refused_with_the_reason():
    answer = client_of(None).get("/metrics")

    assert answer.status_code == 403
    assert "view rollups" in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_nothing_but_reading_is_answered(client, settings, method):
    settings.METRICS_TOKEN = TOKEN

    answer = getattr(client, method)("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})

    assert answer.status_code == 405


# What is told


@pytest.mark.django_db
def test_counters_add_up_the_days_of_this_month_by_task_queue_and_outcome():
    make_rollup(at=NOW - timedelta(days=20), done=1_000)
    make_rollup(at=NOW - timedelta(days=3), done=5, dead=2, received=8)
    make_rollup(at=NOW, done=1, retried=4, dropped=3)
    labels = {"task": "shop.tasks.send_receipt", "queue": "critical"}

    found = samples()

    def told(name: str, **more: str) -> float:
        return found[(name, tuple(sorted({**labels, **more}.items())))]

    assert told("jobs_attempts_total", outcome="done") == 6
    assert told("jobs_attempts_total", outcome="dead") == 2
    assert told("jobs_attempts_total", outcome="retried") == 4
    assert {dict(labels)["outcome"] for name, labels in found if name == "jobs_attempts_total"} == {
        "done", "retried", "dead",
    }  # fmt: skip
    assert told("jobs_messages_received_total") == 8
    assert told("jobs_attempts_unrecorded_total") == 3


@pytest.mark.django_db
def test_counters_never_fall_within_a_month_and_begin_anew_with_the_next():
    labels = {"task": "shop.tasks.send_receipt", "queue": "critical", "outcome": "done"}
    start = datetime(2026, 11, 1, tzinfo=UTC)
    told = []
    for day in range(33):
        now = start + timedelta(days=day, hours=9)
        make_rollup(at=now, done=10)
        told.append(value("jobs_attempts_total", now=now, **labels))

    assert told == [10 * day for day in range(1, 31)] + [10, 20, 30]


@pytest.mark.django_db
def test_histograms_are_cumulative_and_exact_within_five_per_cent():
    latency = [0.004, 0.03, 0.2, 0.2, 0.9, 40.0, 9_000.0]
    make_rollup(done=7, latency=latency, runtime=[2.0] * 7)

    found = samples()

    buckets = {
        dict(labels)["le"]: number
        for (name, labels), number in found.items()
        if name == "jobs_queue_latency_seconds_bucket"
    }
    assert [buckets[le] for le in ("0.01", "0.05", "0.25", "1.0", "60.0", "3600.0", "+Inf")] == [
        1,
        2,
        4,
        5,
        6,
        6,
        7,
    ]
    assert list(buckets.values()) == sorted(buckets.values())
    assert found[("jobs_queue_latency_seconds_sum", (("queue", "critical"),))] == pytest.approx(sum(latency))
    assert found[("jobs_queue_latency_seconds_count", (("queue", "critical"),))] == 7
    assert found[("jobs_runtime_seconds_count", (("task", "shop.tasks.send_receipt"),))] == 7


@pytest.mark.django_db
def test_what_is_not_known_of_a_queue_is_absent_and_never_zero():
    make_sample(ready=12, consumers=None, unacknowledged=None, oldest_age_seconds=None)
    make_sample(queue="empty", ready=0, oldest_age_seconds=None)

    assert value("jobs_queue_depth", queue="critical") == 12
    assert value("jobs_queue_consumers", queue="critical") is None
    assert value("jobs_queue_oldest_age_seconds", queue="critical") is None
    assert value("jobs_queue_oldest_age_seconds", queue="empty") == 0
    assert value("jobs_queue_sampled_timestamp_seconds") == NOW.timestamp()


@pytest.mark.django_db
def test_a_queue_that_was_not_measured_lately_has_no_depth():
    make_sample(ready=12, at=NOW - timedelta(minutes=5))

    assert value("jobs_queue_depth", queue="critical") is None
    assert value("jobs_queue_sampled_timestamp_seconds") == (NOW - timedelta(minutes=5)).timestamp()


@pytest.mark.django_db
def test_letters_workers_outbox_alerts_and_duties_are_told():
    make_letter(queue="critical", task="a.b")
    make_letter(queue="critical", task="a.c")
    make_letter(queue="low", state="purged")
    make_boot(running=[running_job(), running_job()], concurrency=4)
    make_boot("celery@web-2", lost_at=NOW, last_seen_at=NOW - timedelta(seconds=30))
    make_message(seconds=90)
    make_message(state=OutboxState.GAVE_UP)
    rule = AlertRule.objects.create(name="x", kind=AlertKind.QUEUE_DEPTH, severity=Severity.CRITICAL)
    Alert.objects.create(rule=rule, state=AlertState.FIRING, began_at=NOW)
    Alert.objects.create(rule=rule, state=AlertState.PENDING, began_at=NOW, subject="low")
    Lease.objects.create(
        duty="collector", holder="runops@web-1:4", renewed_at=NOW, expires_at=NOW + timedelta(days=36_500)
    )

    found = samples()

    wanted = {
        ("jobs_dead_letters", (("queue", "critical"),)): 2,
        ("jobs_dead_letters", (("queue", "low"),)): 0,
        ("jobs_task_dead_letters", (("task", "a.b"),)): 1,
        ("jobs_workers", (("state", "online"),)): 1,
        ("jobs_workers", (("state", "lost"),)): 1,
        ("jobs_worker_slots", ()): 4,
        ("jobs_running", ()): 2,
        ("jobs_outbox_messages", (("state", "waiting"),)): 1,
        ("jobs_outbox_messages", (("state", "stuck"),)): 1,
        ("jobs_outbox_messages", (("state", "gave_up"),)): 1,
        ("jobs_outbox_lag_seconds", ()): 90,
        ("jobs_alerts_firing", (("severity", "critical"),)): 1,
        ("jobs_alerts_firing", (("severity", "warning"),)): 0,
        ("jobs_duty_carried_out", (("duty", "collector"),)): 1,
        ("jobs_duty_carried_out", (("duty", "relay"),)): 0,
    }
    assert {key: found.get(key) for key in wanted} == wanted


@pytest.mark.django_db
def test_names_beyond_the_bound_are_told_together_and_no_count_is_lost(monkeypatch):
    monkeypatch.setattr(exposition, "MOST_PAIRS", 3)
    monkeypatch.setattr(exposition, "MOST_NAMES", 3)
    for number in range(9):
        make_rollup(task=f"task-{number}", queue=f"queue-{number}", done=1, latency=[0.1], runtime=[0.1])
        make_letter(task=f"task-{number}", queue=f"queue-{number}")
    # One that is called as the others are.
    make_rollup(task=exposition.OTHERS, queue=exposition.OTHERS, done=1, latency=[0.1], runtime=[0.1])
    make_letter(task=exposition.OTHERS, queue=exposition.OTHERS)

    found = samples()

    def told(name: str, label: str, **more: str) -> dict[str, float]:
        return {
            dict(labels)[label]: number
            for (each, labels), number in found.items()
            if each == name and more.items() <= dict(labels).items()
        }

    assert told("jobs_attempts_total", "task", outcome="done") == {
        "task-0": 1, "task-1": 1, "task-2": 1, exposition.OTHERS: 7,
    }  # fmt: skip
    assert sum(told("jobs_queue_latency_seconds_count", "queue").values()) == 10
    assert sum(told("jobs_runtime_seconds_count", "task").values()) == 10
    assert sum(told("jobs_dead_letters", "queue").values()) == 10
    assert len(told("jobs_dead_letters", "queue")) <= 4


@pytest.mark.django_db
def test_hostile_names_are_labels_and_nothing_else():
    nasty = 'x"} 1\njobs_attempts_total{task="forged'
    make_rollup(task=nasty, queue="a\\b", done=3)

    assert value("jobs_attempts_total", task=nasty, queue="a\\b", outcome="done") == 3
    assert value("jobs_attempts_total", task="forged", queue="a\\b", outcome="done") is None


@pytest.mark.django_db
def test_a_scrape_takes_as_many_queries_for_many_tasks_as_for_one(django_assert_max_num_queries):
    def fill(number: int) -> None:
        make_rollup(task=f"task-{number}", queue=f"queue-{number}", done=1, latency=[0.1])
        make_sample(queue=f"queue-{number}")
        make_letter(task=f"task-{number}", queue=f"queue-{number}")
        make_run(task=f"task-{number}")

    fill(0)
    with django_assert_max_num_queries(60) as one:
        exposition.text("", now=NOW)
    for number in range(1, 20):
        fill(number)
    with django_assert_max_num_queries(60) as many:
        exposition.text("", now=NOW)

    assert len(many) == len(one)


@pytest.mark.django_db
def test_an_empty_console_is_scraped_without_an_error():
    found = samples()

    assert found[("jobs_dead_letters", (("queue", exposition.OTHERS),))] == 0
    assert found[("jobs_workers", (("state", "online"),))] == 0
