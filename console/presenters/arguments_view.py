"""The arguments of a message as a page shows them: JSON with masks, or the bytes of a body that is never loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString

from console.presenters import json_view, masks
from console.presenters.json_view import JsonView
from console.presenters.plain import byte_size, hex_lines, visible
from jobs.core import arguments
from jobs.core.arguments import Arguments
from jobs.models import DeadLetter, OutboxMessage
from jobs.models.messages import Content

HEX_LIMIT = 512
# A letter keeps its message in a table of its own, a row of the outbox is one.
Holder = DeadLetter | OutboxMessage


@dataclass(frozen=True, slots=True)
class ArgumentsView:
    """What the arguments panel shows: ``json``, or ``hex`` with the reason why it is not read."""

    size: str
    kind: str
    how: str
    json: JsonView | None
    hex: tuple[tuple[str, str, str], ...]
    hex_is_cut: bool
    why_not_read: str
    is_revealed: bool


def content_of(holder: Holder) -> Content:
    """Return what a worker was or will be given."""
    content: Content = holder.message if isinstance(holder, DeadLetter) else holder
    return content


def read(holder: Holder) -> Arguments:
    """Read a body; JSON only, nothing is ever unpickled."""
    message = content_of(holder)
    headers = message.headers if isinstance(message.headers, dict) else {}
    return arguments.read(bytes(message.body), holder.content_type, holder.content_encoding, headers)


def present(
    holder: Holder,
    content: Arguments,
    *,
    parameters: Mapping[str, Any] | None,
    masked_html: SafeString | None = None,
    is_revealed: bool = False,
) -> ArgumentsView:
    """Build the panel. With ``parameters`` of the task, positional arguments get their names."""
    body = bytes(content_of(holder).body)
    # The names at its death, which tell what is masked as well.
    names = holder.parameters if isinstance(holder, DeadLetter) else None
    size = byte_size(len(body))
    if content.error:
        kind = visible(holder.content_type[:80], keep="") or "no content type"
        return ArgumentsView(
            size=size,
            kind=kind,
            how="",
            json=None,
            hex=tuple(hex_lines(body, limit=HEX_LIMIT)),
            hex_is_cut=len(body) > HEX_LIMIT,
            why_not_read=visible(content.error, keep=""),
            is_revealed=False,
        )
    args, kwargs = list(content.args or []), dict(content.kwargs or {})
    if not is_revealed:
        args, kwargs = masks.masked_args(args, parameters, names), masks.masked_kwargs(kwargs)
    at_death = {"names": names} if names is not None else parameters
    value, how = named(args, kwargs, at_death)
    return ArgumentsView(
        size=size,
        kind="JSON",
        how=how,
        json=json_view.render(value, masked_html=masked_html),
        hex=(),
        hex_is_cut=False,
        why_not_read="",
        is_revealed=is_revealed,
    )


def named(args: list[Any], kwargs: dict[str, Any], parameters: Mapping[str, Any] | None) -> tuple[Any, str]:
    """Return one value that holds all arguments, and how to read it."""
    if not args:
        return kwargs, "" if kwargs else "none"
    names = list(parameters["names"]) if parameters is not None else []
    if len(args) <= len(names) and not set(names[: len(args)]) & kwargs.keys():
        return {**dict(zip(names, args, strict=False)), **kwargs}, "names from the worker"
    if not kwargs:
        return args, "by position"
    return {"args": args, "kwargs": kwargs}, "by position and by name"
