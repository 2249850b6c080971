"""Logging in and out, and what the audit keeps of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client

from console.throttle import FREE_TRIES, LONGEST_WAIT
from jobs import roles
from jobs.models import AuditEntry
from tests.factories import NOW
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


def fail(times: int, *, name: str = "mara", address: str = "10.0.0.1", url: str = "/login/"):
    client = Client(REMOTE_ADDR=address)
    return [client.post(url, {"username": name, "password": "wrong"}) for _ in range(times)][-1]


def log_in(*, name: str = "mara", address: str = "10.0.0.1", url: str = "/login/") -> int:
    return (
        Client(REMOTE_ADDR=address).post(url, {"username": name, "password": "a long password"}).status_code
    )


@pytest.mark.parametrize("url", ["/login/", "/admin/login/"])
def test_after_a_few_wrong_passwords_even_the_right_one_has_to_wait(url, time_machine):
    time_machine.move_to(NOW, tick=False)
    make_person("mara", roles.VIEWER, is_staff=True)
    fail(FREE_TRIES + 2, url=url)

    waiting = log_in(url=url)
    time_machine.move_to(NOW + LONGEST_WAIT, tick=False)
    afterwards = log_in(url=url)

    assert (waiting, afterwards) == (200, 302)


def test_who_has_to_wait_is_told_for_how_long(time_machine):
    time_machine.move_to(NOW, tick=False)
    make_person("mara", roles.VIEWER)

    response = fail(FREE_TRIES + 1)

    assert "Too many wrong passwords for this name. Wait 1 s and try again." in tags(response).text


def test_tries_during_the_wait_are_not_counted_and_do_not_fill_the_audit(time_machine):
    time_machine.move_to(NOW, tick=False)

    fail(FREE_TRIES + 40)

    assert AuditEntry.objects.filter(action="login_failed").count() == FREE_TRIES


def test_somebody_elses_guesses_do_not_make_others_wait(time_machine):
    time_machine.move_to(NOW, tick=False)
    make_person("mara", roles.VIEWER)
    make_person("ines", roles.VIEWER)
    fail(FREE_TRIES + 5)

    assert log_in(address="10.0.0.2") == 302
    assert log_in(name="ines") == 302


def test_a_login_forgets_the_wrong_passwords_before_it(time_machine):
    time_machine.move_to(NOW, tick=False)
    make_person("mara", roles.VIEWER)
    fail(FREE_TRIES - 1)
    log_in()

    fail(1)

    assert log_in() == 302


def test_many_names_from_one_address_have_to_wait_too(time_machine, monkeypatch):
    monkeypatch.setattr("console.throttle.FREE_TRIES_OF_ADDRESS", 8)
    time_machine.move_to(NOW, tick=False)
    make_person("mara", roles.VIEWER)
    for number in range(8):
        fail(1, name=f"guess-{number}")

    assert log_in() == 200
    assert log_in(address="10.0.0.2") == 302


def test_a_clock_set_back_locks_nobody_out(time_machine):
    time_machine.move_to(NOW + timedelta(hours=5), tick=False)
    make_person("mara", roles.VIEWER)
    fail(FREE_TRIES)

    time_machine.move_to(NOW, tick=False)

    assert log_in() == 302


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
