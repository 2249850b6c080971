"""Looks at messages that wait, and leaves them where they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from jobs.agent.wire import PUBLISHED_AT_HEADER
from jobs.broker import connect
from jobs.broker.inbox import Taken
from jobs.broker.peeking import waiting
from jobs.core.cleaning import clean_line, clean_name
from jobs.errors import QueueRefused
from jobs.queues.archiving import names_of, problem_of

MOST_LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that waits, as it lies there; what it does not say is "" or None. Arguments are not masked.

    ``problem`` says why no worker could run it; then ``body`` may be all of it. ``byte_size`` is of the body.
    """

    task: str
    task_id: str
    published_at: datetime | None
    eta: datetime | None
    priority: int | None
    headers: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    content_type: str = ""
    content_encoding: str = ""
    byte_size: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Peek:
    """The oldest messages of a queue, and how many wait in all; ``left_out`` were too large to be fetched."""

    queue: str
    total: int
    messages: list[WaitingMessage]
    left_out: int = 0


def read_waiting(queue: str, *, limit: int, timeout_seconds: float) -> Peek:
    """Return the messages that wait, in the order in which workers take them: by priority, then the oldest.

    Raises:
        QueueRefused: elsewhere than on Redis.
        BrokerUnavailable: when the broker does not answer.
    """
    with connect(timeout_seconds=timeout_seconds) as connection:
        found = waiting(connection, queue, limit=limit)
    if found is None:
        raise QueueRefused(
            f"Cannot look into the queue {clean_line(queue, limit=120)} without taking its messages: this broker shows"
            " one only by delivering it, which counts towards its delivery limit and marks it as delivered before."
            " Use the management page of the broker, or purge the messages and restore what is to run."
        )
    return Peek(
        queue=queue,
        total=found.total,
        messages=[_message(taken) for taken in found.messages],
        left_out=found.left_out,
    )


def _message(taken: Taken) -> WaitingMessage:
    names = names_of(taken)
    priority = taken.properties.get("priority")
    return WaitingMessage(
        task=clean_name(_text(names.get("task"))),
        task_id=clean_name(_text(names.get("id"))),
        published_at=_moment(taken.headers.get(PUBLISHED_AT_HEADER)),
        eta=_moment(names.get("eta")),
        priority=priority if isinstance(priority, int) and not isinstance(priority, bool) else None,
        headers=taken.headers,
        body=taken.body,
        content_type=clean_name(taken.content_type),
        content_encoding=clean_name(taken.content_encoding),
        byte_size=len(taken.body),
        problem=clean_line(problem_of(taken), limit=300),
    )


def _moment(value: Any) -> datetime | None:
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
