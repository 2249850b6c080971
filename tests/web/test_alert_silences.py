"""The pages of silences: for how long nobody is told, why, and its end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from console.forms.alerts import LENGTHS, end_of
from jobs.models import AlertRule, Silence
from jobs.roles import VIEWER
from tests.factories import NOW
from tests.web.acting import audited, form_actions
from tests.web.alert_rows import make_rule
from tests.web.people import client_of, make_person, operator, tags, viewer

pytestmark = pytest.mark.django_db

SILENCE = "/alerts/silence/"
SILENCES = "/alerts/silences/"


@pytest.fixture(autouse=True)
def _at_night():
    AlertRule.objects.all().delete()
    with time_machine.travel(NOW, tick=False):
        yield


def page(address: str = SILENCES, client: Any = None) -> str:
    response = (client or viewer()).get(address)
    assert response.status_code == 200
    return tags(response).text


def make_silence(rule: AlertRule | None = None, **fields: Any) -> Silence:
    values = {
        "starts_at": NOW - timedelta(minutes=5),
        "ends_at": NOW + timedelta(hours=1),
        "actor": "Ines Okafor",
    }
    return Silence.objects.create(rule=rule, **(values | fields))


def chosen(response: Any, name: str) -> list[str | None]:
    if name == "length":
        return [each["value"] for each in tags(response).all("input", name="length") if "checked" in each]
    return [each["value"] for each in tags(response).all("option") if "selected" in each]


def test_the_link_of_a_mail_opens_a_page_that_asks_and_silences_nothing():
    rule = make_rule()

    response = operator().get(f"{SILENCE}?rule={rule.pk}")

    text = tags(response).text
    assert "Silence “Dead letters grow”" in text
    assert (
        "1 hour until 04:12 UTC 4 hours until 07:12 UTC Until the morning today 08:00 UTC 3 days until 15 Nov 03:12 UTC"
        in text
    )
    assert chosen(response, "rule") == [str(rule.pk)]
    assert chosen(response, "length") == ["1h"]
    assert not Silence.objects.exists()


@pytest.mark.parametrize(
    ("length", "end"),
    [
        ("1h", datetime(2026, 11, 12, 4, 12, tzinfo=UTC)),
        ("4h", datetime(2026, 11, 12, 7, 12, tzinfo=UTC)),
        ("morning", datetime(2026, 11, 12, 8, 0, tzinfo=UTC)),
        ("3d", datetime(2026, 11, 15, 3, 12, tzinfo=UTC)),
    ],
)
def test_a_rule_is_silent_for_as_long_as_was_chosen_and_that_is_audited(length, end):
    rule = make_rule()

    response = operator().post(
        SILENCE, {"rule": rule.pk, "length": length, "why": "the relay is repaired"}, follow=True
    )

    silence = Silence.objects.get()
    assert (silence.rule, silence.starts_at, silence.ends_at) == (rule, NOW, end)
    assert (silence.actor, silence.why) == ("Mara Lindqvist", "the relay is repaired")
    entry = audited().get(action="silence")
    assert (entry.text, entry.why) == (
        f"silenced the alert rule “Dead letters grow” until {end:%Y-%m-%d %H:%M} UTC",
        "the relay is repaired",
    )
    assert "“Dead letters grow” is silent until" in tags(response).text
    assert "Mara Lindqvist the relay is repaired" in tags(response).text


@pytest.mark.parametrize(
    ("at", "end", "words"),
    [
        ((6, 59), datetime(2026, 11, 12, 8, 0, tzinfo=UTC), "Until the morning today 08:00 UTC"),
        ((7, 0), datetime(2026, 11, 12, 8, 0, tzinfo=UTC), "Until the morning today 08:00 UTC"),
        ((7, 1), datetime(2026, 11, 13, 8, 0, tzinfo=UTC), "Until the morning tomorrow, 13 Nov 08:00 UTC"),
        ((7, 56), datetime(2026, 11, 13, 8, 0, tzinfo=UTC), "Until the morning tomorrow, 13 Nov 08:00 UTC"),
        ((23, 0), datetime(2026, 11, 13, 8, 0, tzinfo=UTC), "Until the morning tomorrow, 13 Nov 08:00 UTC"),
    ],
)
def test_the_morning_is_the_next_one_that_is_an_hour_away_and_the_form_says_which(at, end, words):
    now = NOW.replace(hour=at[0], minute=at[1], second=0, microsecond=0)
    make_rule()

    with time_machine.travel(now, tick=False):
        text = tags(operator().get(SILENCE)).text

    assert end_of("morning", now=now) == end
    assert words in text


def test_the_morning_is_always_an_hour_ahead_and_within_25():
    for minute in range(0, 24 * 60, 7):
        now = datetime(2026, 11, 12, tzinfo=UTC) + timedelta(minutes=minute)
        assert timedelta(hours=1) <= end_of("morning", now=now) - now < timedelta(hours=25)
    assert all(end_of(length, now=NOW) > NOW for length in LENGTHS)


def test_every_rule_is_silenced_only_when_that_is_chosen():
    make_rule()
    client = operator()

    refused = client.post(SILENCE, {"rule": "", "length": "1h"})
    assert refused.status_code == 422
    assert "Choose a rule, or every rule." in tags(refused).text
    assert not Silence.objects.exists()

    done = client.post(SILENCE, {"rule": "every", "length": "1h"}, follow=True)
    assert "All rules are silent until 04:12 UTC. Nobody is told until then." in tags(done).text
    assert Silence.objects.get().rule is None


def test_a_link_to_a_rule_that_was_deleted_chooses_none():
    rule = make_rule()

    response = operator().get(f"{SILENCE}?rule={rule.pk + 1}")

    assert "That rule was deleted. Choose another one." in tags(response).text
    assert chosen(response, "rule") == [""]


@pytest.mark.parametrize(
    ("field", "typed", "words"),
    [
        ("length", "", "Choose for how long."),
        ("length", "99y", "“99y” is no length of the list. Choose one."),
        ("rule", "999999", "There is no rule “999999” any more."),
        ("rule", "<b>", "There is no rule “<b>” any more."),
        ("why", "x" * 2_001, "The reason has 2001 characters, the limit is 2000. Shorten it."),
    ],
)
def test_what_cannot_be_is_refused_and_what_was_typed_stays(field, typed, words):
    rule = make_rule()
    sent = {"rule": rule.pk, "length": "4h", "why": "the pump leaks"} | {field: typed}

    response = operator().post(SILENCE, sent)

    assert response.status_code == 422
    assert "Nothing was silenced." in tags(response).text
    assert words in tags(response).text
    if field != "why":
        assert "the pump leaks" in response.content.decode()
    if field != "length":
        assert chosen(response, "length") == ["4h"]
    assert not Silence.objects.exists()


def test_a_session_that_ran_out_leads_back_to_the_question():
    rule = make_rule()
    make_person("mara", "Operator")
    client = Client()
    asked = f"{SILENCE}?rule={rule.pk}"

    turned_away = client.post(asked, {"rule": rule.pk, "length": "1h"})
    login = client.post(turned_away.headers["Location"], {"username": "mara", "password": "a long password"})

    assert login.headers["Location"] == asked
    assert "Silence “Dead letters grow”" in page(asked, client)
    assert not Silence.objects.exists()
    assert form_actions(client.get(asked))[-1] == asked


def test_the_list_shows_what_lasts_and_what_is_over():
    make_silence(make_rule(), why="img-2 gets more memory")
    make_silence(ends_at=NOW - timedelta(hours=1), starts_at=NOW - timedelta(hours=3))

    text = page()

    assert "1 silence lasts now." in text
    assert "Dead letters grow 03:07 04:12, in 1 h Ines" in text
    assert "Ines Okafor img-2 gets more memory" in text
    assert "Every rule 00:12 02:12, over" in text


def test_an_empty_list_says_what_a_silence_is():
    assert "Nothing is silenced While a rule is silenced its alerts fire and are seen here" in page()


def test_a_silence_ends_early_once_and_that_is_audited():
    silence = make_silence(make_rule())
    client = operator()
    end = reverse("console:alert-silence-end", args=[silence.pk])

    first = client.post(end, follow=True)
    second = client.post(end, follow=True)

    assert "The silence has ended. What fires from now on is told." in tags(first).text
    assert "This silence is over already." in tags(second).text
    assert Silence.objects.get().ends_at == NOW
    assert audited().filter(action="silence").count() == 1


def test_viewers_see_silences_and_neither_make_nor_end_them():
    silence = make_silence()
    client = client_of(VIEWER)

    assert "Every rule" in page(client=client)
    for address in (SILENCE, reverse("console:alert-silence-end", args=[silence.pk])):
        response = client.post(address, {"rule": "every", "length": "1h"})
        assert response.status_code == 403
        assert "Silencing an alert takes the permission “add silences”. Ask an admin." in tags(response).text
    assert Silence.objects.get().ends_at > NOW


def test_a_get_ends_nothing():
    silence = make_silence()

    response = operator().get(reverse("console:alert-silence-end", args=[silence.pk]), follow=True)

    assert response.redirect_chain == [(SILENCES, 302)]
    assert "Nothing was done" in tags(response).text
    assert Silence.objects.get().ends_at > NOW


def test_a_silence_whose_rule_was_deleted_is_not_found():
    assert operator().post(reverse("console:alert-silence-end", args=[999])).status_code == 404
