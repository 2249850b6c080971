"""The pages of alert rules: the list, one of them, the form, and what is done to a rule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine

from jobs.alerts import rules
from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState
from jobs.models import Alert, AlertRule, AuditEntry, Notification
from jobs.roles import ADMIN, OPERATOR, VIEWER
from tests.factories import NOW
from tests.web.acting import audited
from tests.web.alert_rows import (
    FIELDS,
    ONCALL,
    fields_of,
    make_alert,
    make_notification,
    make_over,
    make_rule,
    rule_address,
)
from tests.web.people import admin, client_of, href, operator, tags, viewer

pytestmark = pytest.mark.django_db

RULES = "/alerts/rules/"


@pytest.fixture(autouse=True)
def _at_night():
    AlertRule.objects.all().delete()
    with time_machine.travel(NOW, tick=False):
        yield


def page(address: str = RULES, client: Any = None) -> str:
    response = (client or viewer()).get(address)
    assert response.status_code == 200
    return tags(response).text


# The list


def test_the_list_says_how_each_rule_stands():
    make_alert(make_rule(name="fires"))
    make_alert(make_rule(name="is about to"), state=AlertState.PENDING, fired_at=None)
    make_rule(name="is quiet")
    make_rule(name="is off", is_enabled=False)
    make_rule(name="knows nothing", trouble="No queue was sampled for 3 min.")
    make_rule(name="was never judged", evaluated_at=None)
    make_rule(name="stands still", evaluated_at=NOW - timedelta(minutes=9))

    text = page()

    assert "6 rules watch, 1 fires, 3 cannot be judged now, 1 is off." in text
    assert "fires Firing Critical More than 20 a minute over 5 minutes, all queues. 3 s ago" in text
    assert "is about to Pending" in text
    assert "is quiet Quiet" in text
    assert "is off Off" in text
    assert "all queues. No queue was sampled for 3 min." in text
    assert "was never judged Unknown" in text
    assert "It was last judged 9 min ago." in text
    assert "1 rule cannot be judged now. What it watches is not known at this moment" in text


def test_a_rule_that_has_little_to_judge_is_quiet_and_says_why():
    from jobs.alerts import measuring

    rule = make_rule(AlertKind.FAILURE_RATE)
    measured = measuring.measure([rule], now=NOW)[rule.pk]
    AlertRule.objects.update(trouble=measured.trouble)

    text = page()

    assert "Quiet" in text
    assert "Too few jobs ended for a verdict: 0 of at least 50." in text
    assert "cannot be judged" not in text
    assert "It cannot be judged now." not in page(rule_address(rule), operator())


def test_the_number_of_queries_does_not_grow_with_the_rules(django_assert_max_num_queries):
    for number in range(20):
        make_alert(make_rule(name=f"rule {number}"))
    client = viewer()

    with django_assert_max_num_queries(16):
        client.get(RULES)


def test_a_console_without_rules_says_what_one_is():
    text = page(client=admin())

    assert "There is no rule Nothing is watched, and nobody will be told." in text
    assert "New rule…" in text


def test_the_rules_of_a_fresh_installation_are_there_and_can_be_opened_and_changed():
    from importlib import import_module

    defaults = import_module("jobs.migrations.0020_add_default_alert_rules").RULES
    made = [AlertRule.objects.create(**values) for values in defaults]
    client = admin()

    for rule in made:
        form = client.get(rule_address(rule, "-change"))
        assert client.get(rule_address(rule)).status_code == 200
        assert client.post(rule_address(rule, "-change"), fields_of(form)).status_code == 302
    assert [rules.snapshot(each) for each in AlertRule.objects.order_by("pk")] == [
        rules.snapshot(each) for each in made
    ]


# One rule


def test_the_page_of_a_rule_says_what_it_watches_and_who_is_told():
    rule = make_rule(webhook_url="https://hooks.slack.example/s3cret", runbook_url="https://wiki.example/x")
    make_over(rule)

    response = viewer().get(rule_address(rule))
    text = tags(response).text

    assert "Dead letters grow More than 20 a minute over 5 minutes, all queues." in text
    assert "Fires above 20 a minute Recovers at 20 a minute or less Must last fires at once" in text
    assert "E-mail oncall@shop.example as the rule says Webhook hooks.slack.example as the rule says" in text
    assert "s3cret" not in response.content.decode()
    assert href(response, "wiki.example") == "https://wiki.example/x"
    assert "Recovered 02:41 03:07 26 min 129 a minute" in text


def test_a_rule_without_recipients_says_who_is_told_instead(settings):
    rule = make_rule(recipients=[])
    client = admin()
    assert "nobody: no active administrator has an e-mail address" in page(rule_address(rule), client)

    client.user.email = "mara@shop.example"
    client.user.save()
    assert "E-mail mara@shop.example the active administrators, since neither the rule" in page(
        rule_address(rule), client
    )

    settings.ALERT_EMAILS = [ONCALL]
    assert "E-mail oncall@shop.example as ALERT_EMAILS says" in page(rule_address(rule), client)


def test_an_address_that_is_no_page_is_never_a_link():
    rule = make_rule()
    AlertRule.objects.update(runbook_url="javascript:alert(1)")

    response = viewer().get(rule_address(rule))

    assert "javascript:" not in response.content.decode()
    assert "none: a page that says what to do helps at night" in tags(response).text


def test_a_rule_that_is_gone_says_so():
    response = viewer().get(f"{RULES}999/")

    assert response.status_code == 404
    assert "There is no alert rule 999: somebody deleted it" in tags(response).text


# What is done to a rule


def test_a_rule_is_disabled_and_enabled_again():
    rule = make_rule()
    alert = make_alert(rule)
    client = admin()

    off = client.post(rule_address(rule, "-disable"), follow=True)
    assert (
        "The rule “Dead letters grow” is off. Its open alerts have ended, nobody is told." in tags(off).text
    )
    assert not AlertRule.objects.get().is_enabled
    assert Alert.objects.get(pk=alert.pk).state == AlertState.RESOLVED

    on = client.post(rule_address(rule, "-enable"), follow=True)
    assert "watches from now on" in tags(on).text
    assert AlertRule.objects.get().is_enabled


def test_what_is_done_already_is_refused_with_the_reason():
    rule = make_rule()

    response = admin().post(rule_address(rule, "-enable"))

    assert response.status_code == 409
    assert "Nothing was done. The rule “Dead letters grow” is enabled already." in tags(response).text


def test_a_delete_asks_first_and_counts_what_goes_with_it():
    rule = make_rule()
    make_notification(make_over(rule))
    client = admin()

    asked = page(rule_address(rule, "-delete"), client)
    assert "Its 1 alert and the record of 1 mail or call are deleted with it." in asked
    assert AlertRule.objects.exists()

    response = client.post(rule_address(rule, "-delete"), follow=True)
    assert "The rule “Dead letters grow” is deleted." in tags(response).text
    assert not AlertRule.objects.exists()
    assert AuditEntry.objects.filter(text__startswith="deleted the alert rule").count() == 1


def test_a_test_is_written_at_once_and_its_state_is_shown():
    rule = make_rule()
    client = operator()

    response = client.post(rule_address(rule, "-test"), follow=True)

    row = Notification.objects.get()
    assert (row.kind, row.alert, row.state) == (NotificationKind.TEST, None, NotificationState.WAITING)
    assert "A test is on its way: E-mail to oncall@shop.example." in tags(response).text
    assert "Test waits to be sent e-mail to oncall@shop.example" in tags(response).text

    Notification.objects.update(state=NotificationState.GAVE_UP, last_error="Connection refused by mail:25.")
    assert "Test not sent e-mail to oncall@shop.example Connection refused by mail:25." in page(
        rule_address(rule), client
    )


def test_a_second_test_waits_for_the_first():
    rule = make_rule()
    client = operator()
    client.post(rule_address(rule, "-test"))

    response = client.post(rule_address(rule, "-test"))

    assert response.status_code == 409
    assert "is on its way since 03:12:00 UTC" in tags(response).text
    assert Notification.objects.count() == 1


# Roles and methods

CHANGES = ("-change", "-enable", "-disable", "-delete")


@pytest.mark.parametrize("role", [VIEWER, OPERATOR])
@pytest.mark.parametrize("action", CHANGES)
def test_only_admins_change_rules(role, action):
    rule = make_rule()

    response = client_of(role).post(rule_address(rule, action), FIELDS)

    assert response.status_code == 403
    assert "takes the permission" in tags(response).text
    assert AlertRule.objects.filter(pk=rule.pk, is_enabled=True, threshold=20).exists()
    assert not audited().exclude(action="alert_rule").exists()


@pytest.mark.parametrize("role", [VIEWER, OPERATOR])
def test_only_admins_make_rules(role):
    client = client_of(role)

    assert client.get("/alerts/rules/new/").status_code == 403
    assert client.post("/alerts/rules/new/letters_growing/", FIELDS).status_code == 403
    assert not AlertRule.objects.exists()


def test_operators_test_and_viewers_do_not():
    rule = make_rule()

    assert client_of(VIEWER).post(rule_address(rule, "-test")).status_code == 403
    assert client_of(OPERATOR).post(rule_address(rule, "-test")).status_code == 302


@pytest.mark.parametrize(("role", "refused"), [(VIEWER, 5), (OPERATOR, 3), (ADMIN, 0)])
def test_refused_buttons_stay_and_say_why(role, refused):
    response = client_of(role).get(rule_address(make_rule()))

    assert len(tags(response).all("span", aria_disabled="true")) == refused


@pytest.mark.parametrize("action", ["-enable", "-disable", "-test"])
def test_a_get_does_nothing_and_leads_to_the_rule(action):
    rule = make_rule()

    response = admin().get(rule_address(rule, action), follow=True)

    assert response.redirect_chain == [(rule_address(rule), 302)]
    assert "Nothing was done: only the button on this page acts." in tags(response).text
    assert not Notification.objects.exists()
    assert AlertRule.objects.get().is_enabled
