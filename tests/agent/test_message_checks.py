"""Reading messages, alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message

from jobs.agent import messages

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def message(body: Any = b"[[], {}, {}]", **values: Any) -> Message:
    values.setdefault("content_type", "application/json")
    values.setdefault("content_encoding", "utf-8")
    return Message(body=body, **values)


@given(
    headers=st.dictionaries(st.sampled_from(["task", "id", "retries", "timelimit", "stamps", "shadow"]), JSON)
)
def test_no_header_whatever_breaks_a_check(headers: dict[str, Any]) -> None:
    problem = messages.header_problem(message(headers=headers))
    messages.option_problem(headers)

    if not problem and "task" in headers:
        assert isinstance(headers["task"], str)
        assert isinstance(headers["id"], str)


@given(payload=JSON)
def test_a_body_that_passes_can_be_unpacked(payload: Any) -> None:
    made = message()
    made._decoded_cache = payload or "empty"

    if messages.body_problem(made) == "" and isinstance(payload, list):
        args, kwargs, embed = payload
        assert isinstance(args, list)
        assert isinstance(kwargs, dict)
        assert embed is None or isinstance(embed, dict)


def test_a_problem_never_tells_the_value() -> None:
    made = message(b'["secret", {}, {}]')

    assert messages.body_problem(made) == "the positional arguments are a str, they must be a list"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ("ä\ud800", b"\xc3\xa4\xed\xa0\x80"),
        (None, b""),
        ({"a": 1}, b"{'a': 1}"),
    ],
)
def test_a_body_of_any_kind_becomes_bytes(body: Any, expected: bytes) -> None:
    assert messages.raw_body(message(body)) == expected


def test_a_stamp_goes_before_everything_else() -> None:
    stamped = message(headers={"jobs-publication": "abc"}, delivery_tag="tag")

    assert messages.publication_id(stamped, task_id="id", boot_id="boot") == "abc"


def test_without_a_stamp_the_tag_decides() -> None:
    on_redis = message(delivery_tag="tag")
    on_amqp = message(delivery_tag=7)

    assert messages.publication_id(on_redis, task_id="a", boot_id="b") == "id:a:tag"
    assert messages.publication_id(on_redis, task_id="a", boot_id="c") == "id:a:tag"
    assert messages.publication_id(on_amqp, task_id="a", boot_id="b" * 32) == f"id:a:{'b' * 12}-7"
    assert messages.publication_id(on_redis, task_id="", boot_id="b").startswith("body:")
    assert messages.publication_id(on_redis, task_id="", boot_id="b") != messages.publication_id(
        message(b"other", delivery_tag="tag"), task_id="", boot_id="b"
    )


@pytest.mark.parametrize(
    ("value", "expected"), [(1.5, 1.5), (2, 2.0), (True, None), ("3", None), (None, None), ([], None)]
)
def test_when_it_was_published(value: Any, expected: float | None) -> None:
    assert messages.published_at({"jobs-published-at": value}) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, ("", None)),
        ({"jobs-replay-of": ""}, ("", None)),
        ({"jobs-replay-of": 5}, ("", None)),
        ({"jobs-replay-of": "a"}, ("a", None)),
        ({"jobs-replay-of": "a", "jobs-replay-item": 4}, ("a", 4)),
        ({"jobs-replay-of": "a", "jobs-replay-item": "4"}, ("a", 4)),
        ({"jobs-replay-of": "a", "jobs-replay-item": "9" * 30}, ("a", None)),
        ({"jobs-replay-of": "a", "jobs-replay-item": True}, ("a", None)),
        ({"jobs-replay-of": "a", "jobs-replay-item": 1.5}, ("a", None)),
    ],
)
def test_whose_replay_it_is(headers: dict[str, Any], expected: tuple[str, int | None]) -> None:
    assert messages.replay_of(headers) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [("2:me", 2), ("2:other", 0), ("x:me", 0), ("2", 0), (2, 0), (None, 0)]
)
def test_comebacks_count_for_their_publication_only(value: Any, expected: int) -> None:
    assert messages.counted_comebacks({"jobs-deliveries": value}, "me") == expected


def test_the_wire_form_of_a_message_with_nothing_in_it() -> None:
    bare = Message(body=None)
    bare.delivery_info = bare.properties = bare.headers = None

    wired = messages.to_wire(bare, "queue")

    assert (wired.body, wired.headers, wired.properties, wired.exchange, wired.queue) == (
        b"",
        {},
        {},
        "",
        "queue",
    )
    assert messages.is_redelivered(bare) is False
    assert (wired.content_type, wired.content_encoding) == (None, None)


@pytest.mark.parametrize(
    ("body", "headers", "says"),
    [
        (b"[]", {"task": "t", "id": "i"}, ""),
        (b"[]", {"task": "t"}, "'id' is missing"),
        (b"[]", {"task": "", "id": "i"}, "'task' is an empty str"),
        (b"[]", {"task": ["t"], "id": "i"}, "'task' is a list"),
        (b"{bad", {}, ""),  # Celery's route for what cannot be decoded
        (b"[]", {}, ""),  # Celery's route for what is no job
        (b'{"task": "t", "id": "i"}', {}, ""),
        (b'{"task": "t"}', {}, "'id' is missing"),
        (b'{"task": "t"}', {"id": "i"}, ""),
    ],
)
def test_the_names_a_worker_needs(body: bytes, headers: dict[str, Any], says: str) -> None:
    assert messages.header_problem(message(body, headers=headers)).startswith(says)
    assert bool(messages.header_problem(message(body, headers=headers))) is bool(says)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[[], {}, {}]", ""),
        (b"[[], {}, null]", ""),
        (b'{"args": [], "kwargs": {}}', ""),
        (b"{}", ""),
        (b'{"args": 5}', "the positional arguments are a int"),
        (b'{"kwargs": null}', "the keyword arguments are missing"),
        (b"5", "the body is a int"),
        (b"[1]", "the body has 1 parts"),
        (b"[[], {}, 5]", "the third part of the body is a int"),
    ],
)
def test_the_shape_a_worker_needs(body: bytes, says: str) -> None:
    problem = messages.body_problem(message(body, accept={"application/json"}))

    assert problem.startswith(says)
    assert bool(problem) is bool(says)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"timelimit": [None, 1.5], "shadow": "s", "stamped_headers": ["a"], "stamps": {}, "retries": 0}, ""),
        ({"timelimit": [True, None]}, "'timelimit'"),
        ({"shadow": 1}, "'shadow'"),
        ({"stamped_headers": [1]}, "'stamped_headers'"),
        ({"stamps": []}, "'stamps'"),
        ({"retries": True}, "'retries'"),
    ],
)
def test_the_options_a_worker_needs(headers: dict[str, Any], says: str) -> None:
    assert messages.option_problem(headers).startswith(says)
    assert bool(messages.option_problem(headers)) is bool(says)
