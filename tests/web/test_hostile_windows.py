"""Ranges and names that no link has: each page of the numbers answers, and says what is wrong."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from jobs import roles
from tests.web.people import client_of

pytestmark = pytest.mark.django_db

PAGES = (
    "/",
    "/queues/",
    "/queues/one/?name=q",
    "/jobs/",
    "/jobs/one/?id=x",
    "/workers/",
    "/workers/one/?name=w",
    "/tasks/one/?name=t",
    "/alerts/",
    "/alerts/history/",
    "/alerts/rules/",
    "/queues/one/waiting/?name=q",
)
RANGES = [
    {"from": "0001-01-01T00:00Z", "to": "0001-01-02T00:00Z"},
    {"from": "0001-01-01T00:00Z", "to": "0001-01-01T00:01Z"},
    {"from": "0003-01-01T00:00Z", "to": "0004-12-01T00:00Z"},
    {"from": "0001-01-01T00:00+14:00"},
    {"from": "9999-12-31T23:59Z"},
    {"to": "0001-01-01T00:00Z"},
    {"to": "9999-12-31T23:59Z"},
    {"to": "9999-12-31T23:59-14:00", "from": "9999-12-31T23:00-14:00"},
    {"from": "1969-12-31T23:59Z", "to": "1970-01-01T00:01Z"},
    {"from": "2026-02-30T00:00Z"},
    {"from": "\x00", "to": "\ud800"},
    {"from": "2026-11-12"},
    {"window": "\x00<script>"},
    {"window": "30d", "from": "", "to": ""},
    {"window": "1h" * 5_000},
]


@pytest.mark.parametrize("page", PAGES)
def test_any_range_of_time_is_answered(page):
    client = client_of(roles.ADMIN)
    for parameters in RANGES:
        for headers in ({}, {"HX-Request": "true"}):
            query = urlencode(parameters, errors="surrogatepass")
            answer = client.get(f"{page}{'&' if '?' in page else '?'}{query}", headers=headers)
            assert answer.status_code in {200, 302, 400, 404, 409}, (parameters, headers)
            assert b"<script>" not in answer.content.replace(b"<script src", b"")


NAMES = [
    "\x00",
    "a\x00b",
    "x" * 5_000,
    "\u202e",
    "<script>alert(1)</script>",
    "'\"><img src=x onerror=alert(1)>",
    "{{7*7}}{% debug %}",
    "../../etc",
    "%00",
    "\ud800",
    "a\r\nSet-Cookie: x=1",
    "*",
    "?",
    "\\",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_answered(name):
    client = client_of(roles.ADMIN)
    for page, parameter in (
        ("/queues/one/", "name"), ("/queues/one/waiting/", "name"), ("/queues/one/pause/", "name"), ("/queues/one/purge/", "name"),
        ("/workers/one/", "name"), ("/workers/one/grow/", "name"), ("/workers/revoke/", "id"), ("/tasks/one/", "name"), ("/jobs/one/", "id"),
        ("/jobs/", "q"), ("/jobs/", "after"), ("/jobs/", "before"), ("/alerts/history/", "after"), ("/alerts/history/", "page"), ("/alerts/silence/", "rule"), ("/find/", "q"), ("/queues/", "sort"), ("/workers/", "sort"),
    ):  # fmt: skip
        answer = client.get(f"{page}?{urlencode({parameter: name}, errors='surrogatepass')}")
        assert answer.status_code in {200, 302, 400, 404, 409}, page
        assert b"<script>alert" not in answer.content
        assert b"<img src=x" not in answer.content


@pytest.mark.parametrize(
    "after",
    [
        "0001-01-01T00:00:00+14:00|5",
        "9999-12-31T23:59:59-14:00|5",
        "x|y",
        "|",
        "2026-01-01T00:00:00|1",
        "2026-01-01T00:00:00Z|-1",
        "\x00|1",
    ],
)
def test_any_place_from_which_a_poll_counts_is_answered(after):
    client = client_of(roles.VIEWER)

    answer = client.get(f"/jobs/?{urlencode({'after': after})}", headers={"HX-Request": "true"})

    assert answer.status_code == 200
