"""What is deleted of the numbers, when, and what stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobs import duties, leases, retention
from jobs.core.words import AlertKind, AlertState, NotificationState
from jobs.metrics.storing import store
from jobs.models import Alert, AlertRule, Notification, QueueSample, Rollup, Run, Silence, WorkerBoot
from tests.metrics.batches import NOW, make_batch, make_run

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


def add_runs(*ages: timedelta) -> None:
    Run.objects.bulk_create(
        [Run(task_id=str(n), task="t", outcome="done", finished_at=NOW - age) for n, age in enumerate(ages)]
    )


def kept_runs() -> list[str]:
    return list(Run.objects.order_by("pk").values_list("task_id", flat=True))


def test_runs_are_kept_for_a_day(settings):
    add_runs(timedelta(hours=25), timedelta(hours=23), timedelta(hours=24, seconds=1))

    assert retention.delete_numbers(now=NOW) == 2
    assert kept_runs() == ["1"]

    settings.JOBS_RUN_RETENTION_HOURS = 22
    assert retention.delete_numbers(now=NOW) == 1


def test_of_runs_beyond_the_cap_the_oldest_go(settings):
    settings.JOBS_RUN_CAP = 3
    add_runs(*[timedelta(minutes=5)] * 8)

    assert retention.delete_numbers(now=NOW) == 5
    assert kept_runs() == ["5", "6", "7"]
    assert retention.delete_numbers(now=NOW) == 0


def test_runs_are_deleted_in_several_statements(monkeypatch, settings):
    monkeypatch.setattr(retention, "NUMBERS_BATCH", 3)
    add_runs(*[timedelta(days=2)] * 8, *[timedelta(minutes=1)] * 8)
    settings.JOBS_RUN_CAP = 1

    assert retention.delete_numbers(now=NOW) == 15
    assert kept_runs() == ["15"]


def test_a_limit_leaves_the_rest_for_the_next_round(monkeypatch):
    monkeypatch.setattr(retention, "NUMBERS_BATCH", 3)
    add_runs(*[timedelta(days=2)] * 8)

    assert retention.delete_numbers(now=NOW, limit=3) == 3
    assert kept_runs() == ["3", "4", "5", "6", "7"]


@pytest.mark.parametrize(("level", "days"), [("minute", 7), ("hour", 90), ("day", 730)])
@pytest.mark.parametrize("scope", ["both", "task", "queue", "all"])
def test_rollups_are_kept_as_long_as_their_level_is(level, days, scope):
    for age in (timedelta(days=days, hours=1), timedelta(days=days) - timedelta(hours=1)):
        Rollup.objects.create(level=level, scope=scope, starts_at=NOW - age, task="t", queue="q")

    assert retention.delete_numbers(now=NOW) == 1
    assert Rollup.objects.get().starts_at == NOW - timedelta(days=days) + timedelta(hours=1)


@pytest.mark.parametrize(("level", "days"), [("sample", 7), ("minute", 7), ("hour", 730)])
def test_samples_of_queues_are_kept_as_long_as_their_level_is(level, days):
    for age in (timedelta(days=days, hours=1), timedelta(days=days) - timedelta(hours=1)):
        QueueSample.objects.create(level=level, queue="q", at=NOW - age)

    assert retention.delete_numbers(now=NOW) == 1
    assert QueueSample.objects.get().at == NOW - timedelta(days=days) + timedelta(hours=1)


def test_workers_are_forgotten_a_week_after_their_last_word():
    store([make_batch([make_run()], boot_id="old")], now=NOW - timedelta(days=7, seconds=1))
    store([make_batch([make_run()], boot_id="new")], now=NOW - timedelta(days=6))

    retention.delete_numbers(now=NOW)

    assert WorkerBoot.objects.get().boot_id == "new"


def make_alert(age: timedelta, **fields: Any) -> Alert:
    rule = AlertRule.objects.create(name="depth", kind=AlertKind.QUEUE_DEPTH)
    values = {"state": AlertState.RESOLVED, "began_at": NOW - age, "resolved_at": NOW - age}
    alert = Alert.objects.create(rule=rule, **{**values, **fields})
    make_notification(alert, rule, age)
    return alert


def make_notification(
    alert: Alert | None, rule: AlertRule, age: timedelta, state: str = NotificationState.SENT
) -> Notification:
    return Notification.objects.create(
        alert=alert,
        rule=rule,
        kind="fired" if alert else "test",
        channel="email",
        state=state,
        message_id=f"{rule.pk}-{age}-{state}",
        subject="s",
        created_at=NOW - age,
        due_at=NOW - age,
    )


def test_alerts_that_were_resolved_go_after_ninety_days_with_their_notifications():
    old = make_alert(timedelta(days=91))
    kept = make_alert(timedelta(days=89))
    firing = make_alert(timedelta(days=200), state=AlertState.FIRING, resolved_at=None)

    retention.delete_numbers(now=NOW)

    assert set(Alert.objects.values_list("pk", flat=True)) == {kept.pk, firing.pk}
    assert not Notification.objects.filter(alert_id=old.pk).exists()
    assert AlertRule.objects.filter(pk=old.rule_id).exists()


def test_tests_and_silences_go_after_ninety_days_but_nothing_that_waits():
    rule = AlertRule.objects.create(name="depth", kind=AlertKind.QUEUE_DEPTH)
    make_notification(None, rule, timedelta(days=91))
    waiting = make_notification(None, rule, timedelta(days=91), NotificationState.WAITING)
    for days in (91, 89):
        Silence.objects.create(
            starts_at=NOW - timedelta(days=100), ends_at=NOW - timedelta(days=days), actor="mara"
        )

    retention.delete_numbers(now=NOW)

    assert Notification.objects.get() == waiting
    assert Silence.objects.get().ends_at == NOW - timedelta(days=89)


def test_a_round_that_finds_a_little_does_not_begin_the_next_one_at_once(monkeypatch):
    """Where jobs run all the time, one more is past its time whenever somebody looks."""
    lease = leases.acquire(duty="retention", holder="test", seconds=60)
    assert lease is not None
    prune = duties.retention_duty()
    add_runs(*[timedelta(days=10_000)] * 5)

    assert prune(lease) == duties.RETENTION_EVERY_SECONDS

    assert not Run.objects.exists()
    monkeypatch.setattr(duties, "RETENTION_FULL_ROUND", 5)
    add_runs(*[timedelta(days=10_000)] * 5)
    assert prune(lease) == 0.0


def test_looking_for_what_is_old_is_a_fixed_number_of_statements(django_assert_max_num_queries):
    add_runs(timedelta(minutes=1))

    with django_assert_max_num_queries(40):
        assert retention.delete_numbers(now=NOW) == 0
