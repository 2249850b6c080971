"""The page of one letter: what it tells, what it hides, what it refuses and why."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from jobs import audit
from jobs.audit import Actor
from jobs.core.words import PRESUMED_LOST, GroupState, ItemState, LetterState, Reason
from jobs.metrics import lost
from jobs.models import DeadLetter, Worker
from jobs.roles import OPERATOR, VIEWER
from tests.factories import NOW, make_death, make_group, make_item, make_letter, make_operation
from tests.web.acting import audited, client_of, person, text_of

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=4)


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(LATER, tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


def url(letter: DeadLetter, name: str = "letter", query: str = "") -> str:
    return reverse(f"console:{name}", args=[letter.uuid]) + query


def page(client: Client, letter: DeadLetter, query: str = "") -> str:
    response = client.get(url(letter, query=query))
    assert response.status_code == 200
    return text_of(response)


def test_a_letter_is_told_in_words(client: Client) -> None:
    letter = make_letter(reason=Reason.RETRIES_EXHAUSTED, death=False, deaths=1)
    make_death(letter, attempt=4, started_at=NOW - timedelta(seconds=2))

    text = page(client, letter)

    assert (
        "The job failed on all 5 attempts it was allowed, the last time with ConnectionRefusedError on "
        "celery@web-1. It died at 03:12:00. It will not run again by itself."
    ) in text


def test_frames_of_the_application_are_open_and_others_are_folded(client: Client) -> None:
    body = client.get(url(make_letter())).content.decode()

    assert body.count("your code") == 2
    assert "1 frame in celery" in body
    assert "<b>/app/shop/mailer.py</b>:31 in <b>send</b>" in body


def test_the_raw_traceback_is_whole_and_plain_text(client: Client) -> None:
    letter = make_letter(
        traceback="Traceback (most recent call last):\n" + "x" * 100_000 + "\nKeyError: 'sku'"
    )

    response = client.get(url(letter, "letter-traceback"))

    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert len(response.content) > 100_000


def test_an_earlier_death_shows_its_own_traceback(client: Client) -> None:
    letter = make_letter(death=False, deaths=2)
    first = make_death(letter, died_at=NOW - timedelta(minutes=5), traceback="KeyError: 'first'")
    make_death(letter, traceback="KeyError: 'second'")

    assert "of death 2" in page(client, letter)
    assert "'second'" in page(client, letter)
    text = page(client, letter, f"?death={first.pk}")
    assert "of death 1" in text
    assert "'first'" in text
    assert "'second'" not in text


@pytest.mark.parametrize("death", ["nonsense", "-1", "9" * 30, "٣"])
def test_a_death_that_is_no_number_shows_the_newest(client: Client, death: str) -> None:
    assert "newest call last" in page(client, make_letter(), f"?death={death}")


def test_masked_values_are_not_on_the_page(client: Client) -> None:
    letter = make_letter(
        kwargs={"order_id": 48213, "card_token": "tok_hunter2", "deep": [{"Password": "hunter3"}]}
    )

    body = client.get(url(letter)).content.decode()

    assert "48213" in body
    assert body.count('class="masked"') == 2
    assert "hunter" not in body


def test_positional_arguments_are_masked_by_the_names_of_their_parameters(client: Client) -> None:
    """No key names a positional value; the worker's signature does."""
    Worker.objects.create(
        hostname="celery@pay-1",
        seen_at=NOW - timedelta(days=1),
        tasks={"shop.tasks.send_receipt": {"names": ["order_id", "card_token"], "required": 2}},
    )
    letter = make_letter(args=[48213, "hunter2"], kwargs={})

    body = client.get(url(letter)).content.decode()

    assert "order_id" in body
    assert "hunter2" not in body
    assert "names from the worker" in body


def test_headers_that_repeat_the_arguments_are_not_shown(client: Client) -> None:
    letter = make_letter(kwargs={"password": "hunter2"})
    assert "hunter2" in json.dumps(letter.message.headers)

    assert "hunter2" not in client.get(url(letter)).content.decode()


def test_reveal_shows_the_values_once_and_is_audited() -> None:
    mara = person()
    client = client_of(mara)
    letter = make_letter(kwargs={"card_token": "tok_hunter2"})

    response = client.post(url(letter, "letter-reveal"))

    assert "tok_hunter2" in response.content.decode()
    assert "no-store" in response["Cache-Control"]
    entry = audited().get()
    assert (entry.action, entry.letter, entry.user) == ("reveal", letter, mara)
    assert "tok_hunter2" not in client.get(url(letter)).content.decode()


def test_reveal_is_refused_by_role_by_get_and_without_csrf() -> None:
    letter = make_letter(kwargs={"card_token": "tok_hunter2"})
    operator = person("tomas", role=OPERATOR)
    admin = person()

    refused = client_of(operator).post(url(letter, "letter-reveal"))

    assert refused.status_code == 403
    assert (
        "Revealing masked arguments takes the permission “reveal masked arguments”. Ask an admin."
        in text_of(refused)
    )
    assert client_of(admin).get(url(letter, "letter-reveal"))["Location"] == url(letter)
    assert client_of(admin, enforce_csrf_checks=True).post(url(letter, "letter-reveal")).status_code == 403
    assert not audited().exists()
    assert "Reveal…" not in page(client_of(operator), letter)


def test_a_pickled_body_is_shown_as_bytes_and_never_loaded(client: Client) -> None:
    letter = make_letter(
        # Loading it would raise: it calls os.abort.
        body=b"\x80\x04c\x6f\x73\nabort\n)R.",
        content_type="application/x-python-serialize",
        reason=Reason.UNDECODABLE,
    )

    text = page(client, letter)

    assert "80 04 63 6f 73 0a 61 62 6f 72 74 0a 29 52 2e" in text
    assert "It is never loaded here, and a replay sends it byte for byte." in text
    assert "Only JSON arguments can be edited; this body is application/x-python-serialize." in text


def test_hostile_content_is_escaped_capped_and_made_visible(client: Client) -> None:
    evil = "<script>alert(1)</script>\u202eevil\x1b[31m" + "A" * 1_500
    letter = make_letter(
        task="shop.<b>" + "x" * 200,
        queue="<img src=x onerror=alert(1)>",
        worker="w\u202e",
        error=evil,
        error_type="Evil<b>Error",
        kwargs={"<i>": evil, "lone": "\ud800", "big": "B" * 200_000},
        arguments_text="",
        traceback="Traceback (most recent call last):\n  <script>alert(2)</script>\n" + "C" * 1_000_000,
    )

    response = client.get(url(letter))

    body = response.content.decode()
    assert response.status_code == 200
    assert "<script>alert" not in body
    assert "<img src=x" not in body
    assert "<i>" not in body
    assert "\u202e" not in body
    assert "\x1b" not in body
    assert "\\u202eevil" in body
    assert "\\ud800" in body
    assert len(body) < 250_000
    assert "characters more" in body


def test_a_json_body_nested_deeper_than_any_reader_goes_is_shown_as_bytes(client: Client) -> None:
    letter = make_letter(body=b"[" * 100_000)

    assert page(client, letter).count("It is never loaded here") == 1


def test_neighbours_of_the_search_are_linked(client: Client) -> None:
    group = make_group()
    letters = [make_letter(group=group, died_at=NOW - timedelta(minutes=minutes)) for minutes in (0, 1, 2)]

    response = client.get(url(letters[1], query=f"?q=group:{group.pk}"))

    assert "Newer 2 of 3 Older" in text_of(response)
    body = response.content.decode()
    assert f'{url(letters[0])}?q=group%3A{group.pk}"' in body
    assert f'{url(letters[2])}?q=group%3A{group.pk}"' in body


def test_a_search_that_cannot_be_read_leaves_the_neighbours_out(client: Client) -> None:
    assert "Older" not in page(client, make_letter(), "?q=sinc:2h")


def test_the_life_tells_deaths_replays_and_why(client: Client) -> None:
    letter = make_letter(death=False, deaths=2, replays=1, died_at=NOW)
    operation = make_operation(actor="Mara Lindqvist", why="Is the gateway back?", stages=[1, None])
    make_death(letter, died_at=NOW - timedelta(minutes=20), attempt=4)
    item = make_item(
        operation, letter, state=ItemState.DIED, stage=1, sent_at=NOW - timedelta(minutes=1), ended_at=NOW
    )
    make_death(letter, item=item)

    text = page(client, letter)

    assert "Replayed by Mara Lindqvist, stage 1 of 2 in operation" in text
    assert "“Is the gateway back?”" in text
    assert "Died the second time: failed" in text
    assert "Mara Lindqvist replayed it at 03:11:00. It died again at 03:12:00: failed." in text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"reason": Reason.RESULT_NOT_STORED},
            "A replay repeats its effects. The job ran to its end; only its result could not be stored.",
        ),
        (
            {"unreplayable": "No copy of the message was kept."},
            "This letter cannot be replayed as it is. No copy of the message was kept.",
        ),
        ({"reason": Reason.EXPIRED}, "The job never ran, so a replay repeats nothing."),
        (
            {"reason": Reason.TIMED_OUT},
            "A replay may repeat effects. The job was stopped in the middle, and send_receipt has no idempotency key.",
        ),
        ({}, "A replay may repeat effects. send_receipt has no idempotency key"),
        (
            {"idempotency_key": "receipt:1"},
            "The ledger knows no run of receipt:1, so a replay runs it. The key is sent unchanged.",
        ),
        (
            {"state": LetterState.PURGED, "delete_after": NOW + timedelta(days=7)},
            "It is deleted on 19 Nov, 03:12 UTC. Until then it can be restored.",
        ),
    ],
)
def test_the_deciding_note_says_what_a_replay_would_do(client: Client, fields: dict, says: str) -> None:
    assert says in page(client, make_letter(**fields))


def test_a_letter_of_a_worker_that_only_fell_silent_says_that_the_job_may_still_be_running(
    client: Client,
) -> None:
    """Nobody saw it die: a frozen one goes on with the job, and whoever replays it meanwhile does it twice."""
    Worker.objects.create(hostname="celery@pay-2", seen_at=LATER, tasks={"shop.tasks.other": None})
    letter = make_letter(
        reason=Reason.WORKER_LOST,
        error_type=PRESUMED_LOST,
        error="Its worker fell silent.",
        worker="celery@pay-1",
    )

    text = page(client, letter)

    assert "The job may still be running. Its worker fell silent, and nobody saw it die" in text
    assert "Make sure first that celery@pay-1 is gone." in text
    assert "The worker celery@pay-1 had run the job when it was last heard of at 03:12:00: Its worker" in text
    assert "The process that ran" not in text
    assert "stopped in the middle" not in text


def test_a_replayed_letter_says_to_the_end_that_its_job_may_have_run_twice(client: Client) -> None:
    error = f"{lost.ERROR}{lost.FIRST_MESSAGE} {lost.CAME_BACK} {lost.REPLAYED_BEFORE}"
    letter = make_letter(
        reason=Reason.WORKER_LOST,
        error_type=PRESUMED_LOST,
        error=error,
        state=LetterState.RESOLVED,
        replays=1,
    )

    assert (
        "so the job was not lost. It was replayed before that was known: the job may have run twice."
        in page(client, letter)
    )


def test_a_key_that_no_ledger_knows_does_not_hide_that_a_job_may_still_be_running(client: Client) -> None:
    letter = make_letter(reason=Reason.WORKER_LOST, error_type=PRESUMED_LOST, idempotency_key="receipt:1")

    assert "The job may still be running." in page(client, letter)


def test_the_note_says_when_no_online_worker_knows_the_task(client: Client) -> None:
    Worker.objects.create(hostname="celery@pay-1", seen_at=LATER, tasks={"shop.tasks.other": None})

    assert "No online worker knows shop.tasks.send_receipt." in page(client, make_letter())


def test_a_letter_that_is_being_replayed_leads_to_its_operation(client: Client) -> None:
    letter = make_letter(state=LetterState.REPLAYING)
    operation = make_operation()
    make_item(operation, letter)

    response = client.get(url(letter))

    assert f"It is being replayed in operation {operation.pk}." in text_of(response)
    assert f"It is being replayed in operation {operation.pk}. Wait for the outcome." in text_of(response)
    assert f'href="{reverse("console:replay")}?id={letter.uuid}"' not in response.content.decode()


def test_a_purged_letter_offers_restore_instead_of_replay(client: Client) -> None:
    letter = make_letter(state=LetterState.PURGED)

    body = client.get(url(letter)).content.decode()

    assert f'href="{reverse("console:restore")}?id={letter.uuid}"' in body
    assert f'href="{reverse("console:replay")}?id={letter.uuid}"' not in body


def test_a_viewer_sees_refused_buttons_with_the_reason() -> None:
    response = client_of(person("ines", role=VIEWER)).get(url(make_letter()))

    body = response.content.decode()
    assert body.count('aria-disabled="true"') >= 3
    assert "Your role does not allow replaying, editing arguments or purging. Ask an admin." in text_of(
        response
    )
    assert reverse("console:purge") not in body


def test_the_page_needs_the_permission_to_view() -> None:
    response = client_of(person("nobody", role=None)).get(url(make_letter()))

    assert response.status_code == 403
    assert "Looking at dead letters takes the permission “view dead letters”." in text_of(response)


def test_a_letter_that_is_gone_says_so(client: Client) -> None:
    response = client.get(reverse("console:letter", args=[uuid.UUID(int=7)]))

    assert response.status_code == 404
    assert "No dead letter has the id 00000000. It may have been deleted after its time" in text_of(response)


def test_callbacks_and_what_waits_for_this_job_are_named(client: Client) -> None:
    letter = make_letter(
        embed={
            "callbacks": [{"task": "shop.tasks.ship_order"}],
            "chain": [{"task": "shop.tasks.last"}, {"task": "shop.tasks.next"}],
        }
    )

    text = page(client, letter)

    assert "1 on success: ship_order; 2 more steps of its chain: next, last" in text
    assert "ship_order waits for this one next waits for this one last waits for this one" in text


@pytest.mark.parametrize(
    "embed", [{"callbacks": 7}, {"callbacks": [None, {"task": 5}]}, {"chain": {"task": []}}]
)
def test_callbacks_of_the_wrong_shape_break_nothing(client: Client, embed: dict) -> None:
    page(client, make_letter(embed=embed))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"eta": 5},
        {"eta": "yesterday"},
        {"timelimit": "x"},
        {"timelimit": ["a", True]},
        {"origin": 5},
        {"a": {"b": [None]}},
    ],
)
def test_headers_of_the_wrong_shape_break_nothing(client: Client, headers: dict) -> None:
    page(client, make_letter(headers=headers))


def test_a_note_is_kept_and_shown(client: Client) -> None:
    letter = make_letter()

    response = client.post(url(letter, "letter-note"), {"text": "EU is down\nINC-2291"})

    assert response.status_code == 302
    assert response["Location"] == f"{url(letter)}#notes"
    assert "EU is down INC-2291" in page(client, letter)


def test_an_empty_note_is_refused_with_what_to_do(client: Client) -> None:
    letter = make_letter()

    response = client.post(url(letter, "letter-note"), {"text": "  "})

    assert response.status_code == 422
    assert "it is empty. Write at least one word." in text_of(response)
    assert not audited().exists()


def test_a_note_is_refused_by_role_and_by_get() -> None:
    letter = make_letter()

    assert (
        client_of(person("ines", role=VIEWER)).post(url(letter, "letter-note"), {"text": "x"}).status_code
        == 403
    )
    assert client_of(person()).get(url(letter, "letter-note"))["Location"] == url(letter)
    assert not audited().exists()


def test_the_group_panel_tells_the_state_and_the_owner() -> None:
    mara = person()
    group = make_group(
        state=GroupState.REGRESSED,
        owner=mara,
        regressed_at=NOW,
        note="SHOP-1884",
        link="https://issues.example/1",
    )
    letter = make_letter(group=group)
    make_letter(group=group)

    text = page(client_of(mara), letter)

    assert "Regressed 2 letters with this error" in text
    assert "Mara Lindqvist" in text
    assert "SHOP-1884" in text


def test_a_letter_with_a_thousand_deaths_shows_the_first_and_the_last(client: Client) -> None:
    letter = make_letter(death=False, deaths=300)
    for number in range(300):
        make_death(
            letter,
            died_at=NOW - timedelta(minutes=300 - number),
            traceback="",
            published_at=None,
            started_at=None,
        )

    text = page(client, letter)

    assert "entries between are left out" in text
    assert "of death 300" in text or "none was recorded" in text


def test_of_a_replay_of_many_only_the_start_is_told_on_each_letter(client: Client) -> None:
    letter = make_letter()
    replay = make_operation()
    make_item(replay, letter, sent_at=NOW)
    for action, text in (("replay", "started the replay of 9 letters"), ("pause", "paused it")):
        audit.record(actor=Actor(name="Mara"), action=action, text=text, operation=replay, now=NOW)

    text = page(client, letter)

    assert f"Started the replay of 9 letters Mara, 4 min ago , in operation {replay.pk}" in text
    assert "Paused it" not in text


def test_a_job_that_never_left_the_outbox_was_published_never() -> None:
    letter = make_letter(reason=Reason.PUBLISH_FAILED, published_at=None, death=False)
    make_death(letter, reason=Reason.PUBLISH_FAILED, error="Not published in 8 tries. No queue is bound.")

    text = page(client_of(person()), letter)

    assert "Published never" in text
    assert "No queue is bound. It was given up" in text


def test_a_job_with_a_key_that_never_ran_left_nothing_half_done() -> None:
    letter = make_letter(reason=Reason.PUBLISH_FAILED, idempotency_key="receipt:7", death=False)
    make_death(letter, reason=Reason.PUBLISH_FAILED)

    text = page(client_of(person()), letter)

    assert "The job never ran, so a replay repeats nothing." in text
    assert "what a failed attempt did outside" not in text
