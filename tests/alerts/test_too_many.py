"""More subjects than anybody reads, made up by whoever can publish: alerts go on."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection

from jobs.alerts import letter_stories, letters
from jobs.alerts.evaluating import MOST_SUBJECTS, evaluate
from jobs.core.words import AlertKind, AlertState, SampleLevel
from jobs.models import Alert, AlertRule, DeadLetter, FailureGroup, Notification, QueueSample
from tests.factories import NOW, make_letter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

SECOND = timedelta(seconds=1)
Make = Callable[..., AlertRule]


def fail_apart(count: int, *, at: datetime) -> None:
    """Store letters of so many failure groups."""
    first = make_letter(died_at=at, state_changed_at=at, death=False)
    values = DeadLetter.objects.filter(pk=first.pk).values().get()
    del values["id"]
    groups = FailureGroup.objects.bulk_create(
        FailureGroup(
            fingerprint=uuid.uuid4().hex, task=f"made.up.{number}", error_type="NotRegistered",
            title="NotRegistered", state="new", first_seen_at=at, last_seen_at=at,
        )
        for number in range(count)
    )  # fmt: skip
    DeadLetter.objects.bulk_create(
        DeadLetter(**{**values, "uuid": uuid.uuid4(), "group_id": group.pk, "task": group.task})
        for group in groups
    )


def test_thousands_of_failures_at_once_are_one_mail_and_hold_up_no_other_rule(only_rule: Make) -> None:
    rule = only_rule(AlertKind.GROUP_FAILING, threshold=0, window_minutes=5, cool_down_seconds=600)
    AlertRule.objects.create(name="Depth", kind=AlertKind.QUEUE_DEPTH, threshold=10)
    fail_apart(2_000, at=NOW)
    QueueSample.objects.create(
        level=SampleLevel.SAMPLE, queue="critical", at=NOW, ready=500, ready_max=500, consumers=1
    )

    evaluate(now=NOW)
    evaluate(now=NOW + SECOND)

    firing = Alert.objects.filter(state=AlertState.FIRING)
    assert (firing.filter(rule=rule).count(), firing.exclude(rule=rule).count()) == (MOST_SUBJECTS, 1)
    assert Notification.objects.filter(rule=rule).count() == 1
    rule.refresh_from_db()
    assert rule.trouble == "1,901 more are not watched: 100 of it are open at most."


def test_what_died_of_more_groups_than_are_read_is_counted_all_the_same(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=0, window_minutes=5)
    fail_apart(249, at=NOW)

    evaluate(now=NOW)

    text = Notification.objects.get().text
    assert "250 jobs died" in text
    assert "- at least 195 other groups: died 245" in text


def test_more_failures_than_a_statement_takes_values_hold_up_no_rule(
    only_rule: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes 32,766 as it is built by default, and fewer here."""
    monkeypatch.setattr(letters, "MOST_GROUPS", 300)
    only_rule(AlertKind.GROUP_FAILING, threshold=0, window_minutes=5)
    fail_apart(600, at=NOW)
    if connection.vendor == "sqlite":
        connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 500)

    try:
        found = letters.failing_groups(window=timedelta(minutes=5), now=NOW)
    finally:
        if connection.vendor == "sqlite":
            connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 250_000)

    assert len(found) == 300


def test_a_rule_that_cannot_be_told_of_keeps_no_other_from_firing(
    only_rule: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = only_rule(AlertKind.LETTERS_GROWING, threshold=0, window_minutes=5)
    fail_apart(5, at=NOW)
    AlertRule.objects.create(name="Depth", kind=AlertKind.QUEUE_DEPTH, threshold=10)
    QueueSample.objects.create(
        level=SampleLevel.SAMPLE, queue="critical", at=NOW, ready=500, ready_max=500, consumers=1
    )
    monkeypatch.setattr(letter_stories, "firing_table", lambda *_, **__: 1 / 0)

    evaluate(now=NOW)

    broken.refresh_from_db()
    assert broken.trouble == "It could not be judged: ZeroDivisionError: division by zero"
    assert [alert.subject for alert in Alert.objects.all()] == ["critical"]


@pytest.mark.parametrize(
    "name", ["*", "a\"b\\'", "a b:c,d", "a\nb\tc", "-x", "é\u202e" * 127, '"' * 255, "(", "state:dead"]
)
def test_a_rule_of_any_name_is_judged_and_told_of(only_rule: Make, name: str) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=0, window_minutes=5, task=name, queue=name)
    make_letter(died_at=NOW, state_changed_at=NOW, task=name, queue=name)

    evaluate(now=NOW)

    rule.refresh_from_db()
    assert (rule.trouble, Alert.objects.count()) == ("", 1)
