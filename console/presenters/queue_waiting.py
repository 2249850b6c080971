"""The oldest messages of a queue, as they wait there: masked, capped, hostile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.safestring import SafeString

from console.presenters import json_view, masks
from console.presenters.arguments_view import named
from console.presenters.plain import byte_size, hex_lines, visible
from jobs.core import arguments
from jobs.queues import actions
from jobs.queues.actions import WaitingMessage
from jobs.workers import known_parameters

SHOWN = 20
_ARGUMENTS_LIMIT = 1_200
_HEX_LIMIT = 64


@dataclass(frozen=True, slots=True)
class Message:
    """One message that waits. ``arguments`` is JSON with masks; without it ``bytes_shown`` says what lies there."""

    task: str
    task_id: str
    short_id: str
    published_at: datetime | None
    eta: datetime | None
    priority: str
    size: str
    arguments: SafeString | None
    bytes_shown: str
    problem: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a look into a queue found."""

    total: int
    messages: list[Message]
    left_out: int
    has_masked: bool


def read(queue: str) -> Waiting:
    """Look at the oldest messages of a queue.

    Raises:
        QueueRefused: when the broker cannot show them.
        BrokerUnavailable: when it does not answer.
    """
    found = actions.peek(queue, limit=SHOWN)
    parameters = known_parameters() if found.messages else {}
    messages: list[Message] = []
    has_masked = False
    for each in found.messages:
        message, is_masked = _message(each, parameters)
        messages.append(message)
        has_masked = has_masked or is_masked
    return Waiting(found.total, messages, found.left_out, has_masked)


def _message(message: WaitingMessage, known: dict[str, list[str]]) -> tuple[Message, bool]:
    content = arguments.read(message.body, message.content_type, message.content_encoding, message.headers)
    names = known.get(message.task)
    parameters: dict[str, Any] | None = None if names is None else {"names": names}
    shown: SafeString | None = None
    raw, has_masked = "", False
    if content.error or message.problem:
        raw = "\n".join(
            f"{offset}  {octets:<47}  {text}"
            for offset, octets, text in hex_lines(message.body, limit=_HEX_LIMIT)
        )
    else:
        args = masks.masked_args(list(content.args or []), parameters)
        kwargs = masks.masked_kwargs(dict(content.kwargs or {}))
        value, _ = named(args, kwargs, parameters)
        view = json_view.render(value, limit=_ARGUMENTS_LIMIT)
        shown, has_masked = view.html, view.has_masked
    task_id = message.task_id
    return (
        Message(
            task=message.task,
            task_id=task_id,
            short_id=visible(task_id[:8] if len(task_id) == 36 else task_id[:40], keep=""),
            published_at=message.published_at,
            eta=message.eta,
            priority=str(message.priority) if message.priority else "",
            size=byte_size(message.byte_size),
            arguments=shown,
            bytes_shown=raw,
            problem=f"No worker can run it: {visible(message.problem, keep='')}"
            if message.problem
            else visible(content.error, keep=""),
        ),
        has_masked,
    )
