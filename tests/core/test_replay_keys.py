"""What becomes of an idempotency key when a job is replayed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.agent.wire import IDEMPOTENCY_HEADER, SLOT_HEADER
from jobs.core import replay, replay_text
from jobs.core.replay import StoredMessage, prepare


def stored(body: Any, headers: dict[str, Any]) -> StoredMessage:
    return StoredMessage(
        body=json.dumps(body).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties={},
        queue="celery",
        priority=None,
        reason="failed",
        task_id="old",
    )


HEADERS = {"task": "shop.send_receipt", "id": "old", IDEMPOTENCY_HEADER: "receipt:5"}
SECOND = stored([[5], {"note": "x"}, {}], HEADERS)
FIRST = stored(
    {"task": "shop.send_receipt", "id": "old", "args": [5], "kwargs": {"note": "x"}},
    {IDEMPOTENCY_HEADER: "receipt:5"},
)


def key_after(message: StoredMessage, edited: dict[str, Any] | None) -> object:
    sent = prepare(message, new_task_id="new", stamp={}, edited_arguments=edited)
    return sent.headers.get(IDEMPOTENCY_HEADER)


def test_the_header_has_the_name_that_the_agent_knows() -> None:
    assert replay._KEY_HEADER == IDEMPOTENCY_HEADER


@pytest.mark.parametrize("message", [SECOND, FIRST], ids=["second protocol", "first protocol"])
@pytest.mark.parametrize(
    ("edited", "key"),
    [
        (None, "receipt:5"),
        ({"args": [5], "kwargs": {"note": "x"}}, "receipt:5"),
        ({"args": [6], "kwargs": {"note": "x"}}, None),
        ({"args": [5], "kwargs": {}}, None),
        ({"args": [5], "kwargs": {"note": "y"}}, None),
        ({"args": ["5"], "kwargs": {"note": "x"}}, None),
        ({"args": [5.0], "kwargs": {"note": "x"}}, None),
        ({"args": [], "kwargs": {}}, None),
    ],
)
def test_a_key_goes_along_unless_the_arguments_are_others(
    message: StoredMessage, edited: Any, key: object
) -> None:
    assert key_after(message, edited) == key


def test_other_arguments_in_another_order_are_the_same() -> None:
    message = stored([[], {"a": 1, "b": 2}, {}], HEADERS)

    assert key_after(message, {"args": [], "kwargs": {"b": 2, "a": 1}}) == "receipt:5"


def test_true_and_one_are_others() -> None:
    message = stored([[True], {}, {}], HEADERS)

    assert key_after(message, {"args": [1], "kwargs": {}}) is None


def test_a_body_that_is_no_job_keeps_its_headers() -> None:
    assert key_after(stored({"hello": 1}, {IDEMPOTENCY_HEADER: "k"}), None) == "k"


def test_a_slot_of_a_former_delivery_does_not_go_along() -> None:
    message = stored([[5], {}, {}], {**HEADERS, SLOT_HEADER: 12.5})

    assert SLOT_HEADER not in prepare(message, new_task_id="new", stamp={}).headers
    assert replay_text.headers(json.dumps({**HEADERS, SLOT_HEADER: 12.5}), {}) is None
