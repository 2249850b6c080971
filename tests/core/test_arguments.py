"""The arguments in a body: read, named, summarised; never unpickled."""

from __future__ import annotations

import json
import pickle
import uuid
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.json import dumps

from jobs.core.arguments import TEXT_LENGTH, bind, flatten_text, preview, read, summarise

EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def test_a_body_of_protocol_2():
    body = json.dumps([[1], {"a": "é"}, EMBED]).encode()

    read_back = read(body, "application/json", "utf-8", {"task": "t"})

    assert (read_back.args, read_back.kwargs, read_back.embed) == ([1], {"a": "é"}, EMBED)
    assert (read_back.error, read_back.protocol, read_back.byte_size) == ("", 2, len(body))


def test_a_body_of_protocol_1():
    body = json.dumps({"task": "t", "id": "j", "args": [1], "kwargs": {"a": 2}, "callbacks": []}).encode()

    read_back = read(body, "application/json", "utf-8", {})

    assert (read_back.args, read_back.kwargs, read_back.embed) == ([1], {"a": 2}, {"callbacks": []})
    assert read_back.protocol == 1


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "error"),
    [
        (b"[]", None, "utf-8", "The body is of no known type. Only JSON is read, so it is kept as it is."),
        (b"[]", "application/x-python-serialize", "binary",
         "The body is application/x-python-serialize. Only JSON is read, so it is kept as it is."),
        (b"[]", "application/json", "utf-16",
         "The body is JSON in the encoding utf-16, which is not read; it is kept as it is."),
        (b"{bad", "application/json", "utf-8",
         "The body is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."),
        (b"\xff\xfe", "application/json", "utf-8",
         "The body is not valid JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte."),
        (b"[" * 100_000, "application/json", "utf-8", "The body is JSON nested too deep to be read."),
        (b"[1, 2]", "application/json", "utf-8",
         "The body is a list of 2, not [arguments, named arguments, callbacks] as Celery sends it."),
        (b"{}", "application/json", "utf-8",
         "The body is an object, not [arguments, named arguments, callbacks] as Celery sends it."),
        (b"5", "application/json", "utf-8",
         "The body is a single value, not [arguments, named arguments, callbacks] as Celery sends it."),
        (b"[{}, {}, {}]", "application/json", "utf-8", "The arguments in the body are not a list."),
        (b"[[], [], {}]", "application/json", "utf-8", "The named arguments in the body are not an object."),
        (b"[[], {}, 5]", "application/json", "utf-8", "The callbacks in the body are not an object."),
        (b"", "application/json", "utf-8",
         "The body is not valid JSON: Expecting value: line 1 column 1 (char 0)."),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_a_body_that_cannot_be_read_says_why(body, content_type, encoding, error):
    read_back = read(body, content_type, encoding, {})

    assert read_back.error == error
    assert (read_back.args, read_back.kwargs) == ([], {})


def test_a_pickle_is_never_loaded():
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the body was unpickled",))

    for content_type in ("application/x-python-serialize", "application/json", ""):
        assert read(pickle.dumps([[Trap()], {}, {}]), content_type, "binary", {}).error


def test_a_number_with_too_many_digits_is_an_error_and_no_exception():
    assert read(b"[[" + b"9" * 10_000 + b"], {}, {}]", "application/json", "utf-8", {}).error


@pytest.mark.parametrize(
    ("parameters", "args", "kwargs", "bound"),
    [
        (["a", "b"], [1, 2], {"c": 3}, {"a": 1, "b": 2, "c": 3}),
        (["a"], [1, 2], {}, {"a": 1, "1": 2}),
        (None, [1], {"b": 2}, {"0": 1, "b": 2}),
        ([], [], {}, {}),
        (["a"], [1], {"a": 2}, {"0": 1, "a": 2}),
    ],
)
def test_arguments_get_the_names_of_parameters(parameters, args, kwargs, bound):
    assert bind(parameters, args, kwargs) == bound


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({"order_id": 48213, "x": 1}, "order_id=48213"),
        ({"supplier": "papier & co"}, 'supplier="papier & co"'),
        ({"0": "first"}, '"first"'),
        ({"card_token": "x", "order_id": 1}, "order_id=1"),
        ({"card_token": "x"}, "masked"),
        ({}, ""),
        ({"a": {"b": [1, None, True]}}, 'a={"b": [1, null, true]}'),
        ({"a": "x" * 1_000}, 'a="' + "x" * 251 + "…"),
        ({"a": "\x00\n\ud800"}, 'a="\\u0000\\n\ufffd"'),
    ],
)
def test_a_preview_is_the_first_argument_that_may_be_shown(bound, expected):
    assert preview(bound) == expected


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({"order_id": 48213}, "\norder_id=48213\n"),
        ({"amount": {"value": "74.90", "currency": "EUR"}}, "\namount.value=74.90\n\namount.currency=EUR\n"),
        ({"items": [{"sku": "a"}, {"sku": "b"}]}, "\nitems.0.sku=a\n\nitems.1.sku=b\n"),
        ({"a": None, "b": True, "c": 1.5}, "\na=null\n\nb=true\n\nc=1.5\n"),
        ({"a": {}, "b": []}, "\na={}\n\nb=[]\n"),
        ({"token": "x", "a": {"password": "y", "n": 1}}, "\na.n=1\n"),
        ({"a": "two\nlines"}, "\na=two lines\n"),
        ({"a\nb": 1}, "\na b=1\n"),
        ({}, ""),
    ],
)
def test_a_text_has_a_line_an_argument(bound, expected):
    assert flatten_text(bound) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime(2026, 11, 12, 3, 12, tzinfo=UTC), "2026-11-12T03:12:00+00:00"),
        (uuid.UUID("8f3c2a91-0000-4000-8000-00000000000a"), "8f3c2a91-0000-4000-8000-00000000000a"),
        (Decimal("74.90"), "74.90"),
        (b"abc", "abc"),
    ],
)
def test_what_kombu_wraps_is_searched_by_its_text(value, text):
    body = dumps([[], {"a": value}, EMBED]).encode()

    bound = bind(None, [], read(body, "application/json", "utf-8", {}).kwargs)

    assert flatten_text(bound) == f"\na={text}\n"


def test_a_text_ends_at_its_limit_with_a_whole_line():
    text = flatten_text({f"key_{n}": "x" * 50 for n in range(1_000)})

    assert TEXT_LENGTH - 100 < len(text) <= TEXT_LENGTH
    assert text.endswith("x\n")


def test_a_summary_is_preview_and_text():
    bound = {"order_id": 1, "token": 2}

    assert summarise(bound) == (preview(bound), flatten_text(bound))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(st.characters()), JSON))
def test_any_arguments_have_a_preview_and_a_text_that_fit(bound):
    shown, searched = summarise(bound)

    assert len(shown) <= 255
    assert len(searched) <= TEXT_LENGTH
    assert "\n" not in shown
    (shown + searched).encode("utf-8")
    assert "\x00" not in shown + searched


@given(
    st.binary(),
    st.sampled_from(["application/json", None, "text/plain"]),
    st.sampled_from(["utf-8", "binary"]),
)
def test_any_body_is_read_or_has_a_reason(body, content_type, encoding):
    read_back = read(body, content_type, encoding, {})

    assert read_back.byte_size == len(body)
    assert read_back.protocol if not read_back.error else read_back.error.endswith(".")


@given(st.lists(JSON), st.dictionaries(st.text(st.characters()), JSON))
def test_what_json_can_hold_is_read_back(args, kwargs):
    body = json.dumps([args, kwargs, EMBED]).encode()

    read_back = read(body, "application/json", "utf-8", {})

    assert json.dumps([read_back.args, read_back.kwargs]) == json.dumps([args, kwargs])
