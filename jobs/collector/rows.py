"""A record → the columns of a letter and of a death, fit for either database."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.agent.wire import IDEMPOTENCY_HEADER, Record, WireMessage
from jobs.core import arguments
from jobs.core.cleaning import clean_json, clean_name, clean_text
from jobs.core.fingerprint import fingerprint, title
from jobs.core.words import LetterState, Reason

ERROR_LENGTH = 2_000
# An agent sends 64 KiB at most; what else writes records may not.
TRACEBACK_LENGTH = 256 * 1024
# A clock that is further ahead than this is wrong: the letter would stay first in every list.
CLOCK_TOLERANCE = timedelta(minutes=5)
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_NO_MESSAGE = "No copy of its message was kept, so there is nothing to send."
_NO_BODY = "Its message has no body, so there is nothing to send."
_LOST_MESSAGE = "Its message was lost with its worker, so there is nothing to send."
_NO_JOB = "It is a record that could not be read, not a job."
_NO_QUEUE = "The queue it came from is not known, and its message is broken."


@dataclass(slots=True)
class Entry:
    """A death that is about to be written."""

    record: Record
    publication_id: str
    attempt: int
    died_at: datetime
    reason: str
    task: str
    error_type: str
    error: str
    traceback: str
    worker: str
    fingerprint: str

    @property
    def key(self) -> tuple[str, int]:
        """What makes it one death, however often its record comes."""
        return self.publication_id, self.attempt

    @property
    def title(self) -> str:
        """What its group is called, if it is the first of it."""
        return title(self.error_type, self.error)


def entry(record: Record, *, now: datetime) -> Entry:
    """Clean what every death needs."""
    error = record.error
    error_type = clean_name(error.type.removeprefix("builtins.")) if error is not None else ""
    message = clean_text(error.message, limit=ERROR_LENGTH) if error is not None else ""
    traceback = clean_text(error.traceback, limit=TRACEBACK_LENGTH) if error is not None else ""
    task = clean_name(record.task)
    return Entry(
        record=record,
        publication_id=clean_name(record.publication_id),
        attempt=record.attempt,
        died_at=moment(record.at, now=now) or now,
        reason=str(record.reason),
        task=task,
        error_type=error_type,
        error=message,
        traceback=traceback,
        worker=clean_name(record.worker),
        fingerprint=fingerprint(
            task=task, reason=record.reason, error_type=error_type, error=message, traceback=traceback
        ),
    )


def moment(seconds: float | None, *, now: datetime) -> datetime | None:
    """Return a time that a job can have had; None when there is none or the clock that wrote it is wrong."""
    if seconds is None:
        return None
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at if _EARLIEST <= at <= now + CLOCK_TOLERANCE else None


def new_letter(
    entry: Entry,
    *,
    group_id: int,
    now: datetime,
    masked_keys: tuple[str, ...],
    parameters: list[str] | None,
    letter_id: uuid.UUID,
) -> dict[str, Any]:
    """Return the columns of the letter of a first death; ``parameters`` name its positional arguments.

    Its message is a row of its own, see ``new_message``.
    """
    record = entry.record
    message = record.message
    shown, searched = arguments.summarise(_bound_arguments(record, parameters), masked_keys)
    queue = clean_name(message.queue) if message is not None else ""
    return {
        "uuid": letter_id,
        "state": LetterState.DEAD.value,
        "state_changed_at": now,
        "reason": entry.reason,
        "group_id": group_id,
        "error_type": entry.error_type,
        "error": entry.error,
        "worker": entry.worker,
        "deaths": 1,
        "replays": 0,
        "first_died_at": entry.died_at,
        "died_at": entry.died_at,
        "published_at": moment(record.published_at, now=now),
        "unreplayable": _why_unreplayable(record, queue),
        "arguments_preview": shown,
        "arguments_text": searched,
        "parameters": parameters,
        "task": entry.task,
        "task_id": clean_name(record.task_id),
        "root_id": clean_name(record.root_id),
        "parent_id": clean_name(record.parent_id),
        "queue": queue,
        **_routing(message),
    }


def new_message(entry: Entry, *, letter_id: int) -> dict[str, Any]:
    """Return the columns of the message of a new letter; empty ones when no copy was kept."""
    message = entry.record.message
    return {
        "letter_id": letter_id,
        "body": b"" if message is None else message.body,
        "headers": {} if message is None else message.headers,
        "properties": {} if message is None else message.properties,
    }


def new_death(entry: Entry, *, letter_id: int, item_id: int | None, now: datetime) -> dict[str, Any]:
    """Return the columns of the death."""
    record = entry.record
    return {
        "letter_id": letter_id,
        "publication_id": entry.publication_id,
        "attempt": entry.attempt,
        "reason": entry.reason,
        "task_id": clean_name(record.task_id),
        "error_type": entry.error_type,
        "error": entry.error,
        "traceback": entry.traceback,
        "worker": entry.worker,
        "boot_id": clean_name(record.boot_id, limit=64),
        "published_at": moment(record.published_at, now=now),
        "started_at": moment(record.started_at, now=now),
        "died_at": entry.died_at,
        "details": clean_json(record.details),
        "item_id": item_id,
    }


def _routing(message: WireMessage | None) -> dict[str, Any]:
    if message is None:
        message = WireMessage(b"", None, None, {}, {}, "", "", "")
    priority = message.properties.get("priority")
    key = message.headers.get(IDEMPOTENCY_HEADER)
    return {
        "content_type": clean_name(message.content_type or ""),
        "content_encoding": clean_name(message.content_encoding or ""),
        "exchange": clean_name(message.exchange),
        "routing_key": clean_name(message.routing_key),
        "priority": priority if type(priority) is int and abs(priority) < 2**15 else None,
        "idempotency_key": clean_name(key) if isinstance(key, str) else "",
    }


def _bound_arguments(record: Record, parameters: list[str] | None) -> dict[str, Any]:
    message = record.message
    if message is None:
        return {}
    read = arguments.read(message.body, message.content_type, message.content_encoding, message.headers)
    return arguments.bind(parameters, read.args, read.kwargs)


def _why_unreplayable(record: Record, queue: str) -> str:
    if record.message is None:
        return _NO_MESSAGE
    if not record.message.body:
        return _LOST_MESSAGE if record.reason == Reason.WORKER_LOST else _NO_BODY
    if queue:
        return ""
    if record.reason == Reason.MALFORMED and not record.task:
        return _NO_JOB
    return _NO_QUEUE if record.reason in (Reason.MALFORMED, Reason.UNDECODABLE) else ""
