"""Headers written over their stored text: the same bytes as the long way, or None."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from jobs.agent import wire
from jobs.core import replay, replay_text

STAMP = {
    wire.PUBLICATION_HEADER: "f00d",
    wire.PUBLISHED_AT_HEADER: 1795988692.984431,
    wire.REPLAY_OF_HEADER: "3b53a4b3-2679-470d-866f-1dd3c85a29dc",
    wire.REPLAY_ITEM_HEADER: 7,
    wire.REPLAY_NUMBER_HEADER: 2,
}
NEW_ID = "c9cc38af-f107-4909-a252-c903997e05e1"
CHANGED = {
    name: f", {json.dumps({name: value})[1:-1]}"
    for name, value in {"id": NEW_ID, "retries": 0, "eta": None, "expires": None, **STAMP}.items()
}
USUAL: dict[str, Any] = {
    "lang": "py",
    "task": "shop.tasks.send_receipt",
    "id": "e13d2c98-7d33-4d44-ba31-9fd6a01439cf",
    "shadow": None,
    "eta": "2026-11-12T03:12:00+00:00",
    "expires": None,
    "retries": 5,
    "timelimit": [None, 30],
    "argsrepr": "()",
    "kwargsrepr": "{'order_id': 0, 'email': 'a@example.org'}",
    "ignore_result": False,
    "stamps": {},
    "jobs-publication": "803160ca48b8455591eef95f872a2dde",
    "jobs-published-at": 1.0,
}


def the_long_way(headers: dict[str, Any]) -> str:
    message = replay.StoredMessage(
        b"[[], {}, {}]", "application/json", "utf-8", headers, {}, "q", None, "failed", "old"
    )
    return json.dumps(replay.prepare(message, new_task_id=NEW_ID, stamp=STAMP).headers)


@pytest.mark.parametrize(
    "headers",
    [
        USUAL,
        {name: value for name, value in USUAL.items() if not name.startswith("jobs-")},
        {name: value for name, value in USUAL.items() if name not in {"eta", "expires", "retries"}},
        USUAL | STAMP,
        USUAL | {"kwargsrepr": '{\'id\': 1, "id": 2, \\"retries\\": 3}, "id": "4"'},
        USUAL | {"argsrepr": "ends in a backslash \\", "note": ', "id": "5"'},
        USUAL | {"text": "é\ud800\x00", "number": -1.5e300, "big": 2**70},
        {"task": "t", "retries": 3, "id": "x"},
    ],
)
def test_simple_headers_become_what_the_long_way_makes_of_them(headers: dict[str, Any]) -> None:
    written = replay_text.headers(json.dumps(headers), CHANGED)

    assert written == the_long_way(headers)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"lang": "py", "id": "x"}, id="the first protocol has no task header"),
        pytest.param({'a, "task': 1, 'x"task': 2, "id": "x"}, id="a key that only ends like task"),
        pytest.param(USUAL | {"stamps": {"id": "inner"}}, id="an object within"),
        pytest.param(USUAL | {"links": [{"id": "inner"}]}, id="an object within a list"),
        pytest.param(USUAL | {"x-death": [], "redelivered": True}, id="marks of the broker"),
        pytest.param({"x-delivery-count": 1, **USUAL}, id="a mark of the broker, first"),
        pytest.param(USUAL | {wire.SLOT_HEADER: 1.5}, id="a slot"),
        pytest.param(USUAL | {wire.AWAITED_HEADER: 1}, id="an attempt that was waited for"),
        pytest.param(USUAL | {"compression": "application/x-gzip"}, id="compression"),
        pytest.param(USUAL | {"at": wire.to_json_value(b"\xff")}, id="a tagged value"),
        pytest.param(USUAL | {"id": 'with "quotes"'}, id="an id with escapes"),
        pytest.param(USUAL | {"id": ["x"]}, id="an id that is a list"),
        pytest.param(USUAL | {"eta": {}}, id="an ETA that is an object"),
        pytest.param({"id": "first", "task": "t", "retries": 0}, id="the id first"),
        pytest.param(USUAL | {'"id': "x"}, id="a key that ends in id", marks=()),
    ],
)
def test_headers_that_are_not_simple_take_the_long_way(headers: dict[str, Any]) -> None:
    written = replay_text.headers(json.dumps(headers), CHANGED)

    assert written is None or written == the_long_way(headers)
    if '"id' not in headers:
        assert written is None


def test_whatever_the_headers_are_the_text_is_that_of_the_long_way() -> None:
    chance = random.Random(20261112)
    parts = [
        '"',
        "\\",
        "{",
        "}",
        "[",
        "]",
        ", ",
        ": ",
        "id",
        "retries",
        "task",
        "jobs-replay-no",
        "x-",
        "é",
        "0",
    ]
    names = [*USUAL, *STAMP]

    def text() -> str:
        return "".join(chance.choice(parts) for _ in range(chance.randrange(6)))

    def value(depth: int = 0) -> Any:
        kind = chance.randrange(8 if depth < 2 else 5)
        if kind < 3:
            return text()
        if kind < 5:
            return chance.choice([None, True, False, 0, -7, 2**64, 1.5])
        if kind < 7:
            return [value(depth + 1) for _ in range(chance.randrange(3))]
        return {chance.choice([*names, text()]): value(depth + 1) for _ in range(chance.randrange(3))}

    written = 0
    for _ in range(20_000):
        headers = {"task": "t"} if chance.random() < 0.9 else {}
        for _ in range(chance.randrange(6)):
            headers[chance.choice([*names, text()])] = value()
        result = replay_text.headers(json.dumps(headers), CHANGED)
        if result is not None:
            written += 1
            assert result == the_long_way(headers), headers
    assert written > 2_000


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"correlation_id": "x", "reply_to": "y", "delivery_mode": 2, "priority": 0}, True),
        ({"delivery_info": {"exchange": "", "routing_key": "q"}, "delivery_tag": "t"}, True),
        ({"correlation_id": "x", "delivery_mode": 1}, False),
        ({"correlation_id": "x", "message_id": "m"}, False),
        ({"correlation_id": 'a"b'}, False),
        ({"delivery_info": {"exchange": "", "routing_key": "q", "more": 1}}, False),
        ({"priority": None}, False),
    ],
)
def test_only_properties_that_a_replay_drops_or_sets_are_plain(
    properties: dict[str, Any], expected: bool
) -> None:
    assert replay_text.are_plain(json.dumps(properties)) is expected
