"""The audit page."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine

from jobs import audit, audit_log
from jobs.audit import Actor
from jobs.models import AuditEntry
from tests.factories import NOW, make_group, make_letter, make_operation
from tests.web.people import href, tags, viewer

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _at_night():
    with time_machine.travel(NOW, tick=False):
        yield


def write(
    actor: str = "Mara",
    action: str = "replay",
    text: str = "replayed 3 letters",
    *,
    minutes: float = 1,
    **fields,
):
    return audit.record(
        actor=Actor(name=actor), action=action, text=text, now=NOW - timedelta(minutes=minutes), **fields
    )


def entries(response) -> list[str]:
    """Return the entries' ids, without the reader's own login, which is an entry as well."""
    own = set(AuditEntry.objects.filter(action="login").values_list("pk", flat=True))
    rows = [each["id"] for each in tags(response).all("tr") if each.get("id")]
    return [row for row in rows if int(row.removeprefix("entry-")) not in own]


def test_an_entry_says_who_what_when_why_and_on_what():
    operation, letter, group = make_operation(), make_letter(), make_group()
    write(why="the relay is back", operation=operation)
    write(action="reveal", letter=letter)
    write(action="mute", group=group)

    response = viewer().get("/audit/")

    text = tags(response).text
    assert "Mara replayed 3 letters the relay is back" in text
    assert "1 min ago" in text
    assert href(response, f"operation {operation.pk}") == f"/operations/{operation.pk}/"
    assert href(response, f"letter {letter.short_id}") == f"/dead-letters/{letter.uuid}/"
    assert href(response, f"group {group.pk}") == f"/groups/{group.pk}/"


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ({"actor": "Mara"}, ["mara"]),
        ({"action": "purge"}, ["ines"]),
        ({"since": "1h"}, ["mara"]),
        ({"text": "RELAY"}, ["ines"]),
        ({"text": "3 letters"}, ["mara"]),
        ({"actor": "nobody"}, []),
    ],
)
def test_the_filter_is_in_the_address(parameters, found):
    known = {
        "mara": write(),
        "ines": write("Ines", "purge", "purged 28 letters", why="the relay is gone", minutes=300),
    }

    response = viewer().get("/audit/", parameters)

    assert entries(response) == [f"entry-{known[name].pk}" for name in found]
    assert ("No entry matches" in tags(response).text) is (not found)


def test_a_time_that_cannot_be_read_is_named():
    write()

    response = viewer().get("/audit/", {"since": "yesterdy"})

    assert response.status_code == 400
    assert "“yesterdy” is not a time." in tags(response).text
    assert len(entries(response)) == 1


def test_pages_go_to_the_oldest():
    written = [write(minutes=minutes) for minutes in range(60, 0, -1)]
    client = viewer()

    first = client.get("/audit/", {"actor": "Mara"})
    second = client.get(href(first, "Older"))

    newest_first = [f"entry-{entry.pk}" for entry in reversed(written)]
    assert entries(first) == newest_first[: audit_log.PAGE_SIZE]
    assert entries(second) == newest_first[audit_log.PAGE_SIZE :]
    assert href(second, "Newest") == "/audit/?actor=Mara"


@pytest.mark.parametrize("before", ["²", "-1", "1.5", "9" * 30, "x", ""])
def test_an_address_that_names_no_entry_shows_the_newest(before):
    write()

    response = viewer().get("/audit/", {"before": before})

    assert response.status_code == 200
    assert len(entries(response)) == 1


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "a\u202eb\x1b[0m", "{{ settings.SECRET_KEY }}"]
)
def test_hostile_text_is_shown_and_does_nothing(text):
    write(text, "x", text, why=text)

    response = viewer().get("/audit/")

    assert "<script>alert" not in response.content.decode()
    assert not set(tags(response).text) & set("\u202e\x1b")
    assert text.split("\x1b")[0].replace("\u202e", r"\u202e") in tags(response).text


def test_the_number_of_queries_does_not_grow_with_the_entries(django_assert_max_num_queries):
    operation = make_operation()
    for _ in range(40):
        write(operation=operation)
    client = viewer()

    with django_assert_max_num_queries(12):
        client.get("/audit/")


def test_a_reason_of_several_lines_and_a_dotted_action_are_read_as_words():
    write(action="demo.switch", why="Asked the supplier.\r\nThey answer tomorrow.")

    text = tags(viewer().get("/audit/")).text

    assert "Asked the supplier. They answer tomorrow." in text
    assert "Demo switch" in text
