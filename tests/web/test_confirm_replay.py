"""The page that asks before a replay: what it shows, what it carries to the button, what it refuses."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from jobs.core.words import LetterState, Reason
from jobs.models import DeadLetter, Operation, Worker
from jobs.roles import VIEWER
from tests.factories import NOW, make_group, make_letter
from tests.web.acting import audited, client_of, field_of, person, text_of

pytestmark = pytest.mark.django_db

URL = "/dead-letters/replay/"
LATER = NOW + timedelta(minutes=4)


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(LATER, tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


@pytest.fixture
def letters() -> list[DeadLetter]:
    group = make_group()
    return [make_letter(group=group, died_at=NOW - timedelta(minutes=number)) for number in range(12)]


def confirm(client: Client, query: str, **fields: object):
    shown = client.get(f"{URL}?{query}")
    values = {
        "frozen": field_of(shown, "frozen"),
        "rate": "20",
        "stage": ["1", "10", ""],
        "stop_above_percent": "20",
        "why": "the relay is back",
    }
    return client.post(URL, values | fields)


def test_the_page_says_what_is_selected_and_sums_it_up(client: Client, letters: list[DeadLetter]) -> None:
    make_letter(group=letters[0].group, unreplayable="No copy of the message was kept.")

    text = text_of(client.get(f"{URL}?q=task:send_receipt"))

    assert (
        "All dead letters, died at any time, in any queue, of the task send_receipt, for any reason." in text
    )
    assert "13 selected − 1 cannot be replayed = 12 to replay" in text
    assert "Frozen at 03:16:00 UTC; letters that die later do not join" in text
    assert "Replay 12 letters Sends 1, then 10 and 1." in text
    assert "By task send_receipt 13 By queue critical 13 By reason Failed 13" in text
    assert "Five of them taken at random" in text


def test_checks_offer_to_leave_letters_out(client: Client, letters: list[DeadLetter]) -> None:
    Worker.objects.create(
        hostname="celery@1", seen_at=LATER, tasks={"shop.tasks.send_receipt": None}, queues=["critical"]
    )
    make_letter(task="shop.tasks.send_sms")

    body = client.get(f"{URL}?q=queue:critical").content.decode()

    assert "1 will probably die again." in body
    assert f'href="{URL}?q=queue%3Acritical%20-task%3Ashop.tasks.send_sms">Leave them out</a>' in body


def test_the_button_starts_the_operation_as_asked(letters: list[DeadLetter]) -> None:
    mara = person()

    response = confirm(client_of(mara), "q=task:send_receipt", rate="0.5", stop_above_percent="7")

    operation = Operation.objects.get()
    assert response.status_code == 302
    assert response["Location"] == reverse("console:operation", args=[operation.pk])
    assert (operation.kind, operation.selected_count, operation.why) == ("replay", 12, "the relay is back")
    assert (operation.rate_per_second, operation.stages, operation.stop_above_percent) == (
        0.5,
        [1, 10, None],
        7,
    )
    assert (operation.created_by, operation.actor) == (mara, "Mara Lindqvist")
    assert audited().get().action == "replay"


def test_ticked_letters_are_replayed_and_no_others(client: Client, letters: list[DeadLetter]) -> None:
    confirm(client, f"q=task:send_receipt&id={letters[0].uuid}&id={letters[1].uuid}")

    assert Operation.objects.get().selected_count == 2


def test_one_letter_needs_no_rate_and_no_stages(client: Client, letters: list[DeadLetter]) -> None:
    shown = client.get(f"{URL}?id={letters[0].uuid}")

    assert f"Replay letter {letters[0].short_id}" in text_of(shown)
    assert 'name="stage"' not in shown.content.decode()
    assert "Replay 1 letter" in text_of(shown)


def test_what_dies_after_the_page_was_shown_does_not_join(client: Client, letters: list[DeadLetter]) -> None:
    shown = client.get(f"{URL}?q=task:send_receipt")
    make_letter(group=letters[0].group)

    client.post(URL, {"frozen": field_of(shown, "frozen"), "stop_above_percent": "20", "why": "x"})

    assert Operation.objects.get().selected_count == 12


def test_a_count_that_changed_is_shown_again_with_both_numbers(
    client: Client, letters: list[DeadLetter]
) -> None:
    """Another operator replayed two of them in the meantime."""
    shown = client.get(f"{URL}?q=task:send_receipt")
    DeadLetter.objects.filter(pk__in=[letters[0].pk, letters[1].pk]).update(
        state=LetterState.REPLAYING, state_changed_at=LATER + timedelta(seconds=1)
    )

    response = client.post(
        URL, {"frozen": field_of(shown, "frozen"), "stop_above_percent": "20", "why": "the relay is back"}
    )

    assert response.status_code == 409
    assert "The page showed 12 letters; 10 are left to replay now. Nothing was done." in text_of(response)
    assert "Replay 10 letters" in text_of(response)
    assert "the relay is back" in text_of(response)
    assert not Operation.objects.exists()

    again = client.post(
        URL, {"frozen": field_of(response, "frozen"), "stop_above_percent": "20", "why": "the relay is back"}
    )
    assert again.status_code == 302
    assert Operation.objects.get().selected_count == 10


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"why": " "}, "Write why: it is kept in the audit log with your name."),
        ({"why": "x" * 2_001}, "The reason has 2001 characters, the limit is 2000. Shorten it."),
        ({"rate": "fast"}, "“fast” is not a rate. Write letters a second above 0 and up to 100,000"),
        ({"rate": "0"}, "“0” is not a rate."),
        ({"rate": "nan"}, "“nan” is not a rate."),
        ({"rate": "inf"}, "“inf” is not a rate."),
        ({"stage": ["1", "ten", ""]}, "“ten” is not a stage. Write a whole number of letters"),
        ({"stage": ["9" * 5_000, "", ""]}, "is not a stage."),
        ({"stage": ["0", "", ""]}, "“0” is not a stage."),
        (
            {"stop_above_percent": "101"},
            "“101” is not a share. Write a whole number of percent from 0 to 100.",
        ),
        ({"stop_above_percent": "abc"}, "“abc” is not a share."),
        ({"stop_above_percent": ""}, "Write a share from 0 to 100 %."),
        ({"target_queue": "nowhere"}, "No online worker reads the queue nowhere."),
    ],
)
def test_what_cannot_be_is_refused_in_place_and_keeps_what_was_typed(
    client: Client, letters: list[DeadLetter], fields: dict, says: str
) -> None:
    response = confirm(client, "q=task:send_receipt", **fields)

    assert response.status_code == 422
    assert says in text_of(response)
    assert not Operation.objects.exists()
    for value in fields.values():
        for typed in value if isinstance(value, list) else [value]:
            assert typed.strip()[:30] in response.content.decode()


def test_another_queue_is_one_that_a_worker_reads(client: Client, letters: list[DeadLetter]) -> None:
    Worker.objects.create(hostname="celery@1", seen_at=LATER, queues=["low", "critical"])

    confirm(client, "q=task:send_receipt", target_queue="low", keeps_task_id="on")

    operation = Operation.objects.get()
    assert (operation.target_queue, operation.keeps_task_id) == ("low", True)


def test_the_job_id_is_offered_only_where_somebody_may_wait_for_it(client: Client) -> None:
    failed = make_letter(reason=Reason.FAILED)
    expired = make_letter(reason=Reason.EXPIRED)

    assert "Keep the job id" in text_of(client.get(f"{URL}?id={failed.uuid}"))
    assert "Keep the job id" not in text_of(client.get(f"{URL}?id={expired.uuid}"))


def test_a_job_that_ran_to_its_end_is_asked_for_twice(client: Client) -> None:
    letter = make_letter(reason=Reason.RESULT_NOT_STORED)

    refused = confirm(client, f"id={letter.uuid}", rate="")
    assert refused.status_code == 422
    assert "Tick the box: without it, letters whose job ran to its end are not sent." in text_of(refused)
    assert not Operation.objects.exists()

    assert confirm(client, f"id={letter.uuid}", rate="", accepts_effects="on").status_code == 302


def test_letters_in_the_wrong_state_are_refused_and_the_button_with_them(client: Client) -> None:
    letter = make_letter(state=LetterState.RESOLVED)

    shown = client.get(f"{URL}?id={letter.uuid}")
    response = client.post(URL, {"frozen": field_of(shown, "frozen"), "stop_above_percent": "20", "why": "x"})

    assert "None of these letters can be replayed now." in text_of(shown)
    assert 'class="button button-primary button-act"' not in shown.content.decode()
    assert response.status_code == 409
    assert f"Letter {letter.short_id} is resolved." in text_of(response)
    assert not Operation.objects.exists()


def test_a_selection_of_nothing_says_that_nothing_matches(client: Client) -> None:
    text = text_of(client.get(reverse("console:replay"), {"q": "task:nobody.knows"}))

    assert "No dead letter matches the selection." in text
    assert "can be replayed now" not in text


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("q=sinc:2h", "`sinc:` is not a qualifier. Did you mean `since:`?"),
        ("", "Nothing is selected. Tick letters in the list, or search for them."),
        ("id=nonsense", "Cannot select the letter 'nonsense': that is not a letter's id."),
        ("id=00000000-0000-0000-0000-000000000007", "no such dead letter is stored"),
    ],
)
def test_a_selection_that_cannot_be_read_says_why(client: Client, query: str, says: str) -> None:
    response = client.get(f"{URL}?{query}")

    assert response.status_code == 422
    assert says in text_of(response)


@pytest.mark.parametrize("token", ["", "nonsense", "eyJhIjoxfQ:1tXYZ:abc"])
def test_a_selection_that_was_tampered_with_is_refused(client: Client, token: str) -> None:
    response = client.post(URL, {"frozen": token, "stop_above_percent": "20", "why": "x"})

    assert response.status_code == 422
    assert "its selection is missing or was changed. Select the letters again." in text_of(response)
    assert not Operation.objects.exists()


def test_a_page_older_than_a_day_is_refused(client: Client, letters: list[DeadLetter]) -> None:
    shown = client.get(f"{URL}?q=task:send_receipt")

    with time_machine.travel(LATER + timedelta(hours=25), tick=False):
        client = client_of(person("tomas"))
        response = client.post(
            URL, {"frozen": field_of(shown, "frozen"), "stop_above_percent": "20", "why": "x"}
        )

    assert response.status_code == 422
    assert "it is older than a day. Select the letters again." in text_of(response)


def test_a_role_without_the_permission_is_refused_with_the_reason(letters: list[DeadLetter]) -> None:
    client = client_of(person("ines", role=VIEWER))

    for response in (client.get(f"{URL}?q="), client.post(URL, {"why": "x"})):
        assert response.status_code == 403
        assert "Replaying takes the permission “replay dead letters”. Ask an admin." in text_of(response)
    assert not Operation.objects.exists()


def test_a_get_and_a_post_without_csrf_start_nothing(letters: list[DeadLetter]) -> None:
    client = client_of(person(), enforce_csrf_checks=True)
    shown = client.get(f"{URL}?q=task:send_receipt")

    response = client.post(URL, {"frozen": field_of(shown, "frozen"), "stop_above_percent": "20", "why": "x"})

    assert response.status_code == 403
    assert not Operation.objects.exists()
    assert not audited().exists()


def test_the_way_back_leads_to_the_list_as_it_was_searched(client: Client) -> None:
    chosen = [make_letter(), make_letter()]
    ids = "&".join(f"id={letter.uuid}" for letter in chosen)

    shown = client.get(f"{URL}?q=task:send_receipt+since:2h&{ids}")
    refused = client.post(URL, {"frozen": field_of(shown, "frozen"), "q": field_of(shown, "q"), "why": ""})

    for response in (shown, refused):
        assert "/dead-letters/?q=task%3Asend_receipt+since%3A2h" in response.content.decode()
        assert "Back to the list" in text_of(response)


def test_the_way_back_of_one_letter_leads_to_it_within_its_list(client: Client) -> None:
    letter = make_letter()

    shown = client.get(f"{URL}?id={letter.uuid}&q=task:send_receipt")

    assert f'href="/dead-letters/{letter.uuid}/?q=task%3Asend_receipt"' in shown.content.decode()
    assert f"Letter {letter.short_id}" in text_of(shown)


def test_a_rate_that_is_none_takes_no_time_either(client: Client, letters: list[DeadLetter]) -> None:
    response = confirm(client, "q=task:send_receipt", rate="-3")

    assert "“-3” is not a rate." in text_of(response)
    assert "As fast as the broker takes them" not in text_of(response)
