"""What a message becomes when it is sent again (FAILURE_MODES 3.2 to 3.4), and the pace and stages of it."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.agent.wire import AWAITED_HEADER, SLOT_HEADER
from jobs.core.pace import Pace
from jobs.core.replay import (
    ReplayRefused,
    StoredMessage,
    explain_mismatch,
    has_chord,
    is_json,
    prepare,
)
from jobs.core.stages import StageCounts, Verdict, check_sizes, judge
from jobs.core.words import Reason
from tests.factories import make_headers

STAMP = {"jobs-publication": "new", "jobs-replay-of": "letter", "jobs-replay-item": 7, "jobs-replay-no": 1}
CHORD = {"task": "shop.tasks.collect", "args": [], "kwargs": {}, "options": {}}


def message(**fields: Any) -> StoredMessage:
    body = json.dumps(
        [[1], {"order_id": 5}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    )
    values: dict[str, Any] = {
        "body": body.encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": make_headers(task="shop.tasks.send", task_id="old"),
        "properties": {"correlation_id": "old", "delivery_mode": 2},
        "queue": "critical",
        "priority": None,
        "reason": Reason.FAILED,
        "task_id": "old",
    }
    return StoredMessage(**{**values, **fields})


def send(stored: StoredMessage, **options: Any):
    return prepare(stored, new_task_id="new-id", stamp=STAMP, **options)


def test_the_body_travels_byte_for_byte() -> None:
    body = b'[ [1,2.50], {"a":"\\u00e9 \\ud800"} , {"chord": null} ]'

    assert send(message(body=body)).body == body


def test_id_retries_eta_and_expiry_are_reset_and_the_rest_is_kept() -> None:
    headers = make_headers(task="shop.tasks.send", task_id="old") | {
        "retries": 3,
        "eta": "2026-11-12T03:00:00",
        "expires": "2026-11-12T04:00:00",
        "group": "g",
        "timelimit": [10, 20],
        "stamps": {"a": 1},
        "traceparent": "00-1",
        "custom": {"x": [1]},
        "jobs-publication": "before",
        "jobs-idempotency-key": "receipt:5",
    }

    sent = send(message(headers=headers))

    assert sent.task_id == "new-id"
    assert sent.headers == headers | STAMP | {"id": "new-id", "retries": 0, "eta": None, "expires": None}
    assert sent.properties == {"correlation_id": "new-id", "delivery_mode": 2}


def test_marks_of_the_broker_and_of_former_deliveries_are_dropped() -> None:
    marks = {
        "compression": "application/x-gzip",
        "x-death": [{"count": 1}],
        "x-first-death-queue": "q",
        "x-last-death-reason": "rejected",
        "x-delivery-count": 3,
        "redelivered": True,
        SLOT_HEADER: 1_800_000_000.0,
        AWAITED_HEADER: 1,
    }
    stored = message(
        headers=make_headers(task="t", task_id="old") | marks,
        properties={
            "reply_to": "somebody",
            "expiration": "1000",
            "delivery_tag": "tag",
            "priority": 5,
            "delivery_info": {"routing_key": "x"},
            "body_encoding": "base64",
            "user_id": "guest",
            "app_id": "shop",
        },
    )

    sent = send(stored)

    assert not marks.keys() & sent.headers.keys()
    assert sent.properties == {"app_id": "shop", "correlation_id": "new-id"}


def test_the_compression_of_a_body_that_nobody_could_decompress_is_kept() -> None:
    headers = make_headers(task="t", task_id="old") | {"compression": "application/x-gzip"}
    packed = message(body=zlib.compress(b"[[], {}, {}]")[:9], headers=headers, reason=Reason.UNDECODABLE)

    assert send(packed).headers["compression"] == "application/x-gzip"
    assert "compression" not in send(packed._replace(body=b"{bad")).headers


def test_a_chord_that_broke_is_left_behind_and_one_that_may_be_open_is_kept() -> None:
    body = json.dumps([[1], {}, {"callbacks": None, "chain": [{"task": "next"}], "chord": CHORD}]).encode()
    failed = message(body=body)
    lost = message(body=body, reason=Reason.WORKER_LOST)

    assert json.loads(send(failed).body)[2] == {"callbacks": None, "chain": [{"task": "next"}], "chord": None}
    assert json.loads(send(lost).body)[2]["chord"] is None
    assert send(lost, keeps_task_id=True).body == body
    assert has_chord(failed)
    assert not has_chord(message())


def test_edited_arguments_replace_those_of_a_json_body_and_their_reprs() -> None:
    edited = {"args": ["é"], "kwargs": {"order_id": 6}}

    sent = send(message(), edited_arguments=edited)

    assert json.loads(sent.body)[:2] == [["é"], {"order_id": 6}]
    assert sent.headers["argsrepr"] == "('é',)"
    assert sent.headers["kwargsrepr"] == "{'order_id': 6}"


@pytest.mark.parametrize(
    "content_type", ["application/x-python-serialize", "application/data", "", "text/plain"]
)
def test_a_body_that_is_not_json_is_never_opened(content_type: str) -> None:
    # A pickle that would raise if it were loaded.
    stored = message(body=b'cos\nabort\n(tR."chord": {}', content_type=content_type)

    assert send(stored).body == stored.body
    with pytest.raises(ReplayRefused, match="only application/json can be edited"):
        send(stored, edited_arguments={"args": [], "kwargs": {}})


@pytest.mark.parametrize("body", [b"{bad", b'{"a": 1}', b"[[], {}]", b"\xff\xfe"])
def test_a_body_that_cannot_be_read_is_replayed_as_it_is_and_cannot_be_edited(body: bytes) -> None:
    assert send(message(body=body)).body == body
    with pytest.raises(ReplayRefused):
        send(message(body=body), edited_arguments={"args": [], "kwargs": {}})


def test_a_message_of_the_first_protocol_is_edited_in_its_body() -> None:
    content = {
        "task": "old.task",
        "id": "old",
        "args": [1],
        "kwargs": {},
        "retries": 2,
        "eta": "x",
        "expires": "y",
        "chord": CHORD,
    }
    stored = message(body=json.dumps(content).encode(), headers={})

    sent = send(stored, edited_arguments={"args": [2], "kwargs": {"a": 1}})

    assert sent.task_id == "new-id"
    assert json.loads(sent.body) == {
        "task": "old.task",
        "id": "new-id",
        "args": [2],
        "kwargs": {"a": 1},
        "retries": 0,
        "eta": None,
        "expires": None,
        "chord": None,
    }


def test_a_pickled_message_of_the_first_protocol_keeps_the_id_inside_it() -> None:
    stored = message(body=b"\x80\x04.", content_type="application/x-python-serialize", headers={})

    assert send(stored).task_id == "old"
    with pytest.raises(ReplayRefused, match="never opened"):
        send(stored._replace(reason=Reason.EXPIRED))


def test_the_id_of_an_expired_job_cannot_be_kept() -> None:
    with pytest.raises(ReplayRefused, match="workers discard the id of an expired job"):
        send(message(reason=Reason.EXPIRED), keeps_task_id=True)

    assert send(message(), keeps_task_id=True).headers["id"] == "old"


def test_another_queue_is_taken_and_without_any_it_is_refused() -> None:
    assert send(message(), target_queue="slow").queue == "slow"
    with pytest.raises(ReplayRefused, match="Choose a queue"):
        send(message(queue=""))


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ([1], {}, ""),
        ([1, 2], {"flag": True}, ""),
        ([], {"order_id": 1}, ""),
        ([], {}, "order_id is missing"),
        ([1, 2, 3], {}, "at most 2 positional"),
        ([1], {"order_id": 2}, "given twice"),
        ([1], {"order": 2}, "no parameter order"),
    ],
)
def test_arguments_are_held_against_the_signature(args, kwargs, complaint) -> None:
    parameters = {
        "names": ["order_id", "note"],
        "required": 1,
        "var_args": False,
        "var_kwargs": False,
        "kwonly": ["flag"],
        "kwonly_required": [],
    }

    found = explain_mismatch(parameters, args, kwargs)

    assert complaint in found
    assert bool(complaint) == bool(found)


def test_a_signature_that_takes_anything_takes_anything() -> None:
    assert (
        explain_mismatch({"names": [], "required": 0, "var_args": True, "var_kwargs": True}, [1, 2], {"x": 1})
        == ""
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(st.lists(json_values, max_size=3), st.dictionaries(st.text(), json_values, max_size=3))
def test_any_edit_reads_back_as_it_was_given(args: list[Any], kwargs: dict[str, Any]) -> None:
    sent = send(message(), edited_arguments={"args": args, "kwargs": kwargs})

    assert json.loads(sent.body)[:2] == [args, kwargs]


def test_json_is_known_by_its_type_alone() -> None:
    assert is_json("application/json; charset=utf-8")
    assert not is_json("application/x-json-ish")


@given(st.floats(0.1, 5000), st.lists(st.floats(0.0, 3.0), max_size=60))
def test_no_second_ever_takes_more_than_the_rate(rate: float, waits: list[float]) -> None:
    start = datetime(2026, 11, 12, tzinfo=UTC)
    pace = Pace(at=start)
    sent: list[tuple[float, int]] = []
    at = 0.0
    for wait in waits:
        at += wait
        count = pace.allowance(rate_per_second=rate, now=start + timedelta(seconds=at))
        pace.spend(count)
        sent.append((at, count))

    total = sum(count for _, count in sent)
    # One letter is due at once; a burst is at most half a second's worth.
    assert total <= 1 + at * rate + 1e-3
    assert all(count <= max(1.0, rate / 2) + 1e-6 for _, count in sent)


def test_a_clock_that_is_set_back_stops_nothing_for_longer_than_a_moment() -> None:
    start = datetime(2026, 11, 12, tzinfo=UTC)
    earlier = start - timedelta(hours=1)
    pace = Pace(at=start, credit=0)

    assert pace.allowance(rate_per_second=100, now=earlier) == 0
    assert pace.allowance(rate_per_second=100, now=earlier + timedelta(seconds=0.1)) == 10


def test_a_clock_that_is_set_forward_allows_one_burst_at_most() -> None:
    start = datetime(2026, 11, 12, tzinfo=UTC)
    pace = Pace(at=start, credit=0)

    assert pace.allowance(rate_per_second=100, now=start + timedelta(hours=1)) == 50


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        (StageCounts(size=10, pending=50, waiting=0, done=0, died=0, unknown=0), Verdict.SEND),
        (StageCounts(size=10, pending=50, waiting=10, done=0, died=0, unknown=0), Verdict.WAIT),
        (StageCounts(size=10, pending=50, waiting=1, done=9, died=0, unknown=0), Verdict.WAIT),
        (StageCounts(size=10, pending=50, waiting=0, done=8, died=2, unknown=0), Verdict.PASS),
        (StageCounts(size=10, pending=50, waiting=0, done=7, died=3, unknown=0), Verdict.STOP),
        # Certain before the others are in.
        (StageCounts(size=10, pending=50, waiting=7, done=0, died=3, unknown=0), Verdict.STOP),
        # A canary whose outcome nobody knows does not pass.
        (StageCounts(size=1, pending=50, waiting=0, done=0, died=0, unknown=1), Verdict.STOP),
        # A long last stage stops long before a fifth of it is dead.
        (StageCounts(size=None, pending=4000, waiting=30, done=15, died=5, unknown=0), Verdict.STOP),
        (StageCounts(size=None, pending=4000, waiting=30, done=17, died=3, unknown=0), Verdict.SEND),
        (StageCounts(size=None, pending=4000, waiting=0, done=0, died=3, unknown=0), Verdict.SEND),
        (StageCounts(size=None, pending=0, waiting=0, done=5, died=0, unknown=0), Verdict.PASS),
        # Forgiven deaths no longer count, new ones do.
        (StageCounts(10, 50, 0, 5, 5, 0, forgiven_finished=10, forgiven_bad=5), Verdict.PASS),
        (StageCounts(20, 50, 0, 5, 15, 0, forgiven_finished=10, forgiven_bad=5), Verdict.STOP),
    ],
)
def test_a_stage_sends_waits_passes_or_stops(counts: StageCounts, verdict: Verdict) -> None:
    assert judge(counts, stop_above_percent=20) == verdict


def test_stages_end_with_all_that_are_left() -> None:
    assert check_sizes([1, 10]) == [1, 10, None]
    assert check_sizes([]) == []
    with pytest.raises(ValueError, match="stage 1 of 2 takes all"):
        check_sizes([None, 1])
