"""From rows to alerts and what is told of them, judged in the database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import search
from jobs.alerts import reading, rules, silences
from jobs.alerts.evaluating import Evaluated, evaluate
from jobs.audit import Actor
from jobs.core import query as core_query
from jobs.core.words import (
    AlertKind,
    AlertState,
    GroupState,
    LetterState,
    NotificationKind,
    NotificationState,
    SampleLevel,
)
from jobs.models import Alert, AlertRule, DeadLetter, FailureGroup, Notification, QueueSample
from tests.factories import NOW, make_copies, make_group, make_letter
from tests.metrics_rows import make_rollup

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)
MARA = Actor(name="Mara")
Make = Callable[..., AlertRule]


def die(count: int, *, at: datetime, group: FailureGroup | None = None, **fields: object) -> FailureGroup:
    """Store so many letters of one group that died at a moment."""
    group = group or make_group(first_seen_at=at, last_seen_at=at)
    first = make_letter(group=group, died_at=at, state_changed_at=at, death=False, **fields)
    if count > 1:
        make_copies(first, count - 1)
    return group


def sample(queue: str, *, at: datetime, ready: int, consumers: int = 0, age: float | None = None) -> None:
    """Store what a queue held."""
    QueueSample.objects.create(
        level=SampleLevel.SAMPLE, queue=queue, at=at, ready=ready, ready_max=ready, consumers=consumers,
        oldest_age_seconds=age,
    )  # fmt: skip


def told() -> list[tuple[str, str]]:
    """Return what was written to be sent, oldest first."""
    rows = Notification.objects.order_by("pk")
    return [(row.kind, row.state) for row in rows]


def test_letters_that_grow_are_told_of_once_with_a_link_to_those_very_letters(only_rule: Make) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    die(7, at=NOW - timedelta(hours=2))
    die(150, at=NOW - MINUTE)

    for seconds in range(0, 60, 5):
        evaluate(now=NOW + seconds * SECOND)

    alert = Alert.objects.get()
    assert (alert.rule, alert.state, alert.value) == (rule, AlertState.FIRING, 30)
    (row,) = Notification.objects.all()
    assert row.subject == "[production] Dead letters grow by 150 a minute since 03:11 UTC"
    assert row.recipients == ["oncall@shop.example"]
    query = core_query.parse(alert.details["letters"], now=NOW)
    assert search.count(query) == 150
    address = "https://jobs.shop.example/dead-letters/?q=state:dead+since:2026-11-12T03:11Z+until:2026-11-12T03:11:01Z"
    assert address in row.text
    assert f'href="{address}"' in row.html
    assert "Open these 150 letters" in row.text


def test_a_steady_three_dead_letters_tell_nobody_anything_under_the_rules_of_a_fresh_installation(
    only_rule: Make,
) -> None:
    AlertRule.objects.exclude(key="").update(is_enabled=True)
    group = make_group(first_seen_at=NOW)
    for minute in range(0, 60, 20):
        die(1, at=NOW + minute * MINUTE, group=group)

    for minute in range(90):
        evaluate(now=NOW + minute * MINUTE)

    assert not Alert.objects.exists()
    assert not Notification.objects.exists()


def test_row_50_a_retry_storm_of_which_nothing_dies_is_one_mail_under_the_rules_of_a_fresh_installation(
    only_rule: Make,
) -> None:
    AlertRule.objects.exclude(key="").update(is_enabled=True)
    for seconds in range(0, 900, 30):
        now = NOW + seconds * SECOND
        if not seconds % 60:
            make_rollup(at=now, done=5, retried=45)
        evaluate(now=now)

    (row,) = Notification.objects.all()
    assert row.subject == "[production] 90 % of attempts fail and are retried since 03:13 UTC"
    # It began with the hundredth attempt, and had lasted for five minutes.
    assert row.created_at == NOW + 6 * MINUTE


def test_the_growth_that_is_told_is_never_below_the_limit_that_it_broke(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=1)
    group = die(10, at=NOW - 59 * SECOND)
    die(15, at=NOW, group=group)

    evaluate(now=NOW)

    assert Notification.objects.get().subject.startswith("[production] Dead letters grow by 25 a minute")


def test_letters_that_no_longer_grow_are_one_recovery(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    die(150, at=NOW - MINUTE)
    evaluate(now=NOW)
    Notification.objects.update(state=NotificationState.SENT)
    DeadLetter.objects.update(state=LetterState.RESOLVED)

    for minute in range(1, 9):
        evaluate(now=NOW + minute * MINUTE)

    fired, recovered = Notification.objects.order_by("pk")
    assert recovered.kind == NotificationKind.RECOVERED
    assert recovered.subject == "[production] Recovered after 6 min: dead letters no longer grow"
    assert "150 jobs died. No dead letter waits any more." in " ".join(recovered.text.split())
    assert recovered.body["references"] == fired.message_id


def test_what_a_purge_of_a_queue_kept_did_not_die(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    die(500, at=NOW, state=LetterState.PURGED)

    evaluate(now=NOW)

    assert not Alert.objects.exists()


def test_a_replayed_letter_that_dies_again_counts(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=1, window_minutes=5)
    die(10, at=NOW - timedelta(days=1))
    DeadLetter.objects.update(died_at=NOW, deaths=2, replays=1)

    evaluate(now=NOW)

    assert Alert.objects.get().value == 2


def test_a_rule_of_one_queue_counts_and_links_that_queue_alone(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=1, window_minutes=5, queue="bulk mail")
    die(40, at=NOW - MINUTE, queue="bulk mail")
    die(90, at=NOW - MINUTE, queue="critical")

    evaluate(now=NOW)

    alert = Alert.objects.get()
    assert alert.value == 8
    assert search.count(core_query.parse(alert.details["letters"], now=NOW)) == 40


def test_the_growth_is_told_from_where_it_began_and_not_from_the_window(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=30)
    for minute in range(30):
        die(3, at=NOW - minute * MINUTE)
    die(900, at=NOW - 3 * MINUTE)

    evaluate(now=NOW)

    (alert,) = reading.open_alerts(now=NOW)
    assert alert.since == NOW - 3 * MINUTE
    assert alert.headline == "Dead letters are growing by 304 a minute"


def test_judging_again_and_at_once_tells_nothing_twice(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    die(150, at=NOW)

    totals = [evaluate(now=NOW) for _ in range(5)]

    assert [each.fired for each in totals] == [1, 0, 0, 0, 0]
    assert len(told()) == 1


def test_who_judged_with_an_older_clock_changes_nothing(only_rule: Make) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    evaluate(now=NOW + MINUTE)
    die(150, at=NOW)

    assert evaluate(now=NOW) == Evaluated()
    rule.refresh_from_db()
    assert rule.evaluated_at == NOW + MINUTE


def test_an_hour_without_runops_fires_nothing_on_what_was_before(only_rule: Make) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10, hold_seconds=300)
    sample("critical", at=NOW, ready=500)
    evaluate(now=NOW)

    later = NOW + timedelta(hours=1)
    assert evaluate(now=later).fired == 0, "the sample is an hour old"
    sample("critical", at=later, ready=500)
    assert evaluate(now=later + SECOND).fired == 0, "nobody knows how it was meanwhile"


def test_a_sample_that_is_stale_is_said_and_neither_fires_nor_recovers(only_rule: Make) -> None:
    rule = only_rule(AlertKind.QUEUE_DEPTH, threshold=10)
    sample("critical", at=NOW, ready=500)
    evaluate(now=NOW)

    for minute in range(1, 5):
        evaluate(now=NOW + minute * MINUTE)

    rule.refresh_from_db()
    assert "not been counted lately" in rule.trouble
    assert Alert.objects.get().state == AlertState.FIRING


def test_queues_that_fail_together_are_told_of_together_and_end_together(only_rule: Make) -> None:
    only_rule(AlertKind.NO_CONSUMER, cool_down_seconds=600)
    for name, ready in (("bulk", 3), ("critical", 40), ("default", 5)):
        sample(name, at=NOW, ready=ready)
    evaluate(now=NOW)
    Notification.objects.update(state=NotificationState.SENT)

    (row,) = Notification.objects.all()
    assert row.subject == "[production] Nobody works on 3 queues since 03:12 UTC"
    assert "48 messages wait; no worker is online." in " ".join(row.text.split())
    assert "- critical: waiting 40" in row.text

    now = NOW + 5 * SECOND
    for name, ready in (("bulk", 0), ("critical", 40), ("default", 0)):
        sample(name, at=now, ready=ready)
    evaluate(now=now)
    assert len(told()) == 1, "one of the three is not over"

    now = NOW + 10 * SECOND
    for name in ("bulk", "critical", "default"):
        sample(name, at=now, ready=0)
    evaluate(now=now)
    assert told() == [("fired", "sent"), ("recovered", "waiting")]
    assert "3 queues are worked on again" in Notification.objects.get(kind="recovered").subject.lower()


def test_what_begins_right_after_another_of_its_rule_is_collected(only_rule: Make) -> None:
    only_rule(AlertKind.NO_CONSUMER, cool_down_seconds=600)
    for number in range(12):
        now = NOW + number * 30 * SECOND
        for queue in range(number + 1):
            sample(f"queue-{queue:02}", at=now, ready=1)
        evaluate(now=now)

    first, second = Notification.objects.order_by("pk")
    assert "Nobody works on queue queue-00" in first.subject
    assert second.created_at - first.created_at == timedelta(minutes=5)
    assert "10 queues" in second.subject


def test_what_begins_right_after_another_is_collected_though_that_is_over(only_rule: Make) -> None:
    """Of workers that crash and come back in turn each would be a mail, and another that it is back."""
    only_rule(AlertKind.NO_CONSUMER, cool_down_seconds=600)
    for number in range(12):
        now = NOW + number * 30 * SECOND
        sample("idle", at=now, ready=0)
        sample(f"queue-{number:02}", at=now, ready=1)
        evaluate(now=now)

    fired = list(Notification.objects.filter(kind="fired").order_by("pk"))
    assert [row.created_at - NOW for row in fired] == [0 * MINUTE, 5 * MINUTE]


def test_a_rule_that_watches_something_else_now_collects_nothing_for_what_it_told_before(
    only_rule: Make,
) -> None:
    rule = only_rule(AlertKind.NO_CONSUMER, cool_down_seconds=600, queue="low")
    for second in (0, 5):
        sample("low", at=NOW + second * SECOND, ready=1)
        sample("critical", at=NOW + second * SECOND, ready=1)
    evaluate(now=NOW)

    rules.change(rule=rule, values={"queue": "critical"}, actor=MARA, now=NOW + SECOND)
    evaluate(now=NOW + 5 * SECOND)

    assert Notification.objects.filter(kind="fired").count() == 2


def test_a_group_that_fails_is_not_told_of_beside_letters_that_grow(only_rule: Make) -> None:
    growing = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    AlertRule.objects.create(name="Failing", kind=AlertKind.GROUP_FAILING, threshold=10, window_minutes=30)
    die(150, at=NOW)

    evaluate(now=NOW)

    assert Alert.objects.filter(state=AlertState.FIRING).count() == 2
    kept = Notification.objects.get(rule__name="Failing")
    assert (kept.state, kept.last_error) == (
        NotificationState.SILENCED,
        f"Not sent: “{growing.name}” tells of the same jobs.",
    )


def test_letters_that_grow_in_silence_tell_for_no_other_rule(only_rule: Make) -> None:
    growing = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    AlertRule.objects.create(name="Failing", kind=AlertKind.GROUP_FAILING, threshold=10, window_minutes=30)
    silences.silence(rule=growing, until=NOW + MINUTE, actor=MARA, now=NOW)
    die(150, at=NOW)

    evaluate(now=NOW)

    told_of = dict(Notification.objects.values_list("rule__name", "state"))
    assert told_of == {growing.name: NotificationState.SILENCED, "Failing": NotificationState.WAITING}


def test_a_new_group_is_told_of_with_its_name_until_somebody_has_looked(only_rule: Make) -> None:
    only_rule(AlertKind.GROUP_FAILING, threshold=10, window_minutes=30)
    known = make_group(state=GroupState.KNOWN, first_seen_at=NOW, last_seen_at=NOW)
    die(50, at=NOW, group=known)
    new = die(11, at=NOW)

    evaluate(now=NOW)

    alert = Alert.objects.get()
    assert alert.subject == str(new.pk)
    (row,) = Notification.objects.all()
    expected = "[production] New failure: ConnectionRefusedError in shop.tasks.send_receipt since 03:12 UTC"
    assert row.subject == expected
    query = core_query.parse(alert.details["letters"], now=NOW)
    assert search.count(query) == 11

    FailureGroup.objects.filter(pk=new.pk).update(state=GroupState.KNOWN)
    evaluate(now=NOW + 5 * SECOND)
    assert Alert.objects.get().state == AlertState.RESOLVED


def test_a_silenced_rule_fires_and_tells_nobody_and_tells_when_the_silence_ends(only_rule: Make) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=60)
    silences.silence(rule=rule, until=NOW + 10 * MINUTE, actor=MARA, now=NOW)
    die(3000, at=NOW)

    evaluate(now=NOW)
    assert told() == [("fired", "silenced")]
    (shown,) = reading.open_alerts(now=NOW)
    assert shown.silenced_until == NOW + 10 * MINUTE

    evaluate(now=NOW + 9 * MINUTE)
    assert len(told()) == 1
    for minute in (10, 11, 12):
        evaluate(now=NOW + minute * MINUTE)
    assert told() == [("fired", "silenced"), ("reminder", "waiting")]


def test_what_fired_before_a_silence_and_still_fires_after_it_is_told(only_rule: Make) -> None:
    rule = only_rule(AlertKind.QUEUE_DEPTH, threshold=10)
    for minute in range(10):
        now = NOW + minute * MINUTE
        sample("critical", at=now, ready=500, consumers=1)
        if minute == 2:
            silences.silence(rule=rule, until=NOW + 6 * MINUTE, actor=MARA, now=now)
        evaluate(now=now)

    assert told() == [("fired", "waiting"), ("reminder", "waiting")]
    assert Notification.objects.latest("pk").created_at == NOW + 6 * MINUTE


def test_who_leads_may_be_over_before_the_silence_is_and_the_end_is_told_all_the_same(
    only_rule: Make,
) -> None:
    rule = only_rule(AlertKind.QUEUE_DEPTH, threshold=10)
    silences.silence(rule=rule, until=NOW + 2 * MINUTE, actor=MARA, now=NOW)
    depths = {0: (900, 500), 1: (0, 500), 2: (0, 500), 3: (0, 0)}
    for minute, (long, short) in depths.items():
        now = NOW + minute * MINUTE
        sample("long", at=now, ready=long, consumers=1)
        sample("short", at=now, ready=short, consumers=1)
        evaluate(now=now)
        Notification.objects.filter(state=NotificationState.WAITING).update(state=NotificationState.SENT)

    assert told() == [("fired", "silenced"), ("reminder", "sent"), ("recovered", "sent")]
    # The page of an alert shows what its leader holds.
    assert {row.alert.subject for row in Notification.objects.select_related("alert")} == {"long"}
    first, reminder, _ = Notification.objects.order_by("pk")
    assert reminder.body["references"] == first.message_id


def test_a_silence_of_all_rules_counts_for_each(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    silences.silence(rule=None, until=NOW + 10 * MINUTE, actor=MARA, now=NOW)
    die(150, at=NOW)

    evaluate(now=NOW)

    assert told() == [("fired", "silenced")]


def test_who_was_told_nothing_of_it_is_not_told_that_it_is_over(only_rule: Make) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=1)
    silences.silence(rule=rule, until=NOW + MINUTE, actor=MARA, now=NOW)
    die(150, at=NOW)
    evaluate(now=NOW)

    evaluate(now=NOW + 2 * MINUTE)

    assert told() == [("fired", "silenced"), ("recovered", "silenced")]


def test_what_could_not_be_sent_before_it_was_over_is_told_once_with_the_recovery(only_rule: Make) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=1)
    die(150, at=NOW)
    evaluate(now=NOW)
    Notification.objects.update(attempts=3, last_error="The mail server did not take it: refused")

    evaluate(now=NOW + 2 * MINUTE)

    assert told() == [("fired", "gave_up"), ("recovered", "waiting")]
    text = " ".join(Notification.objects.get(kind="recovered").text.split())
    assert text.startswith(
        "That it fired could not be told at 03:12 UTC: The mail server did not take it: refused"
    )


def test_reminders_come_while_it_fires(only_rule: Make) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10, reminder_seconds=600)
    for number in range(0, 45 * 60, 30):
        sample("critical", at=NOW + number * SECOND, ready=500, consumers=1)
        evaluate(now=NOW + number * SECOND)

    kinds = [kind for kind, _ in told()]
    assert kinds == ["fired", "reminder", "reminder", "reminder", "reminder"]
    last = Notification.objects.order_by("pk").last()
    assert last is not None
    assert last.subject == "[production] Still firing after 40 min: 500 messages wait on critical"


def test_while_nothing_can_be_sent_the_newest_reminder_takes_the_place_of_the_others(
    only_rule: Make,
) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10, reminder_seconds=600)
    for minute in range(45):
        now = NOW + minute * MINUTE
        sample("critical", at=now, ready=500, consumers=1)
        evaluate(now=now)
        if minute == 25:
            Notification.objects.filter(number=2).update(claimed_until=now + 60 * MINUTE)

    # The one that is being sent just now is left alone.
    assert told() == [
        ("fired", "waiting"),
        ("reminder", "gave_up"),
        ("reminder", "waiting"),
        ("reminder", "gave_up"),
        ("reminder", "waiting"),
    ]


def test_flapping_around_the_threshold_tells_no_more_than_the_cool_down_allows(only_rule: Make) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=10, cool_down_seconds=900)
    for number in range(0, 3600, 30):
        now = NOW + number * SECOND
        sample("critical", at=now, ready=11 if number % 60 else 9, consumers=1)
        evaluate(now=now)

    fired = [row.created_at for row in Notification.objects.filter(kind="fired").order_by("pk")]
    assert 2 <= len(fired) <= 1 + 3600 / 900
    assert all(later - earlier >= timedelta(seconds=900) for earlier, later in pairwise(fired))


def test_disabling_a_rule_ends_its_alert_and_sends_nothing_more(only_rule: Make) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    die(150, at=NOW)
    evaluate(now=NOW)

    rules.disable(rule=rule, actor=MARA, now=NOW + MINUTE)
    evaluate(now=NOW + 2 * MINUTE)

    alert = Alert.objects.get()
    assert (alert.state, alert.details["ended_because"]) == (AlertState.RESOLVED, "the rule was disabled")
    assert told() == [("fired", "gave_up")]


def test_disabling_a_rule_sends_nothing_more_of_what_a_process_that_died_had_claimed(only_rule: Make) -> None:
    rule = only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    die(150, at=NOW)
    evaluate(now=NOW)
    Notification.objects.update(claimed_until=NOW + SECOND)

    rules.disable(rule=rule, actor=MARA, now=NOW + MINUTE)

    assert told() == [("fired", "gave_up")]


def test_without_anybody_to_tell_the_notification_says_so(only_rule: Make, settings) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    settings.ALERT_EMAILS = []
    die(150, at=NOW)

    evaluate(now=NOW)

    row = Notification.objects.get()
    assert row.state == NotificationState.GAVE_UP
    assert "ALERT_EMAILS is not set" in row.last_error


def test_a_webhook_is_one_more_way(only_rule: Make) -> None:
    only_rule(
        AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5, webhook_url="https://chat.example/hook"
    )
    die(150, at=NOW)

    evaluate(now=NOW)

    channels = {row.channel: row for row in Notification.objects.all()}
    assert channels.keys() == {"email", "webhook"}
    assert channels["webhook"].recipients == ["https://chat.example/hook"]
    assert "Dead letters grow by 150 a minute" in channels["webhook"].body["text"]


def test_one_rule_that_cannot_be_measured_keeps_no_other_from_firing(
    only_rule: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_rule(AlertKind.LETTERS_GROWING, threshold=20, window_minutes=5)
    broken = AlertRule.objects.create(name="Broken", kind=AlertKind.OUTBOX_LAG, threshold=1)

    def fails(**_: object) -> None:
        raise ValueError("no\x00thing")

    monkeypatch.setattr("jobs.alerts.measuring.outbox.overview", fails)
    die(150, at=NOW)

    evaluate(now=NOW)

    broken.refresh_from_db()
    # PostgreSQL takes no NUL.
    assert broken.trouble == "It could not be measured: ValueError: no\ufffdthing"
    assert Alert.objects.get().state == AlertState.FIRING


def test_judging_costs_the_same_number_of_queries_for_ten_queues_as_for_one(only_rule: Make) -> None:
    only_rule(AlertKind.QUEUE_DEPTH, threshold=1000)
    AlertRule.objects.exclude(key="").update(is_enabled=True)

    def queries(now: datetime) -> int:
        with CaptureQueriesContext(connection) as captured:
            evaluate(now=now)
        return len(captured)

    sample("queue-0", at=NOW, ready=5, consumers=1)
    # The first judgement also writes what is not known.
    queries(NOW)
    one = queries(NOW)
    for number in range(10):
        sample(f"queue-{number}", at=NOW + SECOND, ready=5, consumers=1)
    ten = queries(NOW + SECOND)

    assert ten == one
    assert ten < 40
