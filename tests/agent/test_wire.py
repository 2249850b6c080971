"""Records as bytes."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.agent import wire
from jobs.agent.agent import _encode
from jobs.agent.wire import Record, WireError, WireMessage


def record(**values: Any) -> Record:
    made: dict[str, Any] = {
        "kind": "death", "reason": "failed", "publication_id": "p", "attempt": 1, "at": 1.5, "task": "t",
        "task_id": "i", "worker": "w", "boot_id": "b",
    }  # fmt: skip
    return Record(**{**made, **values})


def message(headers: dict[Any, Any], body: bytes = b"\x00\xff") -> WireMessage:
    return WireMessage(body, "application/json", None, headers, {"priority": 3}, "", "celery", "celery")


@given(body=st.binary(), text=st.text(), number=st.integers() | st.floats(allow_nan=False))
def test_a_record_comes_back_as_it_was(body: bytes, text: str, number: float) -> None:
    written = record(
        message=message({"a": text, "n": [number, {"b": None}]}, body),
        error=WireError(text, text, text),
        parameters=[text],
        details={"x": number},
    )

    assert wire.decode(wire.encode(written)) == written


def test_what_json_has_no_form_for_is_tagged_and_comes_back() -> None:
    when = datetime.datetime(2026, 11, 12, 3, 0, tzinfo=datetime.UTC)
    headers = {"when": when, "raw": b"\x00", "view": memoryview(b"v"), "tuple": (1, [when]), 7: {8: "key"}}

    [back] = [wire.decode(wire.encode(record(message=message(headers)))).message]

    assert back is not None
    assert wire.from_json_value(back.headers) == {
        "when": when, "raw": b"\x00", "view": b"v", "tuple": [1, [when]], "7": {"8": "key"}
    }  # fmt: skip


def test_what_has_no_form_at_all_is_its_repr() -> None:
    back = wire.decode(wire.encode(record(message=message({"x": {1, 2}, ("a", "b"): 1})))).message

    assert back is not None
    assert wire.from_json_value(back.headers) == {"x": "{1, 2}", "('a', 'b')": 1}


def test_lone_surrogates_and_control_characters_survive() -> None:
    hostile = {"surrogate": "\ud800", "null": "\x00", "turn": "\u202e"}

    back = wire.decode(wire.encode(record(message=message(hostile), task="\udfff"))).message

    assert back is not None
    assert back.headers == hostile


def test_a_header_that_cannot_be_written_does_not_cost_the_message() -> None:
    endless: list[Any] = []
    endless.append(endless)

    back = wire.decode(_encode(record(message=message({"endless": endless, "kept": "x"}))))

    assert back.message is not None
    assert back.message.body == b"\x00\xff"
    assert back.message.headers == {"kept": "x"}
    assert "not_encoded" in back.details


def test_details_that_cannot_be_written_do_not_cost_the_record() -> None:
    endless: list[Any] = []
    endless.append(endless)

    back = wire.decode(_encode(record(details={"endless": endless})))

    assert "not_encoded" in back.details


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("[]", "a record is a JSON object"),
        ('{"v": 2}', "version 2"),
        ('{"v": 1}', "lacks or misnames"),
        ("{", "Expecting"),
    ],
)
def test_what_is_no_record_is_refused_in_words(data: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        wire.decode(data)


def test_a_broken_message_within_a_record_is_refused() -> None:
    values = json.loads(wire.encode(record(message=message({}))))
    del values["message"]["body"]

    with pytest.raises(ValueError, match="lacks or misnames"):
        wire.decode(json.dumps(values))


def test_keys_of_a_later_version_are_ignored() -> None:
    values = json.loads(wire.encode(record()))

    assert wire.decode(json.dumps({**values, "later": 1})) == record()


@pytest.mark.parametrize(
    "value",
    [
        {"__bytes__": "no base64!"},
        {"__bytes__": "é"},
        {"__bytes__": 5},
        {"__bytes__": None},
        {"__datetime__": "tomorrow"},
        {"__datetime__": 5},
    ],
)
def test_a_header_that_only_looks_tagged_stays_as_it_is(value: Any) -> None:
    assert wire.from_json_value({"x": [value]}) == {"x": [value]}
