"""Which pages read the messages of letters, and how often they ask for them."""

from __future__ import annotations

from io import StringIO

import pytest
import time_machine
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.core.words import LetterState
from jobs.models import LetterMessage
from tests.factories import NOW, make_group, make_letter
from tests.web.people import admin

pytestmark = pytest.mark.django_db
TABLE = LetterMessage._meta.db_table


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def asked(captured: CaptureQueriesContext) -> list[str]:
    return [query["sql"] for query in captured if TABLE in query["sql"]]


@pytest.mark.parametrize(
    "page",
    [
        "/",
        "/dead-letters/",
        "/dead-letters/?q=args.order_id:48213",
        "/dead-letters/?q=Connection refused",
        "/groups/",
        "/audit/",
        "/dead-letters/purge/?q=",
    ],
)
def test_lists_and_counts_never_read_a_message(page: str) -> None:
    make_letter()
    make_letter(state=LetterState.RESOLVED)
    client = admin()

    with CaptureQueriesContext(connection) as captured:
        response = client.get(page)

    assert response.status_code == 200
    assert asked(captured) == []


def test_a_letters_page_reads_its_message_with_the_letter() -> None:
    first, _, _ = (make_letter(root_id="the same root") for _ in range(3))
    client = admin()

    with CaptureQueriesContext(connection) as captured:
        response = client.get(f"/dead-letters/{first.uuid}/")

    assert response.status_code == 200
    (only,) = asked(captured)
    assert "jobs_failuregroup" in only


def test_a_list_as_json_reads_all_messages_with_one_query() -> None:
    group = make_group()
    for _ in range(5):
        make_letter(group=group)
    written = StringIO()

    with CaptureQueriesContext(connection) as captured:
        call_command("dead_letters", "list", "--json", stdout=written)

    assert len(written.getvalue().splitlines()) == 5
    assert len(asked(captured)) == 1
