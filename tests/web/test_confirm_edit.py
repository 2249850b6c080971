"""Edit and replay: mistakes are located, masked values keep their place, the difference is seen first."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from console.presenters.argument_changes import PLACEHOLDER
from jobs.core.words import LetterState, Reason
from jobs.models import DeadLetter, Operation, Worker
from jobs.roles import OPERATOR
from tests.factories import NOW, make_letter
from tests.web.acting import client_of, field_of, person, text_of

pytestmark = pytest.mark.django_db

LATER = NOW + timedelta(minutes=4)


@pytest.fixture(autouse=True)
def frozen():
    with time_machine.travel(LATER, tick=False):
        yield


@pytest.fixture
def client() -> Client:
    return client_of(person())


@pytest.fixture
def letter() -> DeadLetter:
    return make_letter(
        args=[1],
        kwargs={
            "order_id": 48213,
            "amount": {"value": "74.90"},
            "card_token": "tok_hunter2",
            "tags": ["a", "b"],
        },
    )


def url(letter: DeadLetter) -> str:
    return reverse("console:letter-edit", args=[letter.uuid])


def editor_of(response, name: str) -> str:
    found = re.search(
        rf'<textarea[^>]*name="{name}"[^>]*>\n(.*?)</textarea>', response.content.decode(), re.DOTALL
    )
    assert found is not None
    return html.unescape(found[1])


def check(client: Client, letter: DeadLetter, **changed: str):
    shown = client.get(url(letter))
    values = {name: editor_of(shown, name) for name in ("args", "kwargs")}
    return client.post(
        url(letter), {"frozen": field_of(shown, "frozen"), "step": "check", **values, **changed}
    )


def send(client: Client, letter: DeadLetter, checked, **changed: str):
    values = {name: editor_of(checked, name) for name in ("args", "kwargs")}
    return client.post(
        url(letter),
        {
            "frozen": field_of(checked, "frozen"),
            "checked": field_of(checked, "checked"),
            "step": "send",
            "why": "the order was wrong",
            **values,
            **changed,
        },
    )


def edited(kwargs: str) -> dict:
    operation = Operation.objects.get()
    assert operation.edited_arguments is not None
    return operation.edited_arguments[kwargs]


def test_the_editor_holds_the_arguments_with_masks_in_place(client: Client, letter: DeadLetter) -> None:
    response = client.get(url(letter))

    assert editor_of(response, "args") == "[\n  1\n]"
    assert '"value": "74.90"' in editor_of(response, "kwargs")
    assert PLACEHOLDER in editor_of(response, "kwargs")
    assert "hunter2" not in response.content.decode()
    assert "stands for a masked value. Left alone, the value itself is sent." in text_of(response)


def test_the_difference_is_shown_before_anything_is_sent(client: Client, letter: DeadLetter) -> None:
    shown = client.get(url(letter))
    kwargs = (
        editor_of(shown, "kwargs")
        .replace("48213", "48214")
        .replace('"b"', '"c"')
        .replace("order_id", "order")
    )

    response = check(client, letter, kwargs=kwargs)

    text = text_of(response)
    assert "order_id removed before 48213" in text
    assert "order added after 48214" in text
    assert 'tags[1] changed before "b" after "c"' in text
    assert "Replay 1 letter with 3 changes" in text
    assert not Operation.objects.exists()


def test_what_was_checked_is_sent_with_the_masked_value_itself(client: Client, letter: DeadLetter) -> None:
    kwargs = editor_of(client.get(url(letter)), "kwargs").replace("48213", "48214")
    checked = check(client, letter, kwargs=kwargs)

    response = send(client, letter, checked)

    operation = Operation.objects.get()
    assert response["Location"] == reverse("console:operation", args=[operation.pk])
    assert edited("kwargs")["order_id"] == 48214
    assert edited("kwargs")["card_token"] == "tok_hunter2"
    assert edited("args") == [1]
    assert (operation.selected_count, operation.why) == (1, "the order was wrong")


def test_without_a_difference_the_message_goes_as_it_is(client: Client, letter: DeadLetter) -> None:
    checked = check(client, letter)
    assert "Nothing: the message is sent as it is, byte for byte." in text_of(checked)

    send(client, letter, checked)

    assert Operation.objects.get().edited_arguments is None


def test_what_changed_after_the_check_is_shown_again(client: Client, letter: DeadLetter) -> None:
    checked = check(client, letter)

    response = send(client, letter, checked, args="[2]")

    assert response.status_code == 409
    assert "The arguments were changed after the difference was shown." in text_of(response)
    assert "args[0] changed before 1 after 2" in text_of(response)
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("kwargs", '{\n  "a": 1,\n  "b": oops\n}', 'Expecting value at line 3, column 8, in “"b": oops”.'),
        ("kwargs", "", "Cannot read kwargs as JSON: Expecting value at line 1, column 1."),
        ("kwargs", "[1]", 'it is a list, and kwargs must be an object such as {"a": 1}. Wrap it.'),
        ("args", '{"a": 1}', "it is an object, and args must be a list such as [1, 2]. Wrap it."),
        ("args", "null", "it is null, and args must be a list"),
        ("args", "[NaN]", "NaN is not JSON. Use null or a text."),
        ("args", "[" * 100_000, "it is nested too deep. Flatten it."),
        ("args", f'["{PLACEHOLDER}"]', "Cannot keep the masked value at args[0]: nothing masked was there."),
        ("args", f'["{"x" * 256_001}"]', "the limit is 256,000. Pass an id instead of the content."),
    ],
)
def test_a_mistake_is_named_and_located(
    client: Client, letter: DeadLetter, name: str, text: str, says: str
) -> None:
    response = check(client, letter, **{name: text})

    assert response.status_code == 422
    assert says in text_of(response)
    assert editor_of(response, name) == text
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ('{"order": 1}', "it has no parameter order (it has order_id, amount)."),
        ('{"amount": 1}', "order_id is missing."),
    ],
)
def test_arguments_are_checked_against_an_online_worker(client: Client, kwargs: str, says: str) -> None:
    Worker.objects.create(
        hostname="celery@1",
        seen_at=LATER,
        tasks={"shop.tasks.send_receipt": {"names": ["order_id", "amount"], "required": 1}},
    )
    letter = make_letter(kwargs={"order_id": 1})

    response = check(client, letter, kwargs=kwargs)

    assert response.status_code == 422
    assert f"The task would refuse these arguments: {says}" in text_of(response)
    assert "(order_id, amount=…)" in text_of(response)
    assert 'value="send"' not in response.content.decode()


def test_a_positional_secret_stays_masked(client: Client) -> None:
    Worker.objects.create(
        hostname="celery@1",
        seen_at=LATER,
        tasks={"shop.tasks.send_receipt": {"names": ["order_id", "token"], "required": 2}},
    )
    letter = make_letter(args=[1, "hunter2"], kwargs={})

    checked = check(client, letter, args=f'[2, "{PLACEHOLDER}"]')
    assert "hunter2" not in checked.content.decode()
    send(client, letter, checked)

    assert edited("args") == [2, "hunter2"]


def test_a_masked_value_that_was_replaced_is_told_without_either(client: Client, letter: DeadLetter) -> None:
    kwargs = editor_of(client.get(url(letter)), "kwargs").replace(PLACEHOLDER, "tok_new")

    checked = check(client, letter, kwargs=kwargs)

    assert "card_token changed before masked after masked, another value" in text_of(checked)
    send(client, letter, checked)
    assert edited("kwargs")["card_token"] == "tok_new"


def test_every_text_survives_the_editor(client: Client) -> None:
    values = {
        "a": "\u202e\ud800\x00\x7f\x85 é 中 </textarea><script>",
        "b": "\n\r\n\t",
        "c": [1.5, True, None, -0.0],
    }
    letter = make_letter(kwargs=values, arguments_text="")

    checked = check(client, letter)

    assert "Nothing: the message is sent as it is" in text_of(checked)
    assert "</textarea><script>" not in checked.content.decode()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"state": LetterState.RESOLVED}, "It is resolved: its replay ran to its end."),
        ({"state": LetterState.PURGED}, "It is purged. Restore it first."),
        (
            {"content_type": "application/x-python-serialize", "reason": Reason.UNDECODABLE},
            "Only JSON arguments can be edited; this body is application/x-python-serialize.",
        ),
        ({"unreplayable": "No copy of the message was kept."}, "No copy of the message was kept."),
        ({"body": b"{"}, "The body is not valid JSON"),
        (
            {"kwargs": {"x": "y" * 300_000}},
            "Its arguments have 300.1 KB, and the editor takes at most 256.0 KB.",
        ),
    ],
)
def test_what_cannot_be_edited_says_why(client: Client, fields: dict, says: str) -> None:
    letter = make_letter(**fields)

    for response in (client.get(url(letter)), client.post(url(letter), {"args": "[]", "kwargs": "{}"})):
        assert response.status_code == 409
        assert says in text_of(response)


def test_a_page_of_another_letter_is_refused(client: Client, letter: DeadLetter) -> None:
    other = field_of(client.get(url(make_letter())), "frozen")

    response = client.post(
        url(letter), {"frozen": other, "args": "[]", "kwargs": "{}", "step": "send", "why": "x"}
    )

    assert response.status_code == 409
    assert "it belongs to another letter. Open the letter again." in text_of(response)
    assert not Operation.objects.exists()


def test_a_reason_is_required(client: Client, letter: DeadLetter) -> None:
    response = send(client, letter, check(client, letter), why=" ")

    assert response.status_code == 422
    assert "Write why" in text_of(response)
    assert not Operation.objects.exists()


def test_a_letter_that_changed_meanwhile_is_not_sent(client: Client, letter: DeadLetter) -> None:
    checked = check(client, letter)
    DeadLetter.objects.update(state_changed_at=LATER + timedelta(seconds=1))

    response = send(client, letter, checked)

    assert response.status_code == 409
    assert "Nothing was sent." in text_of(response)
    assert not Operation.objects.exists()


def test_editing_is_refused_by_role_and_without_csrf(letter: DeadLetter) -> None:
    response = client_of(person("tomas", role=OPERATOR)).get(url(letter))

    assert response.status_code == 403
    assert "Editing arguments takes the permission “edit the arguments of dead letters”." in text_of(response)
    admin = client_of(person(), enforce_csrf_checks=True)
    assert admin.post(url(letter), {"args": "[]", "kwargs": "{}", "step": "send"}).status_code == 403
    assert not Operation.objects.exists()


NEW_KEY = "A changed argument makes a new idempotency key. The key receipt:48213 is not sent along"


def test_a_changed_argument_is_said_to_make_a_new_key(client: Client, letter: DeadLetter) -> None:
    letter.idempotency_key = "receipt:48213"
    letter.save()

    before = text_of(client.get(url(letter)))
    changed = text_of(check(client, letter, args="[2]"))
    unchanged = text_of(check(client, letter))

    assert NEW_KEY in before
    assert NEW_KEY in changed
    assert NEW_KEY not in unchanged


def test_nothing_is_said_of_keys_to_a_letter_without_one(client: Client, letter: DeadLetter) -> None:
    assert "idempotency key" not in text_of(client.get(url(letter)))
    assert "idempotency key" not in text_of(check(client, letter, args="[2]"))
