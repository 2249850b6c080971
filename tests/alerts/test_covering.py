"""While dead letters grow, what other rules fire for is told by that alert: to the very same people, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobs.alerts import rules, silences
from jobs.alerts.evaluating import evaluate
from jobs.audit import Actor
from jobs.core.words import AlertKind, NotificationKind, NotificationState
from jobs.models import AlertRule, Notification
from tests.factories import NOW, make_copies, make_group, make_letter

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

MINUTE = timedelta(minutes=1)
MARA = Actor(name="Mara")
HOOK = "https://chat.example/hook"
Make = Callable[..., AlertRule]


@pytest.fixture
def growing(only_rule: Make) -> Callable[..., AlertRule]:
    """Makes the rule of letters that grow."""

    def make(**fields: Any) -> AlertRule:
        return only_rule(
            AlertKind.LETTERS_GROWING, **{"name": "Growing", "threshold": 20, "window_minutes": 5, **fields}
        )

    return make


def failing(**fields: Any) -> AlertRule:
    """Make a rule that "Growing" may tell for."""
    values = {"name": "Failing", "threshold": 10, "window_minutes": 30, "recovery_hold_seconds": 0}
    return AlertRule.objects.create(kind=AlertKind.GROUP_FAILING, **{**values, **fields})


def die(count: int = 150) -> None:
    """Let jobs of a new group die now."""
    first = make_letter(
        group=make_group(first_seen_at=NOW, last_seen_at=NOW), died_at=NOW, state_changed_at=NOW, death=False
    )
    make_copies(first, count - 1)


def told(name: str) -> list[tuple[str, str, str]]:
    """Return what was written of a rule: kind, channel and state, oldest first."""
    rows = Notification.objects.filter(rule__name=name).order_by("pk")
    return [(row.kind, row.channel, row.state) for row in rows]


@pytest.mark.parametrize(
    ("by_growing", "by_failing"),
    [
        ({}, {}),
        ({"recipients": ["a@shop.example", "B@shop.example"]}, {"recipients": ["b@shop.example"]}),
        ({"recipients": ["oncall@shop.example"]}, {}),
        ({"webhook_url": HOOK}, {}),
        ({"webhook_url": HOOK}, {"webhook_url": HOOK}),
    ],
)
def test_the_same_people_are_told_once(growing: Make, by_growing: Any, by_failing: Any) -> None:
    growing(**by_growing)
    failing(**by_failing)
    die()

    evaluate(now=NOW)

    assert {state for _, _, state in told("Growing")} == {NotificationState.WAITING}
    assert {state for _, _, state in told("Failing")} == {NotificationState.SILENCED}


@pytest.mark.parametrize(
    ("by_growing", "by_failing"),
    [
        ({"recipients": ["a@shop.example"]}, {}),
        ({}, {"recipients": ["b@shop.example"]}),
        ({"recipients": ["a@shop.example"]}, {"recipients": ["a@shop.example", "b@shop.example"]}),
        ({}, {"webhook_url": HOOK}),
        ({"webhook_url": "https://chat.example/other"}, {"webhook_url": HOOK}),
    ],
)
def test_other_people_and_other_channels_are_told_by_themselves(
    growing: Make, by_growing: Any, by_failing: Any
) -> None:
    growing(**by_growing)
    failing(**by_failing)
    die()

    evaluate(now=NOW)

    assert {state for _, _, state in told("Failing")} == {NotificationState.WAITING}


def test_an_alert_of_which_nobody_is_to_be_told_tells_for_no_other(growing: Make, settings) -> None:
    settings.ALERT_EMAILS = []
    growing()
    failing(recipients=["b@shop.example"])
    die()

    evaluate(now=NOW)

    assert told("Growing") == [("fired", "email", "gave_up")]
    assert told("Failing") == [("fired", "email", "waiting")]


def test_without_a_mail_server_no_alert_says_that_another_told_of_it(growing: Make, settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    growing()
    failing()
    die()

    evaluate(now=NOW)

    assert told("Failing") == [("fired", "email", "waiting")]


def test_an_alert_whose_mail_was_given_up_tells_for_none_that_fires_later(growing: Make) -> None:
    growing()
    die()
    evaluate(now=NOW)
    Notification.objects.update(state=NotificationState.GAVE_UP)
    failing()

    evaluate(now=NOW + MINUTE)

    assert told("Failing") == [("fired", "email", "waiting")]


def test_whom_the_mail_server_refused_is_not_told_by_that_mail(growing: Make) -> None:
    growing(recipients=["a@shop.example", "b@shop.example"])
    die()
    evaluate(now=NOW)
    Notification.objects.update(state=NotificationState.SENT, body={"accepted": ["a@shop.example"]})
    failing(recipients=["b@shop.example"])

    evaluate(now=NOW + MINUTE)

    assert told("Failing") == [("fired", "email", "waiting")]


def test_what_was_covered_is_told_once_the_covering_mail_is_given_up(growing: Make) -> None:
    growing()
    failing()
    die()
    evaluate(now=NOW)
    evaluate(now=NOW + MINUTE / 2)
    assert told("Failing") == [("fired", "email", "silenced")]
    Notification.objects.filter(rule__name="Growing").update(state=NotificationState.GAVE_UP)

    evaluate(now=NOW + MINUTE)
    evaluate(now=NOW + 2 * MINUTE)

    assert told("Failing") == [("fired", "email", "silenced"), ("reminder", "email", "waiting")]


def test_what_was_covered_is_told_when_the_covering_rule_is_disabled_before_its_mail_went(
    growing: Make,
) -> None:
    rule = growing()
    failing()
    die()
    evaluate(now=NOW)
    rules.disable(rule=rule, actor=MARA, now=NOW + MINUTE)

    evaluate(now=NOW + MINUTE)

    assert told("Failing")[-1] == ("reminder", "email", "waiting")


def test_what_was_covered_stays_so_when_the_growth_is_over_and_people_know(growing: Make) -> None:
    growing(window_minutes=1)
    failing()
    die()
    evaluate(now=NOW)
    Notification.objects.filter(rule__name="Growing").update(state=NotificationState.SENT)

    for minute in range(1, 5):
        evaluate(now=NOW + minute * MINUTE)

    assert [kind for kind, _, _ in told("Growing")] == [NotificationKind.FIRED, NotificationKind.RECOVERED]
    assert told("Failing") == [("fired", "email", "silenced")]


def dying(minutes: int) -> None:
    """Let jobs die now and in each of the minutes that come."""
    group = make_group(first_seen_at=NOW, last_seen_at=NOW)
    for minute in range(minutes):
        at = NOW + minute * MINUTE
        make_copies(make_letter(group=group, died_at=at, state_changed_at=at, death=False), 49)


def reminded(name: str) -> list[str]:
    """Return the states of a rule's reminders."""
    return [state for kind, _, state in told(name) if kind == NotificationKind.REMINDER]


@pytest.mark.parametrize(("by_growing", "state"), [(600, "silenced"), (0, "waiting")])
def test_an_outage_that_lasts_is_one_reminder_where_the_growth_reminds(
    growing: Make, by_growing: int, state: str
) -> None:
    growing(reminder_seconds=by_growing)
    failing(reminder_seconds=600)
    dying(15)

    for minute in range(15):
        evaluate(now=NOW + minute * MINUTE)

    assert reminded("Failing") == [state]
    assert reminded("Growing") == ["waiting"] * bool(by_growing)


def test_what_outlasts_the_growth_is_reminded_of_by_itself(growing: Make) -> None:
    growing(window_minutes=1, recovery_hold_seconds=3_600, reminder_seconds=600)
    failing(reminder_seconds=600)
    dying(8)

    for minute in range(12):
        evaluate(now=NOW + minute * MINUTE)

    assert (reminded("Growing"), reminded("Failing")) == ([], ["waiting"])


def test_after_a_silence_of_all_an_outage_is_one_mail(growing: Make) -> None:
    growing(reminder_seconds=86_400)
    failing(reminder_seconds=86_400)
    silences.silence(rule=None, until=NOW + 5 * MINUTE, actor=MARA, now=NOW)
    dying(10)

    for minute in range(10):
        evaluate(now=NOW + minute * MINUTE)

    assert (reminded("Growing"), reminded("Failing")) == (["waiting"], ["silenced"])
