"""FAILURE_MODES 1A: the message arrives but never becomes a run."""

from __future__ import annotations

import datetime
import json
import pickle
import uuid
import zlib
from typing import Any

import pytest
from celery import chain

from tests.agent.fleet import Sent, Worker

pytestmark = pytest.mark.worker

GOOD_BODY = json.dumps([["x"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])


def headers(**changed: Any) -> dict[str, Any]:
    """Return the headers of a job that could run, but for what is changed; None leaves one out."""
    made = {"task": "shop.fail", "id": str(uuid.uuid4()), "lang": "py", "retries": 0, **changed}
    return {name: value for name, value in made.items() if value is not None}


def test_row_1_an_unregistered_task_is_captured_whole(worker: Worker) -> None:
    sent = worker.send("nosuch.task", "ä", kwargs={"b": [1, {"c": 2}]})

    record = worker.record_of(sent)

    assert (record.kind, record.reason, record.task) == ("death", "unregistered", "nosuch.task")
    assert record.message is not None
    assert record.message.body == sent.body
    assert record.error is not None
    assert "nosuch.task" in record.error.message


def test_row_3_the_rest_of_the_chain_stays_with_an_unregistered_task(worker: Worker) -> None:
    path = worker.path()
    head = str(uuid.uuid4())
    first = worker.app.signature("nosuch.task", task_id=head)
    with worker.connection() as connection:
        chain(first, worker.app.signature("shop.mark", (str(path),), immutable=True)).apply_async(
            connection=connection
        )

    record = worker.record_of(Sent(head, b""))

    assert record.message is not None
    assert str(path).encode() in record.message.body


@pytest.mark.parametrize(
    "body", ["{bad", "", "\ud800", b"\xff\xfe"], ids=["text", "empty", "surrogate", "bytes"]
)
def test_row_4_a_body_that_cannot_be_decoded(worker: Worker, body: str | bytes) -> None:
    raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
    sent = worker.send_raw(raw, headers=headers())

    record = worker.record_of(sent)

    assert record.kind == "death"
    assert record.reason == ("undecodable" if raw else "malformed")
    assert record.message is not None
    assert record.message.body == raw


def test_row_4_a_body_that_cannot_be_decoded_and_names_no_task(worker: Worker) -> None:
    raw = f"{{bad {uuid.uuid4()}".encode()

    record = worker.record_of(worker.send_raw(raw))

    assert (record.kind, record.reason, record.task) == ("death", "undecodable", "")
    assert record.message is not None
    assert record.message.body == raw


def test_row_4_a_body_that_cannot_be_decompressed(worker: Worker) -> None:
    sent = worker.send_raw(b"not compressed", headers=headers(compression="application/x-gzip"))

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "undecodable")
    assert record.message is not None
    assert record.message.body == b"not compressed"


@pytest.mark.parametrize("content_type", ["application/x-yaml", "application/x-unheard-of"])
@pytest.mark.parametrize("names_a_task", [True, False])
def test_row_5_a_content_type_that_is_refused(worker: Worker, content_type: str, names_a_task: bool) -> None:
    raw = f"- {uuid.uuid4()}".encode()
    sent = worker.send_raw(raw, headers=headers() if names_a_task else {}, content_type=content_type)

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "undecodable")
    assert record.details == {"content_type": content_type}
    assert record.message is not None
    assert record.message.body == raw


BROKEN_HEADERS: list[tuple[str, dict[str, Any]]] = [
    ("6-eta", {"eta": "yesterday"}),
    ("6-expires", {"expires": "yesterday"}),
    ("6-eta-list", {"eta": [1]}),
    ("6-expires-number", {"expires": 5}),
    ("7-no-id", {"id": None}),
    ("7-empty-id", {"id": ""}),
    ("7-number-id", {"id": 7}),
    ("7-list-id", {"id": ["a"]}),
    ("9-task-list", {"task": ["shop.fail"]}),
    ("9-task-object", {"task": {"shop": "fail"}}),
    ("9-task-empty", {"task": ""}),
    ("9-task-number", {"task": 3}),
    ("15-eta-too-far", {"eta": "9999-12-31T23:59:59-14:00"}),
    ("15-eta-too-early", {"eta": "0001-01-01T00:00:00+14:00"}),
    ("limits-one", {"timelimit": [1]}),
    ("limits-text", {"timelimit": ["a", "b"]}),
    ("limits-number", {"timelimit": 5}),
    ("shadow-list", {"shadow": ["a"]}),
    ("stamped-number", {"stamped_headers": 5}),
    ("stamped-lists", {"stamped_headers": [["a"]]}),
    ("stamps-text", {"stamped_headers": ["a"], "stamps": "a"}),
    ("retries-text", {"retries": "many"}),
]


@pytest.mark.parametrize(
    "changed", [each[1] for each in BROKEN_HEADERS], ids=[each[0] for each in BROKEN_HEADERS]
)
def test_rows_6_7_9_15_headers_that_no_worker_can_use(worker: Worker, changed: dict[str, Any]) -> None:
    raw = GOOD_BODY.replace("x", uuid.uuid4().hex)
    sent = worker.send_raw(raw, headers=headers(**changed))

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "malformed")
    assert record.message is not None
    assert record.message.body == raw.encode()


BROKEN_BODIES = {
    "8-object": '{"a": 1}',
    "8-two-parts": "[[], {}]",
    "8-four-parts": "[[], {}, {}, {}]",
    "8-number": "7",
    "8-null": "null",
    "8-text": '"args"',
    "8-embed-text": '[[], {}, "x"]',
    "10-kwargs-list": "[[], [1], {}]",
    "10-args-text": '["abc", {}, {}]',
    "10-args-object": "[{}, {}, {}]",
    "10-args-null": "[null, {}, {}]",
}


@pytest.mark.parametrize("raw", BROKEN_BODIES.values(), ids=BROKEN_BODIES.keys())
def test_rows_8_10_a_body_of_the_wrong_shape(worker: Worker, raw: str) -> None:
    sent = worker.send_raw(raw, headers=headers(task="shop.mark"))

    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "malformed")
    assert record.message is not None
    assert record.message.body == raw.encode()


@pytest.mark.parametrize(
    "values",
    [
        {"task": "shop.fail", "args": [], "kwargs": {}},
        {"task": "shop.fail", "id": 5, "args": [], "kwargs": {}},
        {"task": ["shop.fail"], "id": "a", "args": [], "kwargs": {}},
        {"task": "shop.fail", "id": "a", "args": "abc", "kwargs": {}},
        {"task": "shop.fail", "id": "a", "args": [], "kwargs": [1]},
        {"task": "shop.fail", "id": "a", "args": [], "kwargs": {}, "eta": "yesterday"},
    ],
    ids=["no-id", "number-id", "task-list", "args-text", "kwargs-list", "eta"],
)
def test_protocol_1_of_the_wrong_shape(worker: Worker, values: dict[str, Any]) -> None:
    if values.get("id") == "a":
        values = {**values, "id": str(uuid.uuid4())}
    raw = json.dumps({**values, "unique": uuid.uuid4().hex}).encode()

    record = worker.record_of(worker.send_raw(raw))

    assert (record.kind, record.reason) == ("death", "malformed")
    assert record.message is not None
    assert record.message.body == raw


def test_protocol_1_that_fails_is_captured_with_its_names(worker: Worker) -> None:
    task_id = str(uuid.uuid4())
    raw = json.dumps({"task": "shop.fail", "id": task_id, "args": [1], "kwargs": {}, "retries": 2}).encode()
    worker.send_raw(raw)

    record = worker.record_of(Sent(task_id, raw))

    assert (record.reason, record.task, record.attempt) == ("failed", "shop.fail", 2)
    assert record.message is not None
    assert record.message.body == raw


@pytest.mark.parametrize("body", ["{}", "[1, 2]", '{"order": 7}'])
def test_row_11_a_message_that_is_no_job(worker: Worker, body: str) -> None:
    raw = body.replace("7", f'"{uuid.uuid4()}"').encode()
    before = len(worker.records_with_body(raw))

    worker.send_raw(raw, headers={"from": "elsewhere"})
    worker.run_fence()

    records = worker.records_with_body(raw)[before:]
    assert [(each.kind, each.reason, each.task) for each in records] == [("death", "malformed", "")]
    assert records[0].message is not None
    assert records[0].message.headers["from"] == "elsewhere"


def test_a_job_in_the_future_is_left_alone(worker: Worker) -> None:
    task_id = str(uuid.uuid4())
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)

    record = worker.record_of(worker.send("shop.fail", task_id=task_id, eta=soon))

    assert record.reason == "failed"
    assert record.at >= soon.timestamp() - 0.1


def test_a_compressed_body_is_kept_as_the_worker_holds_it(worker: Worker) -> None:
    sent = worker.send("shop.fail", "ä" * 2000, compression="zlib")

    record = worker.record_of(sent)

    assert record.message is not None
    assert record.message.body == zlib.decompress(sent.body)
    assert record.message.headers["compression"] == "application/x-gzip"


def test_a_pickled_body_is_kept_byte_for_byte(worker: Worker) -> None:
    sent = worker.send("shop.fail", {1, 2, 3}, serializer="pickle")

    record = worker.record_of(sent)

    assert record.message is not None
    assert record.message.body == sent.body
    assert record.message.content_type == "application/x-python-serialize"
    assert pickle.loads(record.message.body)[0] == ({1, 2, 3},)  # noqa: S301 (our own bytes)


def test_bytes_under_a_custom_serialiser_are_kept_byte_for_byte(worker: Worker) -> None:
    sent = worker.send("shop.fail", b"\x00\xff\xfe", {"a": (1, 2)}, serializer="literal")

    record = worker.record_of(sent)

    assert record.message is not None
    assert record.message.body == sent.body
    assert b"\\x00\\xff\\xfe" in record.message.body
    assert record.message.content_type == "application/x-python-literal"


def test_200_kilobytes_of_nested_arguments_are_kept_byte_for_byte(worker: Worker) -> None:
    sent = worker.send("shop.fail", [{"n": number, "deep": [[["ä"]]]} for number in range(6_000)])

    record = worker.record_of(sent)

    assert record.message is not None
    assert len(record.message.body) > 200_000
    assert record.message.body == sent.body


def test_hostile_headers_are_kept(worker: Worker) -> None:
    hostile = {
        "x": "\u202e<script>",
        "surrogate": "\ud800",
        "deep": [[[[1]]]],
        "null": "\x00",
        "huge": 10**30,
    }
    sent = worker.send("shop.fail", headers=hostile)

    record = worker.record_of(sent)

    assert record.message is not None
    assert {name: record.message.headers[name] for name in hostile} == hostile
