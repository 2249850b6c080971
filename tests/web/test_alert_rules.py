"""The pages of alert rules: the list, one of them, the form, and what is done to a rule."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from console.forms import alert_rules as rule_form
from jobs.alerts import rules
from jobs.core.alert_kinds import KINDS
from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState
from jobs.models import Alert, AlertRule, AuditEntry, Notification
from jobs.roles import ADMIN, OPERATOR, VIEWER
from tests.factories import NOW, make_letter
from tests.web.acting import audited
from tests.web.alert_rows import ONCALL, SCRIPT, make_alert, make_notification, make_over, make_rule
from tests.web.people import HTMX, admin, client_of, href, operator, tags, viewer

pytestmark = pytest.mark.django_db

RULES = "/alerts/rules/"
# What the form of growing letters sends when nothing is typed.
FIELDS = {
    "name": "Dead letters grow",
    "severity": "critical",
    "task": "",
    "queue": "",
    "threshold": "20",
    "recovery_threshold": "",
    "window_minutes": "5",
    "hold_seconds": "0",
    "recovery_hold_seconds": "5 min",
    "cool_down_seconds": "10 min",
    "reminder_seconds": "4 h",
    "recipients": "",
    "webhook_url": "",
    "runbook_url": "",
}


@pytest.fixture(autouse=True)
def _at_night():
    AlertRule.objects.all().delete()
    with time_machine.travel(NOW, tick=False):
        yield


def page(address: str = RULES, client: Any = None) -> str:
    response = (client or viewer()).get(address)
    assert response.status_code == 200
    return tags(response).text


def of(rule: AlertRule, action: str = "") -> str:
    return reverse(f"console:alert-rule{action}", args=[rule.pk])


def fields_of(response: Any) -> dict[str, str]:
    """Return what a form would send unchanged."""
    found = tags(response)
    form = {
        str(each["name"]): str(each.get("value") or "") for each in found.all("input") if each.get("name")
    }
    html = response.content.decode()
    for select in found.all("select"):
        part = html.split(f'name="{select["name"]}"', 1)[1].split("</select>", 1)[0]
        (chosen,) = [each for each in part.split("<option") if " selected" in each]
        form[str(select["name"])] = chosen.split('value="', 1)[1].split('"', 1)[0]
    part = html.split('name="recipients"', 1)[1].split("</textarea>", 1)[0]
    return form | {"recipients": part.split(">", 1)[1]}


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
    assert "It cannot be judged now." not in page(of(rule), operator())


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
        form = client.get(of(rule, "-change"))
        assert client.get(of(rule)).status_code == 200
        assert client.post(of(rule, "-change"), fields_of(form)).status_code == 302
    assert [rules.snapshot(each) for each in AlertRule.objects.order_by("pk")] == [
        rules.snapshot(each) for each in made
    ]


# One rule


def test_the_page_of_a_rule_says_what_it_watches_and_who_is_told():
    rule = make_rule(webhook_url="https://hooks.slack.example/s3cret", runbook_url="https://wiki.example/x")
    make_over(rule)

    response = viewer().get(of(rule))
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
    assert "nobody: no active administrator has an e-mail address" in page(of(rule), client)

    client.user.email = "mara@shop.example"
    client.user.save()
    assert "E-mail mara@shop.example the active administrators, since neither the rule" in page(
        of(rule), client
    )

    settings.ALERT_EMAILS = [ONCALL]
    assert "E-mail oncall@shop.example as ALERT_EMAILS says" in page(of(rule), client)


def test_an_address_that_is_no_page_is_never_a_link():
    rule = make_rule()
    AlertRule.objects.update(runbook_url="javascript:alert(1)")

    response = viewer().get(of(rule))

    assert "javascript:" not in response.content.decode()
    assert "none: a page that says what to do helps at night" in tags(response).text


def test_a_rule_that_is_gone_says_so():
    response = viewer().get(f"{RULES}999/")

    assert response.status_code == 404
    assert "There is no alert rule 999: somebody deleted it" in tags(response).text


# The form


def test_a_new_rule_begins_with_what_it_shall_watch():
    response = admin().get("/alerts/rules/new/")

    for kind in KINDS.values():
        assert href(response, kind.title) == f"/alerts/rules/new/{kind.kind}/"
        assert kind.watches in tags(response).text


@pytest.mark.parametrize("kind", list(AlertKind))
def test_a_form_has_the_fields_of_its_kind_and_makes_the_usual_rule(kind):
    client = admin()
    address = f"/alerts/rules/new/{kind}/"

    form = client.get(address)
    sent = fields_of(form)
    response = client.post(address, sent)

    asked = sent.keys() & {"task", "queue", "threshold", "window_minutes", "minimum_attempts", "percentile"}
    assert asked == KINDS[kind].uses
    rule = AlertRule.objects.get()
    assert response.headers["Location"] == of(rule)
    assert rules.snapshot(rule) == rules.snapshot(rules.draft(kind))


def test_a_kind_that_is_none_says_which_there_are():
    response = admin().get("/alerts/rules/new/nonsense/")

    assert response.status_code == 404
    assert "letters_growing" in tags(response).text


def test_a_rule_is_made_as_it_was_typed_and_audited():
    client = admin()

    response = client.post(
        "/alerts/rules/new/letters_growing/",
        FIELDS
        | {
            "name": " Payments die ",
            "task": "shop.tasks.pay",
            "threshold": "1,000.5",
            "recovery_threshold": "7",
            "hold_seconds": "90 s",
            "cool_down_seconds": "1 day",
            "reminder_seconds": "0",
            "recipients": "oncall@shop.example, mara@shop.example\noncall@shop.example",
            "webhook_url": "https://hooks.example/x",
        },
        follow=True,
    )

    rule = AlertRule.objects.get()
    assert (rule.name, rule.task, rule.threshold, rule.recovery_threshold) == (
        *("Payments die", "shop.tasks.pay"),
        *(1000.5, 7),
    )
    assert (rule.hold_seconds, rule.cool_down_seconds, rule.reminder_seconds) == (90, 86_400, 0)
    assert rule.recipients == ["oncall@shop.example", "mara@shop.example"]
    entry = audited().get()
    assert entry.text.startswith("made the alert rule “Payments die”: more than 1,000")
    assert (
        "No task named “shop.tasks.pay” was seen in the last day: until one is, it cannot fire."
        in tags(response).text
    )


def test_a_task_that_is_known_is_offered_and_gives_no_warning():
    make_letter(task="shop.tasks.pay", queue="critical")
    client = admin()

    form = client.get("/alerts/rules/new/letters_growing/")
    response = client.post(
        "/alerts/rules/new/letters_growing/", FIELDS | {"task": "shop.tasks.pay"}, follow=True
    )

    assert {each["value"] for each in tags(form).all("option")} >= {"shop.tasks.pay", "critical"}
    assert "was seen in the last day" not in tags(response).text


@pytest.mark.parametrize(
    ("field", "typed", "words"),
    [
        ("name", "", "A rule needs a name"),
        ("threshold", "", "Write a number."),
        ("threshold", "many", "“many” is not a number."),
        ("threshold", "nan", "“nan” is not a number."),
        ("threshold", "inf", "“inf” is not a number."),
        ("threshold", "-1", "-1.0 is no limit. Write a number from 0 on."),
        (
            "recovery_threshold",
            "21",
            "It would recover at 21 while it still fires above 20. Write at most 20.",
        ),
        ("window_minutes", "0", "0 is not a whole number from 1 to 1,440 minutes."),
        ("window_minutes", "2.5", "“2.5” is not a whole number."),
        ("window_minutes", "²", "“²” is not a whole number."),
        (
            "hold_seconds",
            "5",
            "“5” is no length of time. Write a number with its unit: 30 s, 5 min, 4 h or 1 day.",
        ),
        ("hold_seconds", "", "Write a number with its unit"),
        ("hold_seconds", "2 days", "172800 is not a whole number from 0 to 86,400 seconds."),
        ("reminder_seconds", "1 min", "A reminder every 60 seconds is too often."),
        ("recipients", "oncall", "'oncall' is not an e-mail address."),
        ("recipients", "a@x.example\nBcc:b@x.example", "is not an e-mail address."),
        ("webhook_url", "file:///etc/passwd", "is no address of a page. Write one that begins with https://"),
        ("runbook_url", "javascript:alert(1)", "is no address of a page."),
        ("severity", "loud", "The severity 'loud' is not known."),
    ],
)
def test_what_cannot_be_is_refused_beside_its_field_and_nothing_is_lost(field, typed, words):
    typed_fields = FIELDS | {"name": "kept as typed"} | {field: typed}

    response = admin().post("/alerts/rules/new/letters_growing/", typed_fields)

    found = tags(response)
    assert response.status_code == 422
    assert "Nothing was saved." in found.text
    assert words in found.text
    if field != "name":
        assert found.all("input", name="name")[0]["value"] == "kept as typed"
    control = [
        *found.all("input", name=field),
        *found.all("textarea", name=field),
        *found.all("select", name=field),
    ]
    assert control[0]["aria-invalid"] == "true"
    assert not AlertRule.objects.exists()
    assert not audited().exists()


def test_a_hostile_field_is_shown_as_text():
    response = admin().post(
        "/alerts/rules/new/letters_growing/", FIELDS | {"threshold": SCRIPT, "queue": SCRIPT}
    )

    assert "<script>alert" not in response.content.decode()


def test_what_a_form_does_not_ask_for_is_not_set():
    client = admin()

    client.post(
        "/alerts/rules/new/beat_silent/",
        FIELDS | {"queue": "critical", "is_enabled": "", "key": "letters_growing"},
    )

    rule = AlertRule.objects.get()
    assert (rule.queue, rule.is_enabled, rule.key) == ("", True, "")


def test_the_rule_is_said_in_words_before_it_is_saved_without_javascript_too():
    client = admin()
    typed = FIELDS | {"threshold": "3", "queue": "critical"}

    answer = client.post("/alerts/rules/new/letters_growing/", typed, **HTMX)
    whole = client.post("/alerts/rules/new/letters_growing/", typed | {"step": "preview"})

    words = "More than 3 a minute over 5 minutes, queue critical."
    assert words in tags(answer).text
    assert "No queue named “critical” was seen in the last day" in tags(answer).text
    assert "<html" not in answer.content.decode()
    assert whole.status_code == 200
    assert words in tags(whole).text
    assert not AlertRule.objects.exists()


def test_a_preview_leaves_out_what_cannot_be_read_and_says_so():
    answer = admin().post("/alerts/rules/new/letters_growing/", FIELDS | {"threshold": "x"}, **HTMX)

    assert "More than 20 a minute" in tags(answer).text
    assert "1 field cannot be read yet; the sentence leaves it out." in tags(answer).text


def test_a_change_is_kept_and_audited_with_what_it_was():
    rule = make_rule()
    client = admin()
    sent = fields_of(client.get(of(rule, "-change"))) | {"threshold": "50"}

    response = client.post(of(rule, "-change"), sent, follow=True)

    rule.refresh_from_db()
    assert rule.threshold == 50
    assert audited().get(text__startswith="changed").details["changed"] == {"threshold": [20.0, 50.0]}
    assert "The rule “Dead letters grow” is kept as it is here." in tags(response).text


def test_a_change_of_a_rule_that_was_deleted_meanwhile_says_so():
    rule = make_rule()
    client = admin()
    sent = fields_of(client.get(of(rule, "-change")))
    rule.delete()

    assert client.post(f"{RULES}{rule.pk or 1}/change/", sent).status_code == 404


@given(st.integers(min_value=0, max_value=30 * 86_400))
def test_every_length_of_time_is_read_as_it_is_written(seconds):
    assert rule_form.seconds_of(rule_form.duration_text(seconds)) == seconds


@given(st.floats(min_value=0, max_value=1e12, allow_nan=False).map(lambda value: float(f"{value:.8g}")))
def test_every_limit_is_read_as_it_is_written(value):
    assert rule_form.read("threshold", rule_form.write("threshold", value)) == value


# What is done to a rule


def test_a_rule_is_disabled_and_enabled_again():
    rule = make_rule()
    alert = make_alert(rule)
    client = admin()

    off = client.post(of(rule, "-disable"), follow=True)
    assert (
        "The rule “Dead letters grow” is off. Its open alerts have ended, nobody is told." in tags(off).text
    )
    assert not AlertRule.objects.get().is_enabled
    assert Alert.objects.get(pk=alert.pk).state == AlertState.RESOLVED

    on = client.post(of(rule, "-enable"), follow=True)
    assert "watches from now on" in tags(on).text
    assert AlertRule.objects.get().is_enabled


def test_what_is_done_already_is_refused_with_the_reason():
    rule = make_rule()

    response = admin().post(of(rule, "-enable"))

    assert response.status_code == 409
    assert "Nothing was done. The rule “Dead letters grow” is enabled already." in tags(response).text


def test_a_delete_asks_first_and_counts_what_goes_with_it():
    rule = make_rule()
    make_notification(make_over(rule))
    client = admin()

    asked = page(of(rule, "-delete"), client)
    assert "Its 1 alert and the record of 1 mail or call are deleted with it." in asked
    assert AlertRule.objects.exists()

    response = client.post(of(rule, "-delete"), follow=True)
    assert "The rule “Dead letters grow” is deleted." in tags(response).text
    assert not AlertRule.objects.exists()
    assert AuditEntry.objects.filter(text__startswith="deleted the alert rule").count() == 1


def test_a_test_is_written_at_once_and_its_state_is_shown():
    rule = make_rule()
    client = operator()

    response = client.post(of(rule, "-test"), follow=True)

    row = Notification.objects.get()
    assert (row.kind, row.alert, row.state) == (NotificationKind.TEST, None, NotificationState.WAITING)
    assert "A test is on its way: E-mail to oncall@shop.example." in tags(response).text
    assert "Test waits to be sent e-mail to oncall@shop.example" in tags(response).text

    Notification.objects.update(state=NotificationState.GAVE_UP, last_error="Connection refused by mail:25.")
    assert "Test not sent e-mail to oncall@shop.example Connection refused by mail:25." in page(
        of(rule), client
    )


def test_a_second_test_waits_for_the_first():
    rule = make_rule()
    client = operator()
    client.post(of(rule, "-test"))

    response = client.post(of(rule, "-test"))

    assert response.status_code == 409
    assert "is on its way since 03:12:00 UTC" in tags(response).text
    assert Notification.objects.count() == 1


# Roles and methods

CHANGES = ("-change", "-enable", "-disable", "-delete")


@pytest.mark.parametrize("role", [VIEWER, OPERATOR])
@pytest.mark.parametrize("action", CHANGES)
def test_only_admins_change_rules(role, action):
    rule = make_rule()

    response = client_of(role).post(of(rule, action), FIELDS)

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

    assert client_of(VIEWER).post(of(rule, "-test")).status_code == 403
    assert client_of(OPERATOR).post(of(rule, "-test")).status_code == 302


@pytest.mark.parametrize(("role", "refused"), [(VIEWER, 5), (OPERATOR, 3), (ADMIN, 0)])
def test_refused_buttons_stay_and_say_why(role, refused):
    response = client_of(role).get(of(make_rule()))

    assert len(tags(response).all("span", aria_disabled="true")) == refused


@pytest.mark.parametrize("action", ["-enable", "-disable", "-test"])
def test_a_get_does_nothing_and_leads_to_the_rule(action):
    rule = make_rule()

    response = admin().get(of(rule, action), follow=True)

    assert response.redirect_chain == [(of(rule), 302)]
    assert "Nothing was done: only the button on this page acts." in tags(response).text
    assert not Notification.objects.exists()
    assert AlertRule.objects.get().is_enabled
