"""A message as facts: routing, times, limits, callbacks, headers. Everything in it is hostile."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from console.presenters import json_view, masks
from console.presenters.arguments_view import Holder, content_of
from console.presenters.letter_life import published_by
from console.presenters.plain import count_of, duration, short_task, visible
from jobs.core import masking
from jobs.core.words import OutboxState, Reason
from jobs.models import OutboxMessage

_VALUE_LIMIT = 300
_HEADER_LIMIT = 100
_CALLBACK_LIMIT = 5


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and its value; ``at`` is shown as a relative time before the text."""

    label: str
    text: str = ""
    is_code: bool = False
    at: datetime | None = None
    is_quiet: bool = False


def facts(holder: Holder, embed: dict[str, Any] | None) -> list[Fact]:
    """Return what an operator asks of a message, in that order."""
    found = content_of(holder).headers
    headers = found if isinstance(found, dict) else {}
    rows = [Fact("Queue", _text(holder.queue) or "unknown", is_quiet=not holder.queue)]
    if holder.exchange or (holder.routing_key and holder.routing_key != holder.queue):
        rows.append(
            Fact(
                "Sent to",
                f"exchange {_text(holder.exchange) or '(default)'}, key {_text(holder.routing_key)}",
            )
        )
    rows.append(
        Fact(
            "Priority",
            "none" if holder.priority is None else str(holder.priority),
            is_quiet=holder.priority is None,
        )
    )
    rows.append(
        Fact(
            "Job id",
            _text(holder.task_id) or "none",
            is_code=bool(holder.task_id),
            is_quiet=not holder.task_id,
        )
    )
    rows.append(_published(holder, headers))
    rows.append(_moment("Start after", headers.get("eta")))
    rows.append(_moment("Expires", headers.get("expires")))
    key = holder.idempotency_key
    rows.append(Fact("Idempotency key", _text(key) or "none", is_code=bool(key), is_quiet=not key))
    rows.append(_limits(headers.get("timelimit")))
    rows.append(_callbacks(headers, embed))
    return rows


def header_rows(headers: Any) -> list[tuple[str, str]]:
    """Return the headers by name, masked, each value as one line of JSON; the first hundred."""
    if not isinstance(headers, dict):
        return []
    masked = masking.mask_headers(headers, masks.keys())
    rows = []
    for name, value in sorted(masked.items(), key=lambda row: str(row[0]))[:_HEADER_LIMIT]:
        if name in masking.ARGUMENT_HEADERS:
            text = "not shown: a copy of the arguments without masks"
        elif isinstance(value, str):
            text = _text(value)
        else:
            text = json_view.one_line(value, limit=_VALUE_LIMIT)
        rows.append((_text(str(name)), text))
    return rows


def tasks_of(signatures: Any) -> list[str]:
    """Return the task names of Celery signatures as they stand in a message's embed."""
    if isinstance(signatures, dict):
        signatures = [signatures]
    if not isinstance(signatures, list):
        return []
    names = []
    for signature in signatures:
        name = signature.get("task") if isinstance(signature, dict) else None
        names.append(_text(short_task(name)) if isinstance(name, str) and name else "unnamed")
    return names


def _published(holder: Holder, headers: dict[str, Any]) -> Fact:
    by = published_by(headers.get("origin"))
    if holder.published_at is None and isinstance(holder, OutboxMessage):
        when = "never" if holder.state == OutboxState.GAVE_UP else "not yet"
        return Fact("Published", f"{when}{', written ' + by if by else ''}")
    if holder.published_at is None and getattr(holder, "reason", "") == Reason.PUBLISH_FAILED:
        return Fact("Published", f"never{', written ' + by if by else ''}")
    if holder.published_at is None:
        return Fact("Published", f"time not known{', ' + by if by else ''}", is_quiet=not by)
    return Fact("Published", by, at=holder.published_at)


def _moment(label: str, value: Any) -> Fact:
    if value is None or value == "":
        return Fact(label, "none", is_quiet=True)
    if isinstance(value, str):
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return Fact(label, f"{_text(value)}, which is no time", is_code=True)
        return Fact(label, at=at if at.tzinfo else at.replace(tzinfo=UTC))
    return Fact(label, json_view.one_line(value, limit=80), is_code=True)


def _limits(value: Any) -> Fact:
    if isinstance(value, list) and len(value) == 2:
        parts = [
            f"{word} {duration(seconds)}"
            for word, seconds in (("soft", value[1]), ("hard", value[0]))
            if isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        ]
        if parts:
            return Fact("Time limits", ", ".join(parts))
    # The worker or the task may set its own.
    return Fact("Time limits", "none in the message", is_quiet=True)


def _callbacks(headers: dict[str, Any], embed: dict[str, Any] | None) -> Fact:
    if embed is None:
        return Fact("Callbacks", "not known, the body is not read", is_quiet=True)
    parts = []
    for key, words in (("callbacks", "on success"), ("errbacks", "on error")):
        if names := tasks_of(embed.get(key)):
            parts.append(f"{len(names):,} {words}: {_names(names)}")
    # Celery keeps the steps of a chain in reverse.
    if names := tasks_of(embed.get("chain"))[::-1]:
        parts.append(f"{count_of(len(names), 'more step')} of its chain: {_names(names)}")
    if names := tasks_of(embed.get("chord")):
        parts.append(f"member of a chord that ends in {names[0]}")
    elif headers.get("group"):
        parts.append("member of a group")
    return Fact("Callbacks", "; ".join(parts) or "none", is_quiet=not parts)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _CALLBACK_LIMIT:,} more" if len(names) > _CALLBACK_LIMIT else ""
    return ", ".join(names[:_CALLBACK_LIMIT]) + more


def _text(text: str) -> str:
    shown = visible(text[:_VALUE_LIMIT], keep="")
    return f"{shown}…" if len(text) > _VALUE_LIMIT else shown
