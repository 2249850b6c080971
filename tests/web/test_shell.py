"""The frame around every page: links, theme, find, health, logins that end."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import URLPattern, reverse

from console import shell
from console import urls as console_urls
from jobs.core.words import LetterState
from tests.factories import make_letter
from tests.metrics_rows import make_boot
from tests.web.people import HTMX, admin, href, operator, tags, viewer

pytestmark = pytest.mark.django_db
# Machines ask the last two, see tests/test_metrics_endpoint.py and tests/test_health.py.
OPEN = {"login", "healthz", "theme", "metrics", "readyz"}


def _address(pattern: URLPattern) -> str:
    values = {"uuid": "7c1f9a2e-0000-4000-8000-000000000001", "int": 1, "slug": "mute"}
    kinds = [
        type(each).__name__.removesuffix("Converter").lower() for each in pattern.pattern.converters.values()
    ]
    return reverse(f"console:{pattern.name}", args=[values[kind] for kind in kinds])


@pytest.mark.parametrize(
    "pattern",
    [each for each in console_urls.urlpatterns if each.name not in OPEN],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_every_address_asks_for_a_login(pattern, method):
    address = _address(pattern)

    response = getattr(Client(), method)(address)

    assert (response.status_code, response.headers.get("Location", "").split("?")[0]) == (302, "/login/")


def test_healthz_answers_anybody():
    response = Client().get("/healthz")

    assert (response.status_code, response.content) == (200, b"ok\n")


def test_a_poll_after_the_session_ended_reloads_the_page():
    response = Client().get("/", **HTMX)

    assert (response.status_code, response.headers["HX-Refresh"]) == (204, "true")


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("/", "Overview"),
        ("/dead-letters/", "Dead letters"),
        ("/groups/", "Dead letters"),
        ("/operations/", "Operations"),
        ("/outbox/", "Outbox"),
        ("/outbox/?state=held", "Outbox"),
        ("/jobs/", "Jobs"),
        ("/jobs/?q=outcome:dead", "Jobs"),
        ("/audit/", "Audit"),
    ],
)
def test_the_side_bar_marks_the_page_one_is_on(address, word):
    page = tags(viewer().get(address))

    links = [each for each in page.all("a", class_="nav-link") if each.get("aria-current") == "page"]
    names = {
        "/": "Overview",
        "/dead-letters/": "Dead letters",
        "/operations/": "Operations",
        "/outbox/": "Outbox",
        "/jobs/": "Jobs",
        "/audit/": "Audit",
    }
    assert [names[each["href"]] for each in links] == [word]


def test_the_side_bar_counts_what_is_dead_and_nothing_else():
    make_letter()
    make_letter()
    make_letter(state=LetterState.RESOLVED)

    html = viewer().get("/audit/").content.decode()

    assert re.search(r'<span class="nav-count" id="dead-count"\s*>2</span>', html)


def test_a_big_count_is_kept_for_a_moment(monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(shell, "_COUNT_CACHED_ABOVE", 0)
    make_letter()

    try:
        with django_assert_num_queries(1):
            counts = [shell.dead_count(), shell.dead_count()]
    finally:
        shell.cache.clear()

    assert counts == [1, 1]


def test_schedules_are_shown_to_those_who_may_see_them():
    client = admin()
    client.user.is_staff = True
    client.user.save()

    assert href(client.get("/"), "Schedules") == "/admin/django_celery_beat/periodictask/"
    assert client.get("/admin/django_celery_beat/periodictask/").status_code == 200
    assert "Schedules" not in tags(operator().get("/")).text


@pytest.mark.parametrize(("name", "is_filled"), [("production", True), ("staging", False)])
def test_only_production_has_the_filled_badge(settings, name, is_filled):
    settings.ENVIRONMENT_NAME = name

    page = tags(viewer().get("/"))

    assert bool(page.all("span", class_="env-production")) is is_filled
    assert name in page.text


def test_the_theme_is_kept_without_javascript():
    client = viewer()

    response = client.post("/theme/", {"theme": "dark", "next": "/audit/?actor=mara"})

    assert response.headers["Location"] == "/audit/?actor=mara"
    assert tags(client.get("/")).all("html")[0]["data-theme"] == "dark"
    client.post("/theme/", {"theme": "system"})
    assert "data-theme" not in tags(client.get("/")).all("html")[0]


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", ""])
def test_the_theme_leads_nowhere_else(target):
    response = viewer().post("/theme/", {"theme": "dark", "next": target})

    assert response.headers["Location"] == "/"


def test_a_theme_from_a_forged_cookie_is_ignored():
    client = viewer()
    client.cookies["theme"] = '"><script>'

    assert "data-theme" not in tags(client.get("/")).all("html")[0]


def test_find_goes_to_the_letter_with_this_id_its_beginning_or_its_jobs_id():
    letter = make_letter()
    client = viewer()

    found = [
        client.get("/find/", {"q": text}).headers["Location"]
        for text in (str(letter.uuid), letter.short_id, letter.task_id)
    ]

    assert found == [f"/dead-letters/{letter.uuid}/"] * 3


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("send_receipt", "/tasks/one/?name=shop.tasks.send_receipt"),
        ("shop.tasks.send_receipt", "/tasks/one/?name=shop.tasks.send_receipt"),
        ("critical", "/queues/one/?name=critical"),
        ("celery@web-1", "/workers/one/?name=celery%40web-1"),
        ("timed out", "/dead-letters/?q=timed+out"),
        ("  ", "/dead-letters/"),
    ],
)
def test_find_goes_to_the_queue_worker_or_task_of_a_name_and_searches_for_what_is_none(text, address):
    make_letter(queue="critical", task="shop.tasks.send_receipt")
    make_boot("celery@web-1")

    response = viewer().get("/find/", {"q": text})

    assert response.headers["Location"] == address


def test_find_lists_the_letters_of_tasks_that_share_a_name():
    make_letter(task="shop.tasks.send_receipt")
    make_letter(task="shop.old.send_receipt")

    response = viewer().get("/find/", {"q": "send_receipt"})

    assert response.headers["Location"] == "/dead-letters/?q=task%3Asend_receipt"


def test_no_answer_to_somebody_without_a_role_shows_a_letter():
    from tests.web.people import client_of

    make_letter(error="the secret of the house")
    client = client_of(None)

    answers = [
        client.get(address) for address in ("/", "/dead-letters/", "/groups/", "/find/?q=x", "/audit/")
    ]

    assert [answer.status_code for answer in answers] == [403] * 5
    assert all("the secret of the house" not in answer.content.decode() for answer in answers)
    assert (
        "Looking at dead letters takes the permission “view dead letters”. Ask an admin."
        in tags(answers[0]).text
    )
