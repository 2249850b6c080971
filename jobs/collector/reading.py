"""What came out of ``jobs.dead`` → a record, whatever it is. Nothing is thrown away."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from jobs.agent import wire
from jobs.agent.wire import Record, WireError, WireMessage
from jobs.broker.inbox import Taken
from jobs.core.cleaning import clean_name
from jobs.core.signatures import MAX_PARAMETERS
from jobs.core.words import Reason

KINDS = frozenset({"death", "outcome", "ending"})
OUTCOMES = frozenset({"done", "ignored", "revoked", "terminated"})
UNREADABLE_ERROR = "UnreadableRecord"
# No library nests a message's headers deeper. What walks through them later, a page or an export,
# is recursive, so a deeper one is kept as bytes instead.
MAX_DEPTH = 100
_TEXTS = (
    "kind",
    "reason",
    "publication_id",
    "task",
    "task_id",
    "worker",
    "boot_id",
    "root_id",
    "parent_id",
    "replay_of",
)
_MESSAGE_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("exchange", (str,)),
    ("routing_key", (str,)),
    ("queue", (str,)),
    ("headers", (dict,)),
    ("properties", (dict,)),
    ("content_type", (str, type(None))),
    ("content_encoding", (str, type(None))),
)
_LARGEST = 1e300
_REASONS = frozenset(reason.value for reason in Reason)
_BROKER_WORDS = {
    "rejected": "It was rejected without being queued again.",
    "expired": "It waited longer than its message or queue allows.",
    "maxlen": "Its queue was full.",
    "delivery_limit": "It was delivered as often as its queue allows.",
}


def read(taken: Taken, *, now: datetime) -> Record:
    """Return the record in a message: an agent's, one made of a broker's dead letter, or one that holds it whole."""
    if taken.problem:
        return unreadable(taken, taken.problem, now=now)
    if taken.content_type == wire.CONTENT_TYPE:
        try:
            return checked(wire.decode(taken.body))
        except (ValueError, RecursionError) as error:
            return unreadable(taken, str(error), now=now)
    if is_too_deep(taken.headers) or is_too_deep(taken.properties):
        return unreadable(taken, f"its headers are nested deeper than {MAX_DEPTH} levels", now=now)
    if "x-death" in taken.headers or "task" in taken.headers:
        return _from_broker(taken, now=now)
    kind = taken.content_type or "of no known type"
    return unreadable(taken, f"its content type is {kind}, and it is no job either", now=now)


def unreadable(taken: Taken, problem: str, *, now: datetime) -> Record:
    """Make a death of what could not be read; its message's body is all of it.

    The same message is the same death: a redelivery adds none.
    """
    return Record(
        kind="death",
        reason=Reason.MALFORMED,
        publication_id=f"unreadable:{_digest(taken)[:40]}",
        attempt=0,
        at=now.timestamp(),
        task="",
        task_id="",
        worker="",
        boot_id="",
        message=WireMessage(
            body=taken.body,
            content_type=taken.content_type,
            content_encoding=taken.content_encoding,
            headers=_json_of(taken.headers),
            properties=_json_of(taken.properties),
            exchange="",
            routing_key="",
            queue="",
        ),
        error=WireError(UNREADABLE_ERROR, f"A record on {wire.DEAD_QUEUE} could not be read: {problem}", ""),
    )


def checked(record: Record) -> Record:
    """Return the record with every field of the type it must have.

    Raises:
        ValueError: naming the field that has another; what can be left out is left out instead.
    """
    for name in _TEXTS:
        if not isinstance(getattr(record, name), str):
            raise ValueError(f"{name} is not text")
    if record.kind not in KINDS:
        raise ValueError(f"its kind is {record.kind!r}, which this release does not know")
    if not record.publication_id:
        raise ValueError("publication_id is empty")
    if not _is_number(record.at):
        raise ValueError("at is not a number of seconds")
    if record.kind == "outcome" and record.reason not in OUTCOMES:
        raise ValueError(f"the outcome {record.reason!r} is not known")
    details = record.details if isinstance(record.details, dict) else {}
    reason = record.reason
    if record.kind == "death" and reason not in _REASONS:
        # From a newer agent: the letter must not be lost for a word.
        details, reason = {**details, "reason": reason}, Reason.FAILED
    return dataclasses.replace(
        record,
        reason=reason,
        attempt=_whole(record.attempt) or 0,
        published_at=record.published_at if _is_number(record.published_at) else None,
        started_at=record.started_at if _is_number(record.started_at) else None,
        message=_checked_message(record.message),
        error=_checked_error(record.error),
        parameters=_parameter_names(record.parameters),
        replay_item=_whole(record.replay_item),
        details=details,
    )


def _checked_message(message: WireMessage | None) -> WireMessage | None:
    if message is None:
        return None
    for name, kinds in _MESSAGE_KINDS:
        if not isinstance(getattr(message, name), kinds):
            raise ValueError(f"the message's {name} has the wrong type")
    for name in ("headers", "properties"):
        if is_too_deep(getattr(message, name)):
            raise ValueError(f"the message's {name} are nested deeper than {MAX_DEPTH} levels")
    return message


def _checked_error(error: WireError | None) -> WireError | None:
    if error is not None and not all(
        isinstance(part, str) for part in (error.type, error.message, error.traceback)
    ):
        raise ValueError("a part of the error is not text")
    return error


def is_too_deep(value: Any) -> bool:
    """Say whether JSON nests deeper than MAX_DEPTH, without nesting itself."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for holder in level
            if isinstance(holder, (dict, list, tuple))
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list, tuple))
        ]
        if not level:
            return False
    return True


def _json_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return headers as JSON; of a value that nests too deep it is only said that there was one."""
    return {
        str(name): f"(nested deeper than {MAX_DEPTH} levels)"
        if is_too_deep(value)
        else wire.to_json_value(value)
        for name, value in values.items()
    }


def _parameter_names(value: Any) -> list[str] | None:
    """Return the names as they may be shown and compared; None when they are not those of a function."""
    if not isinstance(value, list) or len(value) > MAX_PARAMETERS:
        return None
    names = [clean_name(item) for item in value if isinstance(item, str)]
    return names if len(set(names)) == len(value) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**31 else None


def _is_number(value: Any) -> bool:
    # Compared, not converted: JSON has whole numbers that no float holds.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST


def _from_broker(taken: Taken, *, now: datetime) -> Record:
    """Make a death of a job that RabbitMQ dropped into its dead letter exchange."""
    headers = taken.headers
    x_death = headers.get("x-death")
    newest = x_death[0] if isinstance(x_death, list) and x_death and isinstance(x_death[0], dict) else {}
    cause = _text(newest.get("reason"))
    queue = _text(newest.get("queue")) or _text(headers.get("x-first-death-queue"))
    keys = newest.get("routing-keys")
    routing_key = _text(keys[0]) if isinstance(keys, list) and keys else ""
    died_at = newest.get("time")
    if isinstance(died_at, datetime):
        died_at = (died_at if died_at.tzinfo else died_at.replace(tzinfo=UTC)).timestamp()
    at = float(died_at) if _is_number(died_at) and died_at is not None else now.timestamp()
    count = _whole(newest.get("count")) or 0
    task_id = _text(headers.get("id"))
    delivery = f"{task_id or _digest(taken)[:32]}:{queue}:{at:.0f}:{count}"
    published_at = headers.get(wire.PUBLISHED_AT_HEADER)
    words = _BROKER_WORDS.get(cause, "")
    found = f"The broker moved it out of {queue}" if queue else f"It was found on {wire.DEAD_QUEUE}"
    return Record(
        kind="death",
        reason=Reason.BROKER,
        publication_id=_text(headers.get(wire.PUBLICATION_HEADER)) or f"broker:{delivery}",
        attempt=_whole(headers.get("retries")) or 0,
        at=at,
        task=_text(headers.get("task")),
        task_id=task_id,
        worker="",
        boot_id="",
        root_id=_text(headers.get("root_id")),
        parent_id=_text(headers.get("parent_id")),
        published_at=published_at if _is_number(published_at) else None,
        message=WireMessage(
            body=taken.body,
            content_type=taken.content_type,
            content_encoding=taken.content_encoding,
            headers=wire.to_json_value(headers),
            properties=wire.to_json_value(taken.properties),
            exchange=_text(newest.get("exchange")),
            routing_key=routing_key,
            queue=queue,
        ),
        error=WireError(cause or Reason.BROKER, f"{found}. {words}".strip(), ""),
        replay_of=_text(headers.get(wire.REPLAY_OF_HEADER)),
        replay_item=_whole(headers.get(wire.REPLAY_ITEM_HEADER)),
        details={"x_death": wire.to_json_value(x_death)} if x_death else {},
    )


def _digest(taken: Taken) -> str:
    """Return what tells one message from another with the same body, and is the same when it comes again."""
    found = hashlib.sha256(taken.body)
    # Where and how often it was delivered is told anew each time.
    properties = {name: value for name, value in taken.properties.items() if name != "delivery_info"}
    for values in (taken.headers, properties):
        found.update(json.dumps(_json_of(values), sort_keys=True, separators=(",", ":")).encode())
    return found.hexdigest()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
