"""Logging in and out, and what the audit keeps of it."""

from __future__ import annotations

import pytest
from django.test import Client

from jobs import roles
from jobs.models import AuditEntry
from tests.web.people import make_person, tags, viewer

pytestmark = pytest.mark.django_db


def _log_in(**values: str):
    make_person("mara", roles.VIEWER, first_name="Mara", last_name="Lindqvist")
    client = Client()
    return client, client.post("/login/", {"username": "mara", "password": "a long password", **values})


def test_the_login_has_the_consoles_own_page():
    page = tags(Client().get("/login/?next=/audit/"))

    assert page.all("input", name="next")[0]["value"] == "/audit/"
    assert {each["autocomplete"] for each in page.all("input", class_="input")} == {
        "username",
        "current-password",
    }
    assert "Django" not in page.text


def test_a_login_leads_to_where_one_wanted_to_go():
    _, response = _log_in(next="/audit/?actor=Mara")

    assert (response.status_code, response.headers["Location"]) == (302, "/audit/?actor=Mara")


def test_a_login_leads_nowhere_else():
    _, response = _log_in(next="https://evil.example/")

    assert response.headers["Location"] == "/"


def test_a_wrong_password_is_refused_with_a_sentence_and_audited():
    _, response = _log_in(password="wrong")

    assert "This name and password do not belong together." in tags(response).text
    assert list(AuditEntry.objects.values_list("action", "actor", "text")) == [
        ("login_failed", "somebody unknown", "tried to log in as mara and was refused")
    ]
    assert "wrong" not in str(list(AuditEntry.objects.values()))


def test_a_hostile_name_is_cut_and_cleaned_in_the_audit():
    Client().post("/login/", {"username": "a\x1b[31m" + "b" * 140, "password": "x"})

    entry = AuditEntry.objects.get()
    assert len(entry.text) < 200
    assert "\x1b" not in entry.text


def test_logins_and_logouts_are_audited():
    client, _ = _log_in()

    client.post("/logout/")

    assert list(AuditEntry.objects.order_by("id").values_list("actor", "action")) == [
        ("Mara Lindqvist", "login"),
        ("Mara Lindqvist", "logout"),
    ]


def test_get_does_not_log_out():
    client = viewer()

    response = client.get("/logout/")

    assert response.status_code == 405
    assert client.get("/").status_code == 200


def test_a_change_without_its_token_is_refused():
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_person("mara", roles.VIEWER))

    assert client.post("/theme/", {"theme": "dark"}).status_code == 403
    assert client.post("/logout/").status_code == 403


def test_a_session_that_ends_before_a_button_is_pressed_leads_back_to_its_page():
    client = Client()
    page = "/dead-letters/replay/?q=task:send_receipt"

    response = client.post(
        "/dead-letters/replay/", {"why": "x"}, headers={"Referer": f"http://testserver{page}"}
    )

    assert response.headers["Location"] == "/login/?next=/dead-letters/replay/%3Fq%3Dtask%3Asend_receipt"
    make_person("mara", roles.OPERATOR)
    after = client.post(
        response.headers["Location"], {"username": "mara", "password": "a long password", "next": page}
    )
    assert after.headers["Location"] == page
    shown = client.get("/dead-letters/")
    assert "The session had ended before that, so nothing was done." in tags(shown).text


def test_a_session_that_ends_leads_to_no_other_site():
    response = Client().post(
        "/dead-letters/replay/", {"why": "x"}, headers={"Referer": "https://evil.example/x"}
    )

    assert response.headers["Location"] == "/login/?next=/dead-letters/replay/"
