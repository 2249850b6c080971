"""What a rule would have done in the last day, from the numbers of each minute."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from console.presenters import alert_rehearsal
from jobs.alerts import rules
from jobs.alerts.rehearsing import rehearse_rule
from jobs.core.words import AlertKind
from jobs.models import AlertRule
from tests.factories import NOW
from tests.metrics_rows import make_heartbeat, make_rollup, make_sample

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def draft(kind: AlertKind, **values: Any) -> AlertRule:
    """Return a rule that is not saved and judges at once."""
    rule = rules.draft(kind)
    for name, value in (
        {"hold_seconds": 0, "recovery_hold_seconds": 0, "cool_down_seconds": 0} | values
    ).items():
        setattr(rule, name, value)
    return rule


def said(rule: AlertRule) -> str:
    return alert_rehearsal.sentence(rule, now=NOW)


def known_day() -> None:
    """Say that workers reported all day; one row in ten minutes would be a day with gaps."""
    for minute in range(1, 24 * 60 + 1):
        make_heartbeat(at=NOW - MINUTE * minute)


def test_growth_is_the_average_over_the_rules_window():
    for minute in range(60, 70):
        make_rollup(at=NOW - MINUTE * minute, dead=30, done=1)
    for minute in range(1, 60):
        make_heartbeat(at=NOW - MINUTE * minute)

    five = rehearse_rule(draft(AlertKind.LETTERS_GROWING, threshold=20), now=NOW)
    twenty = rehearse_rule(draft(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=20), now=NOW)

    # 30 a minute since 02:03: the average of five minutes is above 20 once four of them are full.
    (firing,) = five.firings
    assert (firing.fired_at, firing.resolved_at) == (NOW - MINUTE * 65, NOW - MINUTE * 57)
    assert twenty.firings == []


def test_a_share_with_too_few_jobs_is_no_verdict():
    for minute in range(30, 40):
        make_rollup(at=NOW - MINUTE * minute, dead=5, done=5)

    enough = draft(AlertKind.FAILURE_RATE, threshold=40, minimum_attempts=50)
    few = draft(AlertKind.FAILURE_RATE, threshold=40, minimum_attempts=51)

    assert len(rehearse_rule(enough, now=NOW).firings) == 1
    assert rehearse_rule(few, now=NOW).firings == []


def test_retries_are_judged_as_a_share_of_the_attempts():
    for minute in range(30, 40):
        make_rollup(at=NOW - MINUTE * minute, done=2, retried=8)

    low = draft(AlertKind.RETRY_RATE, threshold=79, minimum_attempts=20)
    high = draft(AlertKind.RETRY_RATE, threshold=80, minimum_attempts=20)

    assert len(rehearse_rule(low, now=NOW).firings) == 1
    assert rehearse_rule(high, now=NOW).firings == []


def test_a_percentile_forgets_the_minutes_that_left_the_window():
    make_rollup(at=NOW - MINUTE * 30, done=100, latency=[90.0] * 100)
    for minute in range(1, 30):
        make_rollup(at=NOW - MINUTE * minute, done=100, latency=[0.1] * 100)

    (firing,) = rehearse_rule(draft(AlertKind.LATENCY, threshold=60), now=NOW).firings

    assert (firing.fired_at, firing.resolved_at) == (NOW - MINUTE * 29, NOW - MINUTE * 24)


def test_of_one_task_only_its_own_numbers_count():
    make_rollup(at=NOW - MINUTE * 9, task="shop.tasks.pay", dead=500)

    assert rehearse_rule(draft(AlertKind.LETTERS_GROWING, task="shop.tasks.pay"), now=NOW).firings
    assert not rehearse_rule(draft(AlertKind.LETTERS_GROWING, task="shop.tasks.mail"), now=NOW).firings


def test_every_queue_is_judged_by_itself():
    for minute in range(1, 60):
        make_sample(queue="critical", at=NOW - MINUTE * minute, ready=900 if minute == 20 else 0)
        make_sample(queue="low", at=NOW - MINUTE * minute, ready=900 if minute < 10 else 0, consumers=0)

    deep = rehearse_rule(draft(AlertKind.QUEUE_DEPTH, threshold=500), now=NOW)
    one = rehearse_rule(draft(AlertKind.QUEUE_DEPTH, threshold=500, queue="critical"), now=NOW)
    nobody = rehearse_rule(draft(AlertKind.NO_CONSUMER), now=NOW)

    assert [firing.fired_at for firing in deep.firings] == [NOW - MINUTE * 19, NOW - MINUTE * 8]
    assert [firing.fired_at for firing in one.firings] == [NOW - MINUTE * 19]
    assert [firing.fired_at for firing in nobody.firings] == [NOW - MINUTE * 8]


def test_a_queue_that_was_paused_would_not_have_fired_for_want_of_workers():
    for minute in range(1, 60):
        make_sample(queue="critical", at=NOW - MINUTE * minute, ready=900, consumers=0, is_paused=minute > 20)

    (firing,) = rehearse_rule(draft(AlertKind.NO_CONSUMER), now=NOW).firings

    assert firing.fired_at == NOW - MINUTE * 19


def test_the_sentence_says_how_often_when_and_how_much_is_known():
    rule = draft(AlertKind.LETTERS_GROWING)
    assert said(rule) == "In the last 24 hours too little was measured to say how often it would have fired."

    known_day()
    assert said(rule) == "In the last 24 hours it would not have fired."

    make_rollup(at=NOW - MINUTE * 60, dead=500)
    assert said(rule) == "In the last 24 hours it would have fired once: from 02:13 to 02:18 UTC."

    make_rollup(at=NOW - MINUTE * 2, dead=500)
    assert (
        said(rule)
        == "In the last 24 hours it would have fired 2 times, the last time from 03:11 UTC until now."
    )


def test_gaps_are_told():
    for minute in range(1, 12 * 60 + 1):
        make_heartbeat(at=NOW - MINUTE * minute)

    assert said(draft(AlertKind.LETTERS_GROWING)) == (
        "In the last 24 hours it would not have fired. Of 50 % of that time nothing is known."
    )


@pytest.mark.parametrize(
    "kind",
    [AlertKind.GROUP_FAILING, AlertKind.WORKER_LOST, AlertKind.BEAT_SILENT, AlertKind.OUTBOX_LAG],
)
def test_of_kinds_without_numbers_of_the_past_nothing_is_said(kind):
    assert said(draft(kind)) == ""


@pytest.mark.parametrize("kind", list(AlertKind))
def test_the_queries_do_not_grow_with_the_queues(kind):
    for number in range(10):
        make_sample(queue=f"q{number}", at=NOW - MINUTE * 5, ready=1)

    with CaptureQueriesContext(connection) as asked:
        rehearse_rule(draft(kind), now=NOW)

    assert len(asked) <= 3
