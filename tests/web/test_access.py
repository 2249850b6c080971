"""Every address, every method, everybody: who gets in, and that nothing changes that may not."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from jobs import models, roles
from jobs.models import DeadLetter, Operation
from tests.factories import make_item, make_letter, make_operation
from tests.web.outbox_rows import refused
from tests.web.people import client_of, make_person

pytestmark = pytest.mark.django_db

METHODS = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
# What answers without a login: the login pages, whether the process lives and can serve, the choice of colours.
# /metrics asks for a token instead, see tests/test_metrics_endpoint.py.
OPEN = {"/login/", "/admin/login/", "/healthz", "/readyz", "/metrics", "/theme/"}
TABLES = [getattr(models, name) for name in models.__all__]


def patterns(resolver: URLResolver, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in resolver.url_patterns:
        if isinstance(pattern, URLResolver):
            yield from patterns(pattern, prefix + str(pattern.pattern))
        else:
            yield prefix + str(pattern.pattern), pattern


@pytest.fixture
def letter() -> DeadLetter:
    return make_letter(died_at=timezone.now())


@pytest.fixture
def operation(letter) -> Operation:
    operation = make_operation()
    make_item(operation, letter)
    return operation


@pytest.fixture
def urls(letter, operation) -> list[str]:
    """One address of each pattern there is."""
    values = {
        "<uuid:letter_id>": str(letter.uuid),
        "<int:group_id>": str(letter.group_id),
        "<int:operation_id>": str(operation.pk),
        "<uuid:message_id>": str(refused().uuid),
        "<slug:action>": "resolve",
    }
    found = []
    for text, _ in patterns(get_resolver()):
        for name, value in values.items():
            text = text.replace(name, value)
        text = re.sub(r"\(\?P.*?\)|<[^>]*>", "1", text).replace("^", "").replace("$", "").replace("\\Z", "")
        found.append(f"/{text}")
    assert len(found) > 40
    return found


def rows() -> list[list[tuple]]:
    return [sorted(map(repr, table.objects.values_list())) for table in TABLES]


@contextlib.contextmanager
def writes() -> Iterator[list[str]]:
    """Collect the statements that write to the tables, those that leave every row as it was too."""
    names = "|".join(table._meta.db_table for table in TABLES)
    is_write = re.compile(rf'\s*(INSERT|REPLACE|UPDATE|DELETE)\b[^"]*"({names})"', re.IGNORECASE)
    found: list[str] = []

    def look(execute, sql, params, many, context):
        if is_write.match(sql):
            found.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        yield found


def test_the_writes_of_a_page_are_seen():
    with writes() as written:
        letter = make_letter(died_at=timezone.now())
        DeadLetter.objects.filter(pk=letter.pk).update(state="dead")
        letter.delete()

    assert {"INSERT", "UPDATE", "DELETE"} <= {sql.split()[0] for sql in written}


def test_without_a_login_every_address_leads_to_the_login(urls):
    client, before = Client(), rows()

    answers = {(url, method): getattr(client, method)(url) for url in urls for method in METHODS}

    wrong = {
        key: answer.status_code
        for key, answer in answers.items()
        if key[0] not in OPEN
        and not (answer.status_code == 302 and "/login/?next=" in answer.headers["Location"])
        and answer.status_code != 405
    }
    assert wrong == {}
    assert rows() == before


@pytest.mark.parametrize("role", [None, roles.VIEWER, roles.OPERATOR, roles.ADMIN])
def test_only_a_post_changes_anything(urls, role):
    client = client_of(role)
    before = rows()

    for url in urls:
        for method in METHODS:
            if method != "post":
                with writes() as written:
                    answer = getattr(client, method)(url)
                assert answer.status_code < 500, (url, method)
                assert written == [], (url, method)

    assert rows() == before


@pytest.mark.parametrize("role", [None, roles.VIEWER])
def test_a_post_of_who_may_only_look_changes_nothing(urls, role):
    client = client_of(role)
    before = rows()

    for url in urls:
        if url not in {"/logout/", "/login/", "/admin/logout/"}:
            with writes() as written:
                answer = client.post(url, {"why": "x", "text": "x", "bugs": "fixed", "rate": "5"})
            assert answer.status_code < 500, url
            assert written == [], url

    assert rows() == before


def test_somebody_without_a_role_sees_nothing(urls, letter):
    client = client_of(None)

    shown = [url for url in urls if letter.task.encode() in client.get(url).content]

    assert shown == []


def test_every_post_needs_its_token(urls):
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_person("mara", roles.ADMIN, is_staff=True))
    before = rows()

    accepted = {
        url: answer.status_code
        for url in urls
        if (answer := client.post(url)).status_code not in {403, 404, 405}
    }

    assert accepted == {}
    assert rows() == before


def test_every_answer_tells_browsers_what_not_to_do(urls):
    wanted = {
        "X-Frame-Options": "DENY",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    for client in (Client(), client_of(roles.ADMIN, login="one")):
        for url in urls:
            headers = client.get(url).headers
            assert {name: headers.get(name) for name in wanted} == wanted, url
            assert "frame-ancestors 'none'" in headers["Content-Security-Policy"], url
            assert "unsafe" not in headers["Content-Security-Policy"], url


@pytest.mark.parametrize(
    "url", ["/", "/dead-letters/", "/operations/", "/outbox/", "/audit/", "/dead-letters/{letter}/"]
)
def test_pages_with_jobs_in_them_are_kept_by_no_cache(letter, url):
    answer = client_of(roles.VIEWER).get(url.format(letter=letter.uuid))

    assert "no-store" in answer.headers.get("Cache-Control", "")


def test_the_cookies_are_for_this_site_only():
    make_person("mara", roles.VIEWER)

    answer = Client().post("/login/", {"username": "mara", "password": "a long password"})

    session = answer.cookies["sessionid"]
    assert (session["httponly"], session["samesite"]) == (True, "Lax")
    assert answer.cookies["csrftoken"]["samesite"] == "Lax"


def test_a_login_changes_the_session_that_was_there_before():
    make_person("mara", roles.VIEWER)
    client = Client()
    session = client.session
    session["planted"] = True
    session.save()
    planted = session.session_key
    client.cookies["sessionid"] = planted

    client.post("/login/", {"username": "mara", "password": "a long password"})

    assert client.cookies["sessionid"].value != planted
    assert not Client().session.exists(planted)


@pytest.mark.parametrize(
    "address",
    [
        "//evil.example", "https:evil.example", "/\\evil.example", "http:///evil.example", "\thttps://evil.example",
        "javascript:alert(1)", "https://testserver@evil.example/", "///evil.example", "https://testserver.evil.example",
    ],
)  # fmt: skip
def test_no_address_leads_to_another_site(address):
    make_person("mara", roles.VIEWER)
    client = Client()

    answers = [
        client.post("/theme/", {"theme": "dark", "next": address}),
        client.post("/login/", {"username": "mara", "password": "a long password", "next": address}),
        client.get("/login/", {"next": address}),
    ]

    assert {answer.headers["Location"] for answer in answers} == {"/"}


def test_healthz_tells_nothing_but_that_it_lives():
    answer = Client().get("/healthz")

    assert answer.content == b"ok\n"
    assert "Set-Cookie" not in answer.headers
