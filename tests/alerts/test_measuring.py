"""What each kind of rule measures, and when it says that nobody knows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.agent.wire import DEAD_QUEUE, RUNS_QUEUE
from jobs.alerts import measuring
from jobs.alerts.letters import onset
from jobs.alerts.measuring import Measured
from jobs.core import histograms
from jobs.core.words import AlertKind, RollupLevel, RollupScope, SampleLevel
from jobs.models import (
    AlertRule,
    BeatProcess,
    Lease,
    QueuePause,
    QueueSample,
    Rollup,
    WorkerBoot,
)
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _collected() -> None:
    """Let the duties of the collector be held, far beyond the database's own clock."""
    for duty in ("collector", "runs"):
        Lease.objects.create(
            duty=duty, holder="runops", expires_at=NOW + timedelta(days=3650), renewed_at=NOW
        )


def measured(kind: AlertKind, *, now: datetime = NOW, **fields: Any) -> Measured:
    rule = AlertRule(pk=1, kind=kind, **fields)
    return measuring.measure([rule], now=now)[1]


def values(found: Measured) -> dict[str, float | None]:
    return {subject: each.value for subject, each in found.by_subject.items()}


def sample(queue: str, *, at: datetime = NOW, **columns: Any) -> None:
    QueueSample.objects.create(level=SampleLevel.SAMPLE, queue=queue, at=at, **columns)


def boot(hostname: str = "celery@web-1", **columns: Any) -> WorkerBoot:
    values = {
        "boot_id": f"boot-of-{hostname}",
        "queues": ["critical"],
        "concurrency": 2,
        "started_at": NOW - timedelta(hours=1),
        "reported_at": NOW,
        "last_seen_at": NOW,
    }
    return WorkerBoot.objects.create(hostname=hostname, **{**values, **columns})


def rollup(*, at: datetime = NOW, scope: RollupScope = RollupScope.ALL, **columns: Any) -> None:
    Rollup.objects.create(
        level=RollupLevel.MINUTE, scope=scope, starts_at=at.replace(second=0, microsecond=0), **columns
    )


def test_depth_is_of_each_queue_or_of_the_one_that_is_named() -> None:
    sample("bulk", ready=3)
    sample("critical", ready=40)

    assert values(measured(AlertKind.QUEUE_DEPTH)) == {"bulk": 3, "critical": 40}
    assert values(measured(AlertKind.QUEUE_DEPTH, queue="bulk")) == {"bulk": 3}


def test_a_depth_that_nobody_could_count_is_not_zero() -> None:
    sample("critical", ready=None)

    found = measured(AlertKind.QUEUE_DEPTH)

    assert values(found) == {"critical": None}


def test_a_queue_that_was_never_counted_is_not_known_and_says_so() -> None:
    found = measured(AlertKind.QUEUE_DEPTH)

    assert found.trouble == "No queue was counted yet."
    assert found.of("critical").value is None


def test_age_is_none_of_an_empty_queue_and_unknown_where_nobody_can_tell() -> None:
    sample("old", ready=2, oldest_age_seconds=1200)
    sample("empty", ready=0)
    sample("silent", ready=2)

    assert values(measured(AlertKind.OLDEST_AGE)) == {"old": 1200, "empty": 0, "silent": None}


def test_row_101_a_queue_nobody_consumes_counts_unless_it_is_paused_or_empty() -> None:
    sample("typo", ready=5, consumers=0)
    sample("worked on", ready=5, consumers=1)
    sample("empty", ready=0, consumers=0)
    sample("paused", ready=5, consumers=0)
    sample("unknown", ready=5, consumers=None)
    QueuePause.objects.create(queue="paused", paused_at=NOW, actor="Mara")

    assert values(measured(AlertKind.NO_CONSUMER)) == {
        "typo": 5, "worked on": 0, "empty": 0, "paused": 0, "unknown": None,
    }  # fmt: skip


def test_row_74_workers_that_live_and_take_nothing_count() -> None:
    sample("critical", ready=5, consumers=1)
    rollup()
    boot()

    assert values(measured(AlertKind.NOTHING_RECEIVED)) == {"critical": 5}


def test_row_85_workers_whose_prefetch_is_full_of_jobs_for_later_take_nothing() -> None:
    sample("critical", ready=5, consumers=1, unacknowledged=8, held_by_workers=8)
    rollup()
    boot(held={"critical": 8}, reserved={"critical": 8})

    assert values(measured(AlertKind.NOTHING_RECEIVED)) == {"critical": 5}


def test_workers_that_took_something_or_are_busy_or_new_do_not_count() -> None:
    sample("critical", ready=5, consumers=1)
    rollup()
    worker = boot(running=[{"task_id": "1"}, {"task_id": "2"}])
    assert values(measured(AlertKind.NOTHING_RECEIVED)) == {"critical": 0}, "both its processes run something"

    WorkerBoot.objects.filter(pk=worker.pk).update(running="[]", started_at=NOW - MINUTE)
    assert values(measured(AlertKind.NOTHING_RECEIVED)) == {"critical": 0}, "it has just started"

    WorkerBoot.objects.filter(pk=worker.pk).update(started_at=NOW - timedelta(hours=1))
    rollup(scope=RollupScope.QUEUE, queue="critical", received=1)
    assert values(measured(AlertKind.NOTHING_RECEIVED)) == {"critical": 0}, "it took one"


def test_without_reports_nobody_knows_what_was_received() -> None:
    sample("critical", ready=5, consumers=1)
    rollup(at=NOW - 10 * MINUTE)

    found = measured(AlertKind.NOTHING_RECEIVED)

    assert found.of("critical").value is None
    assert "No worker tells" in found.trouble


def test_failure_rate_is_per_cent_of_those_that_are_decided() -> None:
    rollup(done=90, dead=10, retried=1000)

    assert values(measured(AlertKind.FAILURE_RATE, minimum_attempts=100)) == {"": 10}


def test_row_50_a_retry_storm_of_which_nothing_dies_is_measured() -> None:
    rollup(done=20, retried=180)

    assert values(measured(AlertKind.RETRY_RATE, minimum_attempts=100)) == {"": 90}
    found = measured(AlertKind.RETRY_RATE, minimum_attempts=201)
    assert found.trouble == "Too few jobs ended for a verdict: 200 of at least 201."


def test_with_too_few_jobs_there_is_no_verdict() -> None:
    rollup(done=1, dead=1)

    found = measured(AlertKind.FAILURE_RATE, minimum_attempts=100)

    assert found.of("").value is None
    assert found.trouble == "Too few jobs ended for a verdict: 2 of at least 100."


def test_rates_are_of_the_window_alone() -> None:
    rollup(done=50, dead=50)
    rollup(at=NOW - 6 * MINUTE, done=0, dead=500)

    assert values(measured(AlertKind.FAILURE_RATE, window_minutes=5)) == {"": 50}


def test_latency_is_the_percentile_that_the_rule_names() -> None:
    packed = histograms.pack({histograms.bucket_of(1.0): 90, histograms.bucket_of(60.0): 10})
    rollup(done=100, latency=packed)

    assert values(measured(AlertKind.LATENCY, percentile=50))[""] == pytest.approx(1, rel=0.051)
    assert values(measured(AlertKind.LATENCY, percentile=99))[""] == pytest.approx(60, rel=0.051)


def test_jobs_that_tell_no_time_have_no_latency() -> None:
    rollup(done=100)

    assert measured(AlertKind.LATENCY).trouble == "No job told when it was published."


def test_row_24_a_lost_worker_counts_until_it_is_back_or_the_window_is_over() -> None:
    boot("lost@one", lost_at=NOW - 10 * MINUTE, last_seen_at=NOW - 11 * MINUTE)
    boot("here@two")

    assert values(measured(AlertKind.WORKER_LOST, window_minutes=60)) == {"lost@one": 1}
    assert values(measured(AlertKind.WORKER_LOST, window_minutes=5)) == {}
    assert values(measured(AlertKind.WORKER_LOST, window_minutes=60, queue="other")) == {}
    boot("lost@one", boot_id="another life")
    assert measured(AlertKind.WORKER_LOST, window_minutes=60).of("lost@one").value == 0


def test_a_worker_that_was_lost_twice_is_missing_since_the_second_time() -> None:
    boot(
        "lost@one",
        boot_id="first",
        started_at=NOW - 90 * MINUTE,
        lost_at=NOW - 30 * MINUTE,
        last_seen_at=NOW - 31 * MINUTE,
    )
    boot(
        "lost@one",
        boot_id="second",
        started_at=NOW - 20 * MINUTE,
        lost_at=NOW - MINUTE,
        last_seen_at=NOW - 2 * MINUTE,
    )

    found = measured(AlertKind.WORKER_LOST, window_minutes=60).of("lost@one")

    assert (found.value, found.since) == (1, NOW - 2 * MINUTE)


def test_a_worker_that_came_back_and_ended_in_order_is_not_lost() -> None:
    boot(
        "lost@one",
        boot_id="first",
        started_at=NOW - 300 * MINUTE,
        lost_at=NOW - 30 * MINUTE,
        last_seen_at=NOW - 31 * MINUTE,
    )
    boot(
        "lost@one",
        boot_id="second",
        started_at=NOW - 20 * MINUTE,
        last_seen_at=NOW - 2 * MINUTE,
        goodbye_at=NOW - 2 * MINUTE,
    )

    assert values(measured(AlertKind.WORKER_LOST, window_minutes=60)) == {}


def test_row_130_beat_is_silent_for_as_long_as_none_was_seen() -> None:
    BeatProcess.objects.create(hostname="a", pid=1, started_at=NOW, seen_at=NOW - 400 * SECOND)
    BeatProcess.objects.create(hostname="b", pid=1, started_at=NOW, seen_at=NOW - 300 * SECOND)

    assert values(measured(AlertKind.BEAT_SILENT)) == {"": 300}


def test_of_a_beat_that_never_was_there_is_nothing_to_say() -> None:
    found = measured(AlertKind.BEAT_SILENT)

    assert (values(found), found.trouble, found.of("").value) == ({}, "", 0)


def test_an_empty_outbox_does_not_lag() -> None:
    assert values(measured(AlertKind.OUTBOX_LAG)) == {"": 0}


@pytest.mark.parametrize("duty", ["collector", "runs"])
def test_the_collector_lags_since_its_duty_is_not_done(duty: str) -> None:
    assert values(measured(AlertKind.COLLECTOR_LAG)) == {"": 0}
    Lease.objects.filter(duty=duty).update(trouble="the broker is away", trouble_since=NOW - 90 * SECOND)

    assert values(measured(AlertKind.COLLECTOR_LAG)) == {"": 90}


@pytest.mark.parametrize("queue", [DEAD_QUEUE, RUNS_QUEUE])
def test_the_collector_lags_since_its_queue_was_last_short(queue: str) -> None:
    sample(queue, at=NOW - 200 * SECOND, ready=10)
    sample(queue, at=NOW - 195 * SECOND, ready=4_000)
    sample(queue, at=NOW, ready=9_000)

    assert values(measured(AlertKind.COLLECTOR_LAG)) == {"": 200}


def test_while_letters_are_not_read_few_of_them_are_not_taken_for_all() -> None:
    Lease.objects.filter(duty="collector").update(trouble="away", trouble_since=NOW)

    found = measured(AlertKind.LETTERS_GROWING, threshold=20)

    assert found.of("").value is None
    assert "not read now" in found.trouble


def test_every_kind_is_measured() -> None:
    assert measuring.MEASURES.keys() == set(AlertKind)


def test_a_rise_begins_where_the_counts_leave_what_is_expected() -> None:
    assert onset([1, 0, 2, 1, 0, 40, 45, 50], expected=5) == 5
    assert onset([40, 45, 50], expected=5) == 0
    assert onset([0, 0, 0, 9], expected=5) == 3


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=15),
    st.lists(st.integers(6, 90), min_size=1, max_size=15),
)
def test_a_rise_after_quiet_is_found_exactly(quiet: list[int], loud: list[int]) -> None:
    assert onset(quiet + loud, expected=5) == len(quiet)
