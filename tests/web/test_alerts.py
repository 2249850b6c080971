"""The pages of alerts: what fires, since when, who was told, and what is over."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.urls import reverse

from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState, Severity
from jobs.models import AlertRule, Lease, Silence
from tests.factories import NOW, make_group, make_letter
from tests.metrics_rows import make_rollup
from tests.web.alert_rows import SCRIPT, make_alert, make_notification, make_over, make_rule
from tests.web.people import HTMX, client_of, href, operator, tags, viewer

pytestmark = pytest.mark.django_db

ALERTS = "/alerts/"


@pytest.fixture(autouse=True)
def _at_night():
    AlertRule.objects.all().delete()
    with time_machine.travel(NOW, tick=False):
        yield


def page(address: str = ALERTS, client: Any = None) -> str:
    response = (client or viewer()).get(address)
    assert response.status_code == 200
    return tags(response).text


def of(alert: Any) -> str:
    return reverse("console:alert", args=[alert.pk])


# What fires now


def test_without_an_alert_the_page_says_that_nothing_fires_and_what_watches():
    make_rule()
    make_rule(AlertKind.QUEUE_DEPTH)

    text = page()

    assert "Nothing is firing. 2 rules watch." in text
    assert "its alert appears here and its recipients are told" in text


def test_without_a_rule_the_page_says_that_nobody_will_be_told():
    make_rule(is_enabled=False)

    assert "No rule is enabled, so nothing is watched and nobody will be told." in page()


def test_of_very_many_alerts_the_most_urgent_are_listed_and_all_are_counted():
    rule = make_rule(AlertKind.WORKER_LOST, severity=Severity.WARNING)
    for number in range(101):
        make_alert(rule, subject=f"w{number}@pay")
    for number in range(101):
        make_alert(rule, subject=f"p{number}@pay", state=AlertState.PENDING)
    urgent = make_alert(make_rule(AlertKind.QUEUE_DEPTH, severity=Severity.CRITICAL), subject="mails")

    response = viewer().get(ALERTS)

    text = tags(response).text
    assert "102 alerts are firing, the first since 02:41 UTC. 101 more are pending." in text
    assert "the 100 most urgent of 102" in text
    assert "the 100 most urgent of 101, above the limit" in text
    assert response.content.decode().count('class="alert-row') == 200
    assert of(urgent) in response.content.decode()


def test_what_fires_says_what_how_much_since_when_and_who_was_told():
    make_notification(make_alert())

    text = page()

    assert "1 alert is firing, since 02:41 UTC. 1 rule watches." in text
    assert "Firing Critical Dead letters are growing" in text
    assert "Limit 20 a minute. E-mail to oncall@shop.example sent 02:46." in text
    assert "125 a minute for 31 min since 02:41" in text


def test_several_are_sorted_by_urgency_then_by_age():
    old = make_rule(AlertKind.QUEUE_DEPTH, severity=Severity.WARNING)
    make_alert(old, subject="low", began_at=NOW - timedelta(hours=2))
    make_alert(make_rule(name="B"), began_at=NOW - timedelta(minutes=5))
    make_alert(make_rule(name="A", task="shop.tasks.pay"), began_at=NOW - timedelta(minutes=9))

    text = page()

    assert "3 alerts are firing, the first since 01:12 UTC." in text
    order = [text.index("in shop.tasks.pay"), text.index("for 5 min"), text.index("wait on low")]
    assert order == sorted(order)


def test_a_pending_alert_says_that_nobody_is_told_yet():
    rule = make_rule(AlertKind.QUEUE_DEPTH)
    make_alert(
        rule, state=AlertState.PENDING, fired_at=None, subject="critical", began_at=NOW - timedelta(minutes=1)
    )

    text = page()

    assert "Nothing is firing. 1 is pending. 1 rule watches." in text
    assert "Limit 10,000 messages. It fires at 03:16 if that lasts." in text


def test_an_alert_that_is_held_back_is_not_said_to_fire_at_a_time_that_is_over():
    rule = make_rule(AlertKind.QUEUE_DEPTH)
    make_alert(rule, state=AlertState.PENDING, fired_at=None, began_at=NOW - timedelta(minutes=6))

    text = page()

    assert "It has lasted long enough, and is told with what else begins" in text
    assert "if that lasts" not in text


def test_an_alert_that_recovers_shows_the_value_it_is_judged_by():
    rule = make_rule(AlertKind.LETTERS_GROWING, threshold=20.0)
    make_alert(rule, value=18.8, details={"shown": 26.0}, recovering_since=NOW - timedelta(minutes=1))

    text = page()

    assert "recovering" in text
    assert "19 a minute" in text
    assert "26 a minute" not in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"state": NotificationState.WAITING}, "E-mail to oncall@shop.example waits to be sent."),
        (
            {"state": NotificationState.WAITING, "last_error": "mail.shop.example refused the connection."},
            "E-mail to oncall@shop.example waits to be sent: mail.shop.example refused the connection.",
        ),
        (
            {"state": NotificationState.GAVE_UP, "last_error": "no mail server is set"},
            "E-mail to oncall@shop.example not sent: no mail server is set.",
        ),
        (
            {"state": NotificationState.SILENCED, "last_error": "Not sent: silenced until 04:00 UTC."},
            "E-mail to oncall@shop.example not sent: silenced until 04:00 UTC.",
        ),
        (
            {
                "state": NotificationState.GAVE_UP,
                "recipients": [],
                "last_error": "Nobody is to be told: the rule names nobody. Set one of them.",
            },
            "Limit 20 a minute. Nobody was told: the rule names nobody. 125",
        ),
        (
            {"recipients": ["a@x.example", "b@x.example", "c@x.example"]},
            "E-mail to a@x.example, b@x.example and 1",
        ),
    ],
)
def test_the_page_says_whether_people_were_told_and_why_not(fields, words):
    make_notification(make_alert(), **fields)

    assert words in page()


def test_of_a_webhook_only_the_host_is_shown_since_its_path_is_a_secret():
    alert = make_alert()
    make_notification(alert, channel="webhook", recipients=["https://hooks.slack.example/T0/B0/s3cret"])

    for address in (ALERTS, of(alert)):
        text = viewer_html(address)
        assert "ebhook to hooks.slack.example" in text
        assert "s3cret" not in text


def viewer_html(address: str) -> str:
    html: str = client_of("Viewer", login=f"viewer-{abs(hash(address))}").get(address).content.decode()
    return html


def test_alerts_that_were_told_together_all_say_so():
    rule = make_rule(AlertKind.QUEUE_DEPTH)
    lead = make_alert(rule, subject="critical")
    make_alert(rule, subject="low", lead=lead)
    make_notification(lead)

    assert page().count("E-mail to oncall@shop.example sent 02:46.") == 2


def test_a_silenced_alert_is_shown_with_the_end_of_its_silence():
    alert = make_alert()
    Silence.objects.create(rule=None, starts_at=NOW, ends_at=NOW + timedelta(hours=1), actor="Mara")

    assert "silenced until 04:12" in page()
    assert "Silent until 04:12" in page(of(alert), operator())


def test_the_letters_link_leads_to_exactly_the_letters_in_question():
    group = make_group()
    make_letter(group=group, task="shop.tasks.pay", died_at=NOW - timedelta(minutes=10))
    make_letter(group=group, task="shop.tasks.mail", died_at=NOW - timedelta(minutes=10))
    make_letter(group=group, task="shop.tasks.pay", died_at=NOW - timedelta(hours=3))
    alert = make_alert(details={"letters": "task:shop.tasks.pay since:2026-11-12T02:41Z"})
    client = viewer()

    link = href(client.get(ALERTS), "Letters")
    found = href(client.get(of(alert)), "Open the letters")

    assert link == found
    assert "1 letter in 1 group" in page(of(alert), client)
    assert "1 dead letter" in page(link, client)


def test_hostile_names_are_escaped_and_their_direction_marks_written_out():
    rule = make_rule(AlertKind.QUEUE_DEPTH, recipients=[])
    AlertRule.objects.update(name=f"x{SCRIPT}", runbook_url="javascript:alert(1)")
    alert = make_alert(rule, subject=SCRIPT)
    make_notification(alert, last_error=SCRIPT, state=NotificationState.GAVE_UP, recipients=[SCRIPT])
    Silence.objects.create(
        rule=rule, starts_at=NOW, ends_at=NOW + timedelta(hours=1), actor=SCRIPT, why=SCRIPT
    )
    client = operator()

    for address in (ALERTS, of(alert), f"/alerts/rules/{rule.pk}/", "/alerts/rules/", "/alerts/silences/"):
        html = client.get(address).content.decode()
        assert "<script>alert" not in html
        assert "\u202e" not in html
        assert "javascript:" not in html


def test_the_side_bar_says_how_many_fire_and_polls_keep_it():
    rule = make_rule(AlertKind.QUEUE_DEPTH)
    make_alert(rule, subject="a")
    make_alert(rule, subject="b")
    make_alert(rule, subject="c", state=AlertState.PENDING)
    client = viewer()

    assert "Alerts 2 firing Audit" in page("/audit/", client)
    answer = client.get(ALERTS, **HTMX).content.decode()
    assert 'id="firing-count" hx-swap-oob="true"' in answer
    assert "<html" not in answer


def test_with_nothing_firing_the_side_bar_is_quiet():
    make_rule()

    assert "firing" not in tags(viewer().get("/audit/")).text


def test_the_number_of_queries_does_not_grow_with_the_alerts(django_assert_max_num_queries):
    rule = make_rule(AlertKind.QUEUE_DEPTH)
    for number in range(20):
        make_notification(make_alert(rule, subject=f"q{number}"))
        make_over(rule, subject=f"r{number}")
    client = viewer()

    with django_assert_max_num_queries(20):
        client.get(ALERTS)
    with django_assert_max_num_queries(20):
        client.get("/alerts/history/")


def test_a_quiet_page_says_so_when_nobody_watches():
    rule = make_rule()
    AlertRule.objects.update(evaluated_at=NOW - timedelta(minutes=9))

    for address in (ALERTS, "/alerts/rules/", f"/alerts/rules/{rule.pk}/"):
        text = page(address, client_of("Viewer", login=f"viewer{len(address)}"))
        assert "Nobody watches. The rules were last judged 9 min ago: runops" in text
        assert "nobody is told" in text


def test_a_page_says_so_when_nobody_can_be_mailed(settings):
    make_rule(webhook_url="https://hooks.example/x")
    client = viewer()
    assert "No mail server" not in page(client=client)

    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"

    text = page(client=client)
    assert "No mail server is set. Alerts are seen here and mailed to nobody." in text
    assert "1 rule has a webhook, which is called." in text


# One alert


def test_the_life_of_an_alert_is_told_in_its_order():
    alert = make_over(make_rule(hold_seconds=60), fired_at=NOW - timedelta(minutes=30), before=4.0)
    make_notification(alert, sent_at=NOW - timedelta(minutes=29), attempts=3)
    make_notification(
        alert,
        kind=NotificationKind.RECOVERED,
        created_at=NOW - timedelta(minutes=5),
        sent_at=NOW - timedelta(minutes=4),
    )

    text = page(of(alert))

    told = [
        "Began More than 20 a minute over 5 minutes",
        "It must last for 1 min.",
        "Fired highest 129 a minute, 4 a minute before",
        "Alert sent e-mail to oncall@shop.example At the third try.",
        "Recovered after 26 min",
        "Recovery sent e-mail to oncall@shop.example",
    ]
    places = [text.index(each) for each in told]
    assert places == sorted(places)


def test_a_mail_that_waits_says_when_the_next_try_comes():
    alert = make_alert()
    make_notification(
        alert,
        state=NotificationState.WAITING,
        attempts=2,
        last_error="mail.shop.example does not answer.",
        due_at=NOW + timedelta(seconds=40),
    )

    text = page(of(alert))

    assert "Alert waits to be sent e-mail to oncall@shop.example" in text
    assert "mail.shop.example does not answer. The third try comes in 40 s." in text


def test_a_silence_is_part_of_the_life_of_its_alerts_alone():
    rule, other = make_rule(), make_rule(name="another")
    alert = make_alert(rule)
    for silenced, why in ((rule, "we repair it"), (other, "not this one"), (None, "the night")):
        Silence.objects.create(
            rule=silenced, starts_at=NOW, ends_at=NOW + timedelta(hours=1), actor="Ines Okafor", why=why
        )

    text = page(of(alert))

    assert "Silenced by Ines Okafor until 04:12 we repair it" in text
    assert "Silenced every rule by Ines Okafor until 04:12 the night" in text
    assert "not this one" not in text


def test_an_alert_that_ended_with_its_rule_says_so():
    alert = make_over(details={"ended_because": "the rule was disabled"})

    assert "Ended after 26 min: the rule was disabled" in page(of(alert))


def test_what_recovers_says_how_long_that_must_last():
    alert = make_alert(recovering_since=NOW - timedelta(minutes=1))

    assert "Recovering below the limit; it is over when that has lasted for 5 min" in page(of(alert))


def test_the_chart_shows_the_measure_with_its_limit_and_as_a_table():
    alert = make_alert()

    response = viewer().get(of(alert))

    assert "Jobs that died a minute" in tags(response).text
    assert "No worker has reported in this time." in tags(response).text


def test_a_range_of_ones_own_is_the_range_of_the_chart():
    make_rollup(at=NOW - timedelta(minutes=40), dead=77)
    make_rollup(at=NOW - timedelta(minutes=10), dead=33)
    alert, client = make_alert(), viewer()
    own = "?from=2026-11-12T02:30Z&to=2026-11-12T02:40Z"

    assert "33 a minute" in page(of(alert), client)
    narrowed = client.get(of(alert) + own)
    assert "77 a minute" in tags(narrowed).text
    assert "33 a minute" not in tags(narrowed).text
    assert href(narrowed, "whole time") == of(alert)
    assert "cannot be read" in page(of(alert) + "?from=x&to=y", client)


@pytest.mark.parametrize("query", ["?from=", "?from=&to=", "?window=6h"])
def test_without_a_range_the_chart_shows_the_time_of_the_alert(query):
    make_rollup(at=NOW - timedelta(hours=5), dead=385)
    alert = make_over(began_at=NOW - timedelta(hours=5), resolved_at=NOW - timedelta(hours=4))

    response = viewer().get(of(alert) + query)

    assert "77 a minute" in tags(response).text
    assert "whole time" not in tags(response).text


def test_the_minute_that_has_just_begun_is_not_drawn_as_an_end_of_the_deaths():
    make_rollup(at=NOW - timedelta(minutes=1), dead=120)
    make_rollup(at=NOW, dead=2)

    with time_machine.travel(NOW.replace(second=2), tick=False):
        text = page(of(make_alert()))

    assert "03:11120 a minute" in text
    assert "03:122 a minute" not in text


def test_after_reminders_of_weeks_the_recovery_is_still_told():
    alert = make_over(make_rule(), minutes=60 * 24 * 30)
    for number in range(70):
        at = NOW - timedelta(days=30) + timedelta(hours=number)
        make_notification(alert, kind=NotificationKind.REMINDER, number=number, created_at=at, sent_at=at)
    make_notification(alert, kind=NotificationKind.RECOVERED, created_at=NOW, sent_at=NOW)

    text = page(of(alert))

    assert text.count("Reminder sent") == 59
    assert text.index("Reminder sent") < text.index("Recovery sent")


@pytest.mark.parametrize("kind", list(AlertKind))
def test_every_kind_has_its_pages(kind):
    rule = make_rule(kind)
    client = operator()
    alerts = [
        make_alert(rule, subject="critical", state=AlertState.PENDING, fired_at=None),
        make_over(rule, subject="low", value=None, peak=None),
    ]

    for address in (ALERTS, "/alerts/history/", "/alerts/rules/", *(of(alert) for alert in alerts)):
        assert client.get(address).status_code == 200


@pytest.mark.parametrize(
    ("kind", "subject", "watched", "words", "address"),
    [
        (AlertKind.NO_CONSUMER, "a b&c", {}, "Open the queue", "/queues/one/?name=a+b%26c"),
        (AlertKind.QUEUE_DEPTH, "critical", {}, "Open the queue", "/queues/one/?name=critical"),
        (AlertKind.WORKER_LOST, "celery@web-1", {}, "Open the worker", "/workers/one/?name=celery%40web-1"),
        (AlertKind.LATENCY, "", {"task": "shop.pay"}, "Open the task", "/tasks/one/?name=shop.pay"),
        (AlertKind.LATENCY, "", {}, "Open the queues", "/queues/"),
        (AlertKind.RETRY_RATE, "", {"task": "shop.pay"}, "Open the attempts",
         "/jobs/?q=outcome%3Aretried+task%3Ashop.pay"),
        (AlertKind.OUTBOX_LAG, "", {}, "Open the outbox", "/outbox/"),
    ],
)  # fmt: skip
def test_the_page_leads_to_what_the_alert_is_about(kind, subject, watched, words, address):
    alert = make_alert(make_rule(kind, **watched), subject=subject)

    assert href(viewer().get(of(alert)), words) == address


def test_polling_ends_when_the_alert_is_over():
    client = viewer()

    assert client.get(of(make_alert()), **HTMX).status_code == 200
    assert client.get(of(make_over(make_rule(name="x"))), **HTMX).status_code == 286
    assert client.get(of(make_over(make_rule(name="y")))).status_code == 200


def test_an_alert_that_is_gone_says_why():
    response = viewer().get("/alerts/999/")

    assert response.status_code == 404
    assert "it ended before it fired, or its rule was deleted" in tags(response).text


# History


def test_the_history_says_how_long_and_how_high():
    make_over()
    make_alert(make_rule(name="still"))

    text = page("/alerts/history/")

    assert "Dead letters are growing Recovered Critical 02:41 03:07 26 min 129 a minute" in text
    assert "Firing Critical" not in text


def test_the_history_has_pages_that_miss_nothing():
    rule = make_rule(AlertKind.QUEUE_DEPTH)
    for number in range(60):
        make_over(rule, subject=f"queue-{number:02}")
    client = viewer()

    first = client.get("/alerts/history/")
    second = client.get("/alerts/history/" + href(first, "Older"))

    shown = tags(first).text + tags(second).text
    assert all(f"queue-{number:02}" in shown for number in range(60))
    assert "Newest" in tags(second).text


def test_an_empty_history_says_what_would_be_there():
    assert "No alert has recovered yet" in page("/alerts/history/")


def test_the_history_begins_with_what_recovered_last_whenever_it_began():
    rule = make_rule(AlertKind.QUEUE_DEPTH)
    make_over(rule, subject="long", began_at=NOW - timedelta(days=3), resolved_at=NOW - timedelta(minutes=1))
    for number in range(60):
        # Several of one moment, as a rule ends all of its own: nobody may be left out or told of twice.
        over_at = NOW - timedelta(minutes=5 + number // 20)
        make_over(rule, subject=f"queue-{number:02}", resolved_at=over_at)
    client = viewer()

    first = client.get("/alerts/history/")
    second = client.get("/alerts/history/" + href(first, "Older"))

    shown = [tags(each).text.split(" wait on ")[1:] for each in (first, second)]
    subjects = [words.split(" ")[0].removesuffix("Recovered") for each in shown for words in each]
    expected = ["long"]
    for begin in (0, 20, 40):
        expected += [f"queue-{number:02}" for number in reversed(range(begin, begin + 20))]
    assert subjects == expected


@pytest.mark.parametrize("at", ["x", "-1", "9" * 30, "²", "after.20261112T030000000000.x", "before.1.2"])
def test_a_broken_place_in_the_history_is_its_beginning(at):
    make_over()

    assert "Recovered Critical" in page(f"/alerts/history/?at={at}")


# Roles and the console's own health


def test_without_the_permission_nothing_is_seen():
    client = client_of(None)

    for address in (ALERTS, "/alerts/history/", "/alerts/rules/", "/alerts/silences/", of(make_alert())):
        assert client.get(address).status_code == 403
    assert "firing" not in tags(client.get(ALERTS)).text


def test_the_foot_of_the_side_bar_says_whether_runops_does_its_work():
    client = viewer()
    assert "runops is not running" in page(ALERTS, client)

    for duty in ("collector", "runs", "queues", "operations", "relay", "alerts", "notifications"):
        Lease.objects.create(
            duty=duty, holder="runops@a:1", renewed_at=NOW, expires_at=NOW + timedelta(days=36_500)
        )
    assert "Console is healthy" in page(ALERTS, client)

    Lease.objects.filter(duty="collector").update(trouble="BrokerUnavailable: away", trouble_since=NOW)
    assert "runops is blocked" in page(ALERTS, client)
