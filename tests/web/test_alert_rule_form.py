"""The form of an alert rule: its fields, what it refuses, and the rule in words."""

from __future__ import annotations

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from console.forms import alert_rules as rule_form
from jobs.alerts import rules
from jobs.core.alert_kinds import KINDS, Unit
from jobs.core.words import AlertKind
from jobs.models import AlertRule
from tests.factories import NOW, make_letter
from tests.web.acting import audited
from tests.web.alert_rows import FIELDS, SCRIPT, fields_of, make_rule, rule_address
from tests.web.people import HTMX, admin, href, tags

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_night():
    AlertRule.objects.all().delete()
    with time_machine.travel(NOW, tick=False):
        yield


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
    assert response.headers["Location"] == rule_address(rule)
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
        ("hold_seconds", "2 days", "2 days is not a whole number of seconds from 0 s to 1 day."),
        ("hold_seconds", "250 ms", "250 ms is not a whole number of seconds from 0 s to 1 day."),
        (
            "reminder_seconds",
            "1 min",
            "A reminder every 1 min is too often. Write 5 min or more, or 0 for none.",
        ),
        ("window_minutes", "2 days", "2880 is not a whole number from 1 to 1,440 minutes."),
        ("window_minutes", "90 s", "“90 s” is not a whole number of minutes."),
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
    sent = fields_of(client.get(rule_address(rule, "-change"))) | {"threshold": "50"}

    response = client.post(rule_address(rule, "-change"), sent, follow=True)

    rule.refresh_from_db()
    assert rule.threshold == 50
    assert audited().get(text__startswith="changed").details["changed"] == {"threshold": [20.0, 50.0]}
    assert "The rule “Dead letters grow” is kept as it is here." in tags(response).text


def test_a_change_of_a_rule_that_was_deleted_meanwhile_says_so():
    rule = make_rule()
    client = admin()
    address = rule_address(rule, "-change")
    sent = fields_of(client.get(address))
    rule.delete()

    assert client.post(address, sent).status_code == 404


@pytest.mark.parametrize(
    ("typed", "seconds", "words"),
    [
        ("15 min", 900, "15 min"),
        ("15m", 900, "15 min"),
        ("900", 900, "15 min"),
        ("1h30min", 5_400, "1 h 30 min"),
        ("90 s", 90, "1 min 30 s"),
        ("605", 605, "10 min 5 s"),
        ("250 ms", 0.25, "250 ms"),
        ("0.25", 0.25, "250 ms"),
        ("1 day", 86_400, "1 day"),
    ],
)
def test_a_limit_of_time_is_typed_as_people_write_it_and_shown_so_everywhere(typed, seconds, words):
    client = admin()
    sent = fields_of(client.get("/alerts/rules/new/latency/"))

    preview = client.post("/alerts/rules/new/latency/", sent | {"threshold": typed}, **HTMX)
    client.post("/alerts/rules/new/latency/", sent | {"threshold": typed})

    rule = AlertRule.objects.get()
    assert rule.threshold == seconds
    sentence = f"P95 of latency above {words} over 5 minutes"
    page = client.get(rule_address(rule))
    for response in (preview, client.get("/alerts/rules/"), page):
        assert sentence in tags(response).text
    assert f"Fires above{words}" in tags(page).text.replace("Fires above ", "Fires above")
    form = client.get(rule_address(rule, "-change"))
    assert fields_of(form)["threshold"] == words
    assert "A number alone is seconds." in tags(form).text
    # Saved as it is shown, nothing changes.
    client.post(rule_address(rule, "-change"), fields_of(form))
    assert not audited().filter(text__startswith="changed").exists()


@pytest.mark.parametrize("typed", ["", "soon", "15 parsecs", "-5 min", "5 %", "1,5 h", "nan"])
def test_a_limit_that_is_no_length_of_time_says_how_to_write_one(typed):
    client = admin()
    sent = fields_of(client.get("/alerts/rules/new/oldest_age/")) | {"threshold": typed}

    response = client.post("/alerts/rules/new/oldest_age/", sent)

    said = tags(response).text
    assert response.status_code == 422
    # Once as what is wrong with the one limit, in the place of its help, and once as the help of the other.
    advice = "Write for instance 15 min, 1 h 30 min, 90 s or 250 ms. A number alone is seconds."
    assert said.count(advice) == 2
    assert not typed or f"“{typed}” is no length of time. {advice}" in said
    assert not AlertRule.objects.exists()


def test_a_limit_of_time_that_recovers_above_itself_is_refused_in_its_own_units():
    client = admin()
    sent = fields_of(client.get("/alerts/rules/new/oldest_age/"))

    response = client.post(
        "/alerts/rules/new/oldest_age/", sent | {"threshold": "15 min", "recovery_threshold": "1 h"}
    )

    words = "It would recover at 1 h while it still fires above 15 min. Write at most 15 min."
    assert words in tags(response).text


@pytest.mark.parametrize("typed", ["5", "5 %", "5%", "5.0 percent", "5 per cent"])
def test_per_cent_mean_the_same_with_and_without_their_sign(typed):
    client = admin()
    sent = fields_of(client.get("/alerts/rules/new/failure_rate/"))

    client.post("/alerts/rules/new/failure_rate/", sent | {"threshold": typed, "recovery_threshold": typed})

    rule = AlertRule.objects.get()
    assert (rule.threshold, rule.recovery_threshold) == (5, 5)
    assert "More than 5 % of jobs fail" in tags(client.get("/alerts/rules/")).text


def test_per_cent_that_are_refused_are_shown_without_a_second_sign():
    client = admin()
    sent = fields_of(client.get("/alerts/rules/new/failure_rate/"))

    response = client.post(
        "/alerts/rules/new/failure_rate/", sent | {"threshold": "120 %", "recovery_threshold": "5 x"}
    )

    shown = fields_of(response)
    assert (shown["threshold"], shown["recovery_threshold"]) == ("120", "5 x")
    assert "“5 x” is not a number." in tags(response).text


def test_how_far_a_rule_looks_back_is_typed_in_minutes_or_as_a_length_of_time():
    client = admin()
    sent = fields_of(client.get("/alerts/rules/new/letters_growing/"))

    client.post("/alerts/rules/new/letters_growing/", sent | {"window_minutes": "1 h 30 min"})

    assert AlertRule.objects.get().window_minutes == 90


@given(st.integers(min_value=0, max_value=30 * 86_400))
def test_every_length_of_time_is_read_as_it_is_written(seconds):
    written = rule_form.write("hold_seconds", seconds, unit=Unit.JOBS)

    assert rule_form.read("hold_seconds", written, unit=Unit.JOBS) == seconds


@given(
    st.floats(min_value=0, max_value=1e12, allow_nan=False).map(lambda value: float(f"{value:.8g}")),
    st.sampled_from(Unit),
)
def test_every_limit_is_read_as_it_is_written(value, unit):
    assert rule_form.read("threshold", rule_form.write("threshold", value, unit=unit), unit=unit) == value
