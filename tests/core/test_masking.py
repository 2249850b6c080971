"""Values under a masked key are gone, at any depth."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.masking import DEFAULT_KEYS, MASKED, MAX_DEPTH, is_masked_key, mask, mask_headers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"password": "x", "n": 1}, {"password": MASKED, "n": 1}),
        ({"API_TOKEN": "x"}, {"API_TOKEN": MASKED}),
        ({"CardNumber": "x"}, {"CardNumber": MASKED}),
        ({"user": {"e-mail": "a", "email": "b"}}, {"user": {"e-mail": "a", "email": MASKED}}),
        ([{"secret": 1}, 2], [{"secret": MASKED}, 2]),
        (({"secret": 1},), [{"secret": MASKED}]),
        ({"token": {"deep": 1}}, {"token": MASKED}),
        ({"a": [[{"token": None}]]}, {"a": [[{"token": MASKED}]]}),
        ("password", "password"),
        (None, None),
        ({1: "a"}, {1: "a"}),
    ],
)
def test_masking(value, expected):
    assert mask(value) == expected


def test_other_keys_can_be_masked():
    assert mask({"IBAN": 1, "password": 2}, ["iban"]) == {"IBAN": MASKED, "password": 2}


@pytest.mark.parametrize("keys", [[], [""]])
def test_without_keys_nothing_is_masked(keys):
    assert mask({"password": 1}, keys) == {"password": 1}


def test_a_key_that_looks_like_a_pattern_is_taken_literally():
    assert is_masked_key("a.b", ["a.b"])
    assert not is_masked_key("axb", ["a.b"])


def test_what_is_too_deep_to_be_looked_at_is_masked():
    value = {"password": "found me"}
    for _ in range(MAX_DEPTH + 5):
        value = {"a": value}

    assert "found me" not in repr(mask(value))


def test_the_original_is_left_alone():
    value = {"password": "x", "a": [{"token": "y"}]}
    before = copy.deepcopy(value)

    mask(value)

    assert value == before


def test_headers_lose_the_arguments_text_too():
    headers = {"argsrepr": "('tok_1',)", "kwargsrepr": "{}", "id": "j", "x-token": "t"}

    assert mask_headers(headers) == {"argsrepr": MASKED, "kwargsrepr": MASKED, "id": "j", "x-token": MASKED}


def test_there_is_one_mask():
    assert pickle.loads(pickle.dumps(MASKED)) is MASKED  # noqa: S301 - ours
    assert copy.deepcopy(MASKED) is MASKED
    assert repr(MASKED) == "•••"


JSON = st.recursive(
    st.none() | st.integers() | st.just("hidden"),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from([*DEFAULT_KEYS, "user_Email", "n", "order"]), inner)
    ),
    max_leaves=30,
)


@given(JSON)
def test_nothing_under_a_masked_key_is_left(value):
    def visible(part):
        if isinstance(part, dict):
            assert all(item is MASKED for key, item in part.items() if is_masked_key(key))
            for item in part.values():
                visible(item)
        elif isinstance(part, list):
            for item in part:
                visible(item)

    visible(mask(value))


@given(JSON)
def test_masking_twice_is_masking_once(value):
    assert mask(mask(value)) == mask(value)
