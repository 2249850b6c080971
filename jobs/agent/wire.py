"""What travels from an agent to the collector: records on the queue ``jobs.dead``.

One kombu message a record; the body is UTF-8 JSON made here, the content type ``CONTENT_TYPE``,
the content encoding ``utf-8``. Readers ignore keys they do not know; ``v`` changes only when an
old reader would misread. Standard library only.

Three kinds of record:

- ``death``: a job that will not run again by itself, with its whole message.
- ``outcome``: how a replayed job ended, when that was not a death. It goes through ``jobs.dead``
  because, unlike a run record, it must never be dropped.
- ``ending``: an ending that is worth knowing and is not a death (revoked, ignored), without body.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import json
from dataclasses import dataclass, field
from typing import Any

CONTENT_TYPE = "application/vnd.jobs.record+json"
DEAD_QUEUE = "jobs.dead"
RUNS_QUEUE = "jobs.runs"

# Headers this product writes on messages. A publication id is fresh for each publication: a retry
# copies custom headers, so the stamp overwrites.
PUBLICATION_HEADER = "jobs-publication"
PUBLISHED_AT_HEADER = "jobs-published-at"
# On a replay, kept by its retries: the letter's uuid, the operation item's id, its number.
REPLAY_OF_HEADER = "jobs-replay-of"
REPLAY_ITEM_HEADER = "jobs-replay-item"
REPLAY_NUMBER_HEADER = "jobs-replay-no"
IDEMPOTENCY_HEADER = "jobs-idempotency-key"
# On a job that a rate limit held back: the moment, in seconds since the epoch, at which it may try again.
SLOT_HEADER = "jobs-slot"
# On a copy of an attempt that waits for the next one, which was sent: the number of that.
AWAITED_HEADER = "jobs-awaited-attempt"
# "3:<publication id>" on a copy that an agent put back on a broker that keeps no count of deliveries.
# It counts for that publication only.
DELIVERIES_HEADER = "jobs-deliveries"


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message as the worker held it before it was acknowledged."""

    body: bytes
    content_type: str | None
    content_encoding: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]
    exchange: str
    routing_key: str
    # The queue it was taken from, as far as the worker can tell.
    queue: str


@dataclass(frozen=True, slots=True)
class WireError:
    """An error as text; nothing is ever unpickled. ``type`` is "module.Name"."""

    type: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Record:
    """One record. Times are seconds since the epoch, UTC.

    ``reason`` is a dead letter reason for a death; for an outcome "done", "ignored", "revoked" or
    "terminated"; for an ending "revoked", "terminated" or "ignored". ``parameters`` are the names of the task's
    positional parameters where the worker knows them, without ``self``.
    """

    kind: str
    reason: str
    publication_id: str
    attempt: int
    at: float
    task: str
    task_id: str
    worker: str
    boot_id: str
    root_id: str = ""
    parent_id: str = ""
    published_at: float | None = None
    started_at: float | None = None
    message: WireMessage | None = None
    error: WireError | None = None
    parameters: list[str] | None = None
    replay_of: str = ""
    replay_item: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


def encode(record: Record) -> bytes:
    """Write a record as bytes. Any value a header can carry has a form; what has none becomes its repr."""
    values: dict[str, Any] = {"v": 1}
    for name in _RECORD_FIELDS:
        values[name] = getattr(record, name)
    if record.message is not None:
        message = {name: getattr(record.message, name) for name in _MESSAGE_FIELDS}
        message["body"] = base64.b64encode(record.message.body).decode("ascii")
        values["message"] = message
    if record.error is not None:
        values["error"] = {name: getattr(record.error, name) for name in _ERROR_FIELDS}
    try:
        # Only what JSON has no form for is handed to to_json_value: an agent encodes in the worker's loop.
        return _ENCODER.encode(values).encode("ascii")
    except TypeError:
        # A dictionary with keys that JSON does not take.
        return _ENCODER.encode(to_json_value(values)).encode("ascii")


def decode(data: bytes | str) -> Record:
    """Read a record.

    Raises:
        ValueError: when the bytes are not a record; says what is wrong.
    """
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError(f"a record is a JSON object, this is {type(values).__name__}")
    if values.get("v") != 1:
        raise ValueError(f"record version {values.get('v')!r} is not known, only 1 is")
    fields = {name: value for name, value in values.items() if name in _RECORD_FIELDS}
    try:
        if fields.get("message") is not None:
            message = dict(fields["message"])
            message["body"] = base64.b64decode(message["body"], validate=True)
            fields["message"] = WireMessage(**message)
        if fields.get("error") is not None:
            fields["error"] = WireError(**fields["error"])
        return Record(**fields)
    except (TypeError, KeyError) as error:
        raise ValueError(f"record lacks or misnames a part: {error}") from error


_RECORD_FIELDS = tuple(item.name for item in dataclasses.fields(Record))
_MESSAGE_FIELDS = tuple(item.name for item in dataclasses.fields(WireMessage))
_ERROR_FIELDS = tuple(item.name for item in dataclasses.fields(WireError))


def to_json_value(value: Any) -> Any:
    """Turn a header value into JSON; bytes and times become tagged objects that from_json_value reads."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"__bytes__": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, datetime.datetime):
        return {"__datetime__": value.isoformat()}
    if isinstance(value, dict):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    return {"__repr__": repr(value)}


def from_json_value(value: Any) -> Any:
    """Turn what to_json_value wrote back into the header value."""
    if isinstance(value, dict):
        try:
            if value.keys() == {"__bytes__"}:
                return base64.b64decode(value["__bytes__"], validate=True)
            if value.keys() == {"__datetime__"}:
                return datetime.datetime.fromisoformat(value["__datetime__"])
        except (ValueError, TypeError):
            # A header that only looks like one of ours; anybody may send it.
            return dict(value)
        if value.keys() == {"__repr__"}:
            return value["__repr__"]
        return {key: from_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    return value


_ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), default=to_json_value)
