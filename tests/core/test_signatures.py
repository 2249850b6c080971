"""What a worker says of itself: only what can be stored and compared with comes through."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.core.replay import explain_mismatch
from jobs.core.signatures import clean_parameters, clean_queues, clean_tasks

GOOD = {
    "names": ["order_id", "address"],
    "required": 1,
    "var_args": False,
    "var_kwargs": True,
    "kwonly": ["express"],
    "kwonly_required": ["express"],
}


def test_what_an_agent_writes_stays_as_it_is():
    assert clean_parameters(GOOD) == GOOD
    assert clean_tasks({"shop.ship": GOOD, "shop.any": None}) == {"shop.ship": GOOD, "shop.any": None}


@pytest.mark.parametrize(
    "forged",
    [
        "x",
        [["x"]],
        {},
        {"names": 5},
        {"names": ["a"], "required": "1"},
        {"names": ["a"], "required": True},
        {"names": ["a"], "required": None},
        {"names": [["a"]], "required": 1},
        {"names": ["a"] * 501, "required": 1},
        {"names": float("nan"), "required": 1},
        {"names": ["a"], "required": 1, "kwonly": 5},
        {"names": ["a"], "required": 1, "kwonly": [{}]},
        {"names": ["a"], "required": 1, "kwonly_required": {"a": 1}},
    ],
)
def test_what_is_no_signature_takes_anything(forged: Any):
    assert clean_parameters(forged) is None


@pytest.mark.parametrize("required", [-1, 0, 2, 99, 2**70])
def test_the_number_of_needed_names_is_one_that_can_be(required: int):
    cleaned = clean_parameters({**GOOD, "required": required, "kwonly_required": ["other"]})

    assert cleaned is not None
    assert cleaned["required"] == min(max(required, 0), 2)
    assert cleaned["kwonly_required"] == []
    explain_mismatch(cleaned, [1], {"express": True})


def test_names_are_cleaned_as_those_of_letters_are():
    [(name, parameters)] = (
        clean_tasks({"shop.\x00\ud800" + "x" * 400: {**GOOD, "names": ["\x00"]}}) or {}
    ).items()

    assert len(name) == 255
    assert name.isprintable() or "\ufffd" in name
    assert "\x00" not in name
    assert parameters is not None
    assert parameters["names"] == ["\ufffd"]


@pytest.mark.parametrize("forged", [None, 5, "x", ["a"]])
def test_what_is_no_list_of_tasks_is_none(forged: Any):
    assert clean_tasks(forged) is None


def test_queues_are_names():
    assert clean_queues(["a", 5, None, "\x00"]) == ["a", "\ufffd"]
    assert clean_queues("abc") == []
