"""Rules and silences: made, changed and refused by people, each time with an audit entry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from jobs.alerts import recipients, rules, silences, testing
from jobs.audit import Actor
from jobs.core.alerts import KINDS
from jobs.core.words import AlertKind, AlertState
from jobs.errors import AlertRefused
from jobs.models import Alert, AlertRule, AuditEntry
from tests.factories import NOW

pytestmark = pytest.mark.django_db

MARA = Actor(name="Mara")
HOUR = timedelta(hours=1)


def make(kind: AlertKind = AlertKind.LETTERS_GROWING, **values: Any) -> AlertRule:
    return rules.create(kind=kind, values=values, actor=MARA, now=NOW)


@pytest.mark.parametrize("kind", list(AlertKind))
def test_the_usual_values_of_every_kind_are_a_right_rule(kind: AlertKind) -> None:
    rule = make(kind)

    assert rule.pk is not None
    assert rules.in_words(rule)
    assert rules.problems(kind, rules.snapshot(rule)) == {}


def test_a_rule_is_made_with_an_audit_entry_in_words() -> None:
    make(name="Growth", threshold=5, window_minutes=10, queue="critical")

    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action) == ("Mara", "alert_rule")
    assert entry.text == "made the alert rule “Growth”: more than 5 a minute over 10 minutes, queue critical"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("name", "  ", "needs a name"),
        ("name", "x" * 121, "at most 120 characters"),
        ("name", "a\r\nBcc: x", "one line"),
        ("severity", "loud", "Use one of critical, warning, info"),
        ("threshold", -1, "from 0 on"),
        ("threshold", float("nan"), "from 0 on"),
        ("threshold", float("inf"), "from 0 on"),
        ("threshold", "20", "from 0 on"),
        ("recovery_threshold", 21, "Write at most 20"),
        ("window_minutes", 0, "from 1 to 1,440 minutes"),
        ("window_minutes", 1.5, "whole number"),
        ("percentile", 100, "from 1 to 99"),
        ("hold_seconds", 86_401, "1 day 1 s is not a whole number of seconds from 0 s to 1 day."),
        ("reminder_seconds", 30, "too often"),
        ("recipients", ["mara@shop.example", "mara"], "'mara' is not an e-mail address"),
        ("recipients", ["a@b.example\nBcc: c@d.example"], "is not an e-mail address"),
        ("recipients", "a@b.example", "a list"),
        ("recipients", [f"a{n}@b.example" for n in range(21)], "at most 20"),
        ("webhook_url", "file:///etc/passwd", "begins with https://"),
        ("webhook_url", "https://a b.example/", "begins with https://"),
        ("webhook_url", "https://bot:word@chat.example/", "a name or a password"),
        ("runbook_url", "javascript:alert(1)", "begins with https://"),
        ("runbook_url", "https://[", "begins with https://"),
        ("runbook_url", "https://a.example/" + "x" * 500, "At most 500"),
        ("tusk", "x", "A rule has no 'tusk'"),
    ],
)
def test_a_wrong_value_is_refused_and_said_and_nothing_is_made(field: str, value: Any, words: str) -> None:
    with pytest.raises(AlertRefused) as caught:
        make(**{"threshold": 20, field: value})

    assert words in caught.value.problems[field]
    assert not AuditEntry.objects.exists()
    assert not AlertRule.objects.filter(key="").exists()


def test_a_rate_of_a_hundred_per_cent_is_refused_since_it_is_never_exceeded() -> None:
    with pytest.raises(AlertRefused, match="never reached"):
        make(AlertKind.FAILURE_RATE, threshold=100)


def test_a_change_is_audited_with_what_was_before() -> None:
    rule = make(threshold=5)

    changed = rules.change(rule=rule, values={"threshold": 9}, actor=MARA, now=NOW)

    assert changed.threshold == 9
    assert AuditEntry.objects.latest("pk").details["changed"] == {"threshold": [5, 9]}


def test_the_address_of_a_webhook_is_a_secret_that_the_audit_does_not_keep() -> None:
    rule = make(webhook_url="https://chat.example/services/T0/secret-1")
    rule = rules.change(
        rule=rule, values={"webhook_url": "https://chat.example/services/T0/secret-2"}, actor=MARA, now=NOW
    )
    rules.delete(rule=rule, actor=MARA, now=NOW)

    entries = [str(entry.details) + entry.text for entry in AuditEntry.objects.all()]
    assert len(entries) == 3
    assert not any("secret" in entry for entry in entries)
    assert AuditEntry.objects.earliest("pk").details["values"]["webhook_url"] == "chat.example"


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://bot:secret@chat.example:8443/secret?token=secret#secret", "chat.example"),
        ("", ""),
        # As no form takes it, but as a row may hold it.
        ("https://[secret", "an address that cannot be read"),
        ("secret", "an address that cannot be read"),
    ],
)
def test_no_entry_about_a_rule_holds_more_than_the_host_of_its_webhook(url: str, kept: str) -> None:
    rule = make()
    AlertRule.objects.filter(pk=rule.pk).update(webhook_url=url)
    AuditEntry.objects.all().delete()

    rules.disable(rule=rule, actor=MARA, now=NOW)
    rules.enable(rule=rule, actor=MARA, now=NOW)
    testing.send_test(rule=AlertRule.objects.get(pk=rule.pk), actor=MARA, now=NOW)
    silences.silence(rule=rule, until=NOW + HOUR, actor=MARA, now=NOW)
    rules.change(rule=rule, values={"webhook_url": "https://chat.example/other"}, actor=MARA, now=NOW)
    rules.delete(rule=rule, actor=MARA, now=NOW)

    entries = list(AuditEntry.objects.order_by("pk"))
    assert not any("secret" in f"{entry.details}{entry.text}{entry.why}" for entry in entries)
    assert entries[-2].details["changed"]["webhook_url"] == [kept, "chat.example"]


def test_a_change_that_changes_nothing_leaves_no_entry() -> None:
    rule = make(threshold=5)

    rules.change(rule=rule, values={"threshold": 5}, actor=MARA, now=NOW)

    assert AuditEntry.objects.count() == 1


def test_a_rule_that_watches_something_else_ends_what_it_had_open() -> None:
    rule = make()
    Alert.objects.create(rule=rule, state=AlertState.FIRING, began_at=NOW, fired_at=NOW)

    rules.change(rule=rule, values={"queue": "bulk"}, actor=MARA, now=NOW + HOUR)

    alert = Alert.objects.get()
    assert (alert.state, alert.resolved_at) == (AlertState.RESOLVED, NOW + HOUR)


def test_a_rule_that_is_gone_cannot_be_changed_and_says_so() -> None:
    rule = make()
    AlertRule.objects.filter(pk=rule.pk).delete()

    with pytest.raises(AlertRefused, match="deleted by somebody else"):
        rules.change(rule=rule, values={"threshold": 1}, actor=MARA, now=NOW)


def test_switching_twice_is_refused() -> None:
    rule = make()
    rules.disable(rule=rule, actor=MARA, now=NOW)

    with pytest.raises(AlertRefused, match="disabled already"):
        rules.disable(rule=rule, actor=MARA, now=NOW)
    assert rules.enable(rule=rule, actor=MARA, now=NOW).is_enabled


def test_a_deleted_rule_takes_its_alerts_along_and_the_audit_keeps_what_it_was() -> None:
    rule = make(threshold=7)
    Alert.objects.create(rule=rule, state=AlertState.FIRING, began_at=NOW)

    rules.delete(rule=rule, actor=MARA, now=NOW)

    assert not Alert.objects.exists()
    assert AuditEntry.objects.latest("pk").details["values"]["threshold"] == 7


def test_a_silence_lasts_until_its_end_or_until_somebody_ends_it() -> None:
    rule = make()
    silence = silences.silence(rule=rule, until=NOW + HOUR, actor=MARA, why="known", now=NOW)

    assert silences.until_by_rule(now=NOW) == {rule.pk: NOW + HOUR}
    assert silences.until_by_rule(now=NOW + HOUR) == {}
    silences.end(silence=silence, actor=MARA, now=NOW + HOUR / 2)
    assert list(silences.current(now=NOW + HOUR / 2)) == []
    with pytest.raises(AlertRefused, match="over already"):
        silences.end(silence=silence, actor=MARA, now=NOW + HOUR / 2)
    assert AuditEntry.objects.filter(action="silence").count() == 2


@pytest.mark.parametrize(
    ("hours", "words"), [(0, "over already"), (-1, "over already"), (31 * 24, "30 days")]
)
def test_a_silence_that_is_over_or_too_long_is_refused(hours: int, words: str) -> None:
    with pytest.raises(AlertRefused, match=words):
        silences.silence(rule=None, until=NOW + hours * HOUR, actor=MARA, now=NOW)


def test_of_several_silences_the_longest_counts() -> None:
    rule = make()
    silences.silence(rule=rule, until=NOW + HOUR, actor=MARA, now=NOW)
    silences.silence(rule=None, until=NOW + 3 * HOUR, actor=MARA, now=NOW)

    found = silences.until_by_rule(now=NOW)

    assert silences.silenced_until(rule.pk, found) == NOW + 3 * HOUR
    assert silences.silenced_until(rule.pk + 1, found) == NOW + 3 * HOUR
    assert silences.silenced_until(rule.pk, {}) is None


def test_a_rule_tells_its_own_people_else_those_of_the_setting_else_the_active_administrators(
    settings,
) -> None:
    rule = make(recipients=["own@shop.example", "OWN@shop.example"])
    settings.ALERT_EMAILS = ["team@shop.example"]
    User.objects.create_superuser("ada", "ada@shop.example", "x")
    User.objects.create_superuser("gone", "gone@shop.example", "x", is_active=False)
    User.objects.create_superuser("without", "", "x")
    User.objects.create_user("operator", "operator@shop.example", "x")
    member = User.objects.create_user("max", "max@shop.example", "x")
    member.groups.add(Group.objects.get(name="Admin"))

    assert recipients.of(rule) == ["own@shop.example"]
    rule.recipients = []
    assert recipients.of(rule) == ["team@shop.example"]
    settings.ALERT_EMAILS = []
    assert recipients.of(rule) == ["ada@shop.example", "max@shop.example"]


def test_the_rules_of_a_fresh_installation_are_right_and_named() -> None:
    found = list(AlertRule.objects.exclude(key=""))

    assert len(found) == 11
    for rule in found:
        assert rule.is_enabled
        assert rules.problems(AlertKind(rule.kind), rules.snapshot(rule)) == {}, rule.key
        assert rule.name == KINDS[AlertKind(rule.kind)].title
