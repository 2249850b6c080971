"""Export: whole messages for who may see them, masked lines for who may not, always audited."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
import time_machine
from django.test import Client

from jobs import exporting
from jobs.agent import wire
from jobs.core.words import LetterState
from jobs.models import DeadLetter
from jobs.roles import OPERATOR, VIEWER
from tests.factories import NOW, make_copies, make_death, make_group, make_letter
from tests.web.acting import audited, client_of, field_of, person, text_of

pytestmark = pytest.mark.django_db

URL = "/dead-letters/export/"


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(NOW + timedelta(minutes=4), tick=False):
        yield


def lines(client: Client, query: str) -> list[dict]:
    shown = client.get(f"{URL}?{query}")
    response = client.post(URL, {"frozen": field_of(shown, "frozen")})
    assert response.status_code == 200
    assert response["Content-Type"] == "application/x-ndjson"
    assert response["Content-Disposition"] == 'attachment; filename="dead-letters-20261112-031600.jsonl"'
    return [json.loads(line) for line in b"".join(response.streaming_content).splitlines()]


def test_a_line_holds_the_message_byte_for_byte() -> None:
    letter = make_letter(kwargs={"card_token": "tok_hunter2"}, priority=6)

    (line,) = lines(client_of(person()), f"id={letter.uuid}")

    record = wire.decode(json.dumps(line["record"]))
    assert record.message is not None
    assert record.message.body == bytes(letter.message.body)
    assert record.message.headers == letter.message.headers
    assert (record.kind, record.reason, record.task_id) == ("death", letter.reason, letter.task_id)
    assert line["importable"] is True


def test_a_line_has_what_json_prints_and_the_older_deaths() -> None:
    letter = make_letter(deaths=2)
    make_death(letter, died_at=NOW - timedelta(hours=1), error="earlier")

    (line,) = lines(client_of(person()), "q=")

    wanted = "id task_id task queue reason state error_type error deaths died_at group args kwargs replayable"
    assert set(wanted.split()) <= line.keys()
    assert (line["id"], line["kwargs"]) == (str(letter.uuid), {"order_id": 48213})
    assert [death["error"] for death in line["history"]] == ["earlier"]


def test_a_role_that_may_not_reveal_gets_masked_lines_that_cannot_be_imported() -> None:
    letter = make_letter(kwargs={"order_id": 1, "card_token": "tok_hunter2"})
    client = client_of(person("tomas", role=OPERATOR))
    assert "Without the messages." in text_of(client.get(f"{URL}?id={letter.uuid}"))

    (line,) = lines(client, f"id={letter.uuid}")

    assert "hunter2" not in json.dumps(line)
    assert line["kwargs"] == {"order_id": 1, "card_token": "masked"}
    assert line["importable"] is False
    assert line["why_not"] == "Masked values are left out, so this line cannot be imported."
    assert "record" not in line


def test_an_export_is_audited_with_its_count_and_kind() -> None:
    mara = person()
    group = make_group()
    for _ in range(3):
        make_letter(group=group)

    lines(client_of(mara), f"q=group:{group.pk}")

    entry = audited().get()
    assert (entry.action, entry.user, entry.details) == ("export", mara, {"count": 3, "masked": False})
    assert entry.text.startswith("exported 3 letters whole: All dead letters")


def test_letters_in_any_state_can_be_exported() -> None:
    make_letter(state=LetterState.RESOLVED)
    make_letter(state=LetterState.PURGED)
    make_letter()

    exported = lines(client_of(person()), "q=state:resolved,purged")

    assert {line["state"] for line in exported} == {"resolved", "purged"}


def test_hostile_and_pickled_letters_are_exported_as_they_are() -> None:
    letter = make_letter(
        body=bytes(range(256)), content_type="application/x-python-serialize", headers={"x": "\ud800\x00"}
    )

    (line,) = lines(client_of(person()), f"id={letter.uuid}")

    record = wire.decode(json.dumps(line["record"]))
    assert record.message is not None
    assert record.message.body == bytes(range(256))
    assert record.message.headers == {"x": "\ud800\x00"}
    assert line["args"] is None


def test_an_export_is_streamed_in_batches(django_assert_max_num_queries) -> None:
    first = make_letter(death=False)
    make_copies(first, 999)

    with django_assert_max_num_queries(2 + 1_000 // exporting.BATCH):
        number = sum(1 for _ in exporting.lines(DeadLetter.objects.all(), is_masked=True))

    assert number == 1_000


def test_a_get_exports_nothing_and_says_what_the_file_holds() -> None:
    letter = make_letter()

    response = client_of(person()).get(f"{URL}?id={letter.uuid}")

    assert "With the whole messages, also what is masked on pages." in text_of(response)
    assert "Export 1 letter" in text_of(response)
    assert not audited().exists()


def test_an_export_is_refused_by_role_and_without_csrf() -> None:
    letter = make_letter()
    token = field_of(client_of(person()).get(f"{URL}?id={letter.uuid}"), "frozen")

    refused = client_of(person("ines", role=VIEWER)).post(URL, {"frozen": token})

    assert refused.status_code == 403
    assert "Exporting takes the permission “export dead letters”. Ask an admin." in text_of(refused)
    assert client_of(person("b"), enforce_csrf_checks=True).post(URL, {"frozen": token}).status_code == 403
    assert not audited().exists()


@pytest.mark.parametrize("query", ["q=sinc:2h", "", "id=x"])
def test_a_selection_that_cannot_be_read_says_why(query: str) -> None:
    assert client_of(person()).get(f"{URL}?{query}").status_code == 422


def test_nothing_to_export_has_no_button() -> None:
    response = client_of(person()).get(f"{URL}?q=")

    assert "No letter matches." in text_of(response)
    assert '<button class="button button-primary' not in response.content.decode()
