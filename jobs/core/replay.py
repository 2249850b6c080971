"""What a message becomes when it is sent again: header, property and body rules.

The body travels byte for byte unless the operator edited the arguments or a broken chord has to be
left behind; only JSON bodies are ever opened. Nothing here unpickles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jobs.core.words import Reason

JSON_TYPES = frozenset({"application/json", "text/json"})

# What the broker or a former delivery wrote. RabbitMQ takes a copied x-death for a cycle and drops
# the message; a copied counter or redelivered flag makes a first delivery look like a later one.
# A slot was given to the attempt that a rate limit held back, and that one is over; so is the one that
# waited for its retry, as which a replay under the old id would end at once.
_DROPPED_HEADERS = frozenset(
    {"x-death", "x-delivery-count", "x-acquired-count", "redelivered", "compression"}
    | {"jobs-slot", "jobs-awaited-attempt"}
    | {f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")}
)
# Set anew for each publication (encoding, tag, routing), meant for somebody who no longer waits
# (reply_to), harmful on arrival (expiration), or checked against the sender's login (user_id).
_DROPPED_PROPERTIES = frozenset(
    {
        "body_encoding",
        "delivery_tag",
        "delivery_info",
        "priority",
        "expiration",
        "reply_to",
        "user_id",
        "content_type",
        "content_encoding",
        "application_headers",
    }
)
# The agent's names for them are in its own package, which this one may not import; a test compares.
_KEY_HEADER = "jobs-idempotency-key"
# First bytes of what kombu's compressions write. No JSON text and no pickle starts with them.
_COMPRESSED_STARTS = (b"\x78", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x5d\x00\x00", b"\x28\xb5\x2f\xfd")
_CHORD = re.compile(rb'"chord"\s*:\s*(?!\s|null)')
_REPR_LENGTH = 1024


class ReplayRefused(Exception):
    """This message cannot be sent again as asked; the text says why, as a whole sentence."""


class StoredMessage(NamedTuple):
    """A message as the dead letter store holds it."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    queue: str
    priority: int | None
    reason: str
    task_id: str


class ReplayMessage(NamedTuple):
    """A message as it is sent again; ``task_id`` is the id its job will have."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    queue: str
    priority: int | None
    task_id: str


def prepare(
    message: StoredMessage,
    *,
    new_task_id: str,
    stamp: Mapping[str, Any],
    target_queue: str = "",
    edited_arguments: Mapping[str, Any] | None = None,
    keeps_task_id: bool = False,
) -> ReplayMessage:
    """Return the message to publish.

    ``stamp`` are the headers that name this publication and the letter it replays; they replace
    those of a former replay. ``edited_arguments`` is ``{"args": […], "kwargs": {…}}``; when they differ
    from those of the message its idempotency key is left out, so that the worker makes the new one. In
    any other case the key travels unchanged.

    Raises:
        ReplayRefused: when the message cannot be sent as asked.
    """
    queue = target_queue or message.queue
    if not queue:
        raise ReplayRefused("The queue it came from is not known. Choose a queue to send it to.")
    if keeps_task_id:
        _check_id_can_be_kept(message)
    is_second_protocol = "task" in message.headers
    task_id = message.task_id if keeps_task_id else new_task_id
    body, is_other_job = message.body, False
    headers = _headers(message.headers)
    if _is_still_compressed(message):
        headers["compression"] = message.headers["compression"]
    keeps_chord = keeps_task_id and message.reason == Reason.WORKER_LOST
    if is_second_protocol:
        headers["id"] = task_id
        headers["retries"] = 0
        for name in ("eta", "expires"):
            if name in headers:
                headers[name] = None
        if edited_arguments is not None or (not keeps_chord and has_chord(message)):
            body, is_other_job = _edit_second_protocol(message, edited_arguments, keeps_chord=keeps_chord)
        if edited_arguments is not None:
            headers["argsrepr"] = _short_repr(tuple(edited_arguments["args"]))
            headers["kwargsrepr"] = _short_repr(edited_arguments["kwargs"])
    elif is_json(message.content_type):
        body, is_other_job = _edit_first_protocol(message, task_id, edited_arguments, keeps_chord=keeps_chord)
    else:
        task_id = _opaque_first_protocol(message, edited_arguments)
    if is_other_job:
        headers.pop(_KEY_HEADER, None)
    headers.update(stamp)
    properties = {
        name: value for name, value in message.properties.items() if name not in _DROPPED_PROPERTIES
    }
    if task_id:
        properties["correlation_id"] = task_id
    return ReplayMessage(
        body=body,
        content_type=message.content_type or "application/data",
        content_encoding=message.content_encoding or "binary",
        headers=headers,
        properties=properties,
        queue=queue,
        priority=message.priority,
        task_id=task_id,
    )


@lru_cache(maxsize=64)
def is_json(content_type: str) -> bool:
    """Say whether a body of this type may be opened and edited."""
    return content_type.split(";")[0].strip().lower() in JSON_TYPES


def has_chord(message: StoredMessage) -> bool:
    """Say whether a JSON body belongs to a chord whose callback waits for it.

    A quick look at the bytes decides that there is none; only a body that may have one is parsed.
    """
    if not may_have_chord(message.body, message.content_type):
        return False
    try:
        content = _load(message)
    except ReplayRefused:
        return False
    if isinstance(content, dict):
        return bool(content.get("chord"))
    return (
        isinstance(content, list)
        and len(content) == 3
        and isinstance(content[2], dict)
        and bool(content[2].get("chord"))
    )


def may_have_chord(body: bytes, content_type: str) -> bool:
    """Say whether ``has_chord`` would have to open the body."""
    return is_json(content_type) and _CHORD.search(body) is not None


def explain_mismatch(parameters: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Say why the arguments do not fit the task's parameters, or return "" when they do.

    ``parameters`` is what a worker's agent describes: ``names``, ``required`` (how many of them have
    no default), ``var_args``, ``var_kwargs``, ``kwonly``, ``kwonly_required``.
    """
    names: list[str] = list(parameters.get("names", []))
    keyword_only: list[str] = list(parameters.get("kwonly", []))
    if len(args) > len(names) and not parameters.get("var_args"):
        return f"it takes at most {len(names)} positional arguments ({', '.join(names) or 'none'}), {len(args)} were given"
    given_by_position = set(names[: len(args)])
    twice = sorted(given_by_position & kwargs.keys())
    if twice:
        return f"{twice[0]} is given twice, by position and by name"
    unknown = sorted(set(kwargs) - set(names) - set(keyword_only))
    if unknown and not parameters.get("var_kwargs"):
        return f"it has no parameter {unknown[0]} (it has {', '.join([*names, *keyword_only]) or 'none'})"
    required = names[: int(parameters.get("required", len(names)))] + list(
        parameters.get("kwonly_required", [])
    )
    missing = [name for name in required if name not in given_by_position and name not in kwargs]
    if missing:
        return f"{missing[0]} is missing"
    return ""


def _headers(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the headers without the broker's marks, and without compression: kombu decompressed the body."""
    if _DROPPED_HEADERS.isdisjoint(stored):
        return dict(stored)
    return {name: value for name, value in stored.items() if name not in _DROPPED_HEADERS}


def _is_still_compressed(message: StoredMessage) -> bool:
    """Say whether the worker could not decompress the body, so that the header still tells the truth."""
    return (
        message.reason == Reason.UNDECODABLE
        and bool(message.headers.get("compression"))
        and message.body.startswith(_COMPRESSED_STARTS)
    )


def _check_id_can_be_kept(message: StoredMessage) -> None:
    if message.reason == Reason.EXPIRED:
        raise ReplayRefused(
            "It expired, and workers discard the id of an expired job for hours. Replay it under a new id."
        )
    if not message.task_id:
        raise ReplayRefused("It has no job id to keep. Replay it under a new id.")


def _opaque_first_protocol(message: StoredMessage, edited_arguments: Mapping[str, Any] | None) -> str:
    """Return the id that the job will have: the old one, because it is inside a body that stays closed."""
    if edited_arguments is not None:
        raise ReplayRefused(_not_editable(message))
    if message.reason == Reason.EXPIRED:
        raise ReplayRefused(
            f"It expired, and the expiry is inside a body of type {message.content_type or 'unknown'}"
            " that is never opened. Publish the job again from its application."
        )
    return message.task_id


def _load(message: StoredMessage) -> Any:
    try:
        return json.loads(message.body.decode(_encoding(message)))
    except (ValueError, LookupError, RecursionError) as error:
        raise ReplayRefused(
            f"Its body says {message.content_type} and cannot be read as that ({error}). Replay it unedited."
        ) from error


def _dump(message: StoredMessage, content: Any) -> bytes:
    # ASCII escapes keep lone surrogates, and are the same text in every encoding that JSON travels in.
    try:
        return json.dumps(content, ensure_ascii=True).encode(_encoding(message))
    except (ValueError, LookupError, RecursionError) as error:
        raise ReplayRefused(
            f"Its body cannot be written in the encoding {message.content_encoding} ({error})."
        ) from error


def _encoding(message: StoredMessage) -> str:
    encoding = message.content_encoding.lower()
    return "utf-8" if encoding in {"", "binary", "us-ascii", "ascii-8bit"} else encoding


def _edit_second_protocol(
    message: StoredMessage, edited_arguments: Mapping[str, Any] | None, *, keeps_chord: bool
) -> tuple[bytes, bool]:
    """Return the body, and whether its arguments are others now."""
    if not is_json(message.content_type):
        raise ReplayRefused(_not_editable(message))
    content = _load(message)
    if not (isinstance(content, list) and len(content) == 3):
        raise ReplayRefused("Its body is not [args, kwargs, embed], so arguments have no place in it.")
    args, kwargs, embed = content
    is_other_job = _differ(args, kwargs, edited_arguments)
    if edited_arguments is not None:
        args, kwargs = edited_arguments["args"], edited_arguments["kwargs"]
    if not keeps_chord and isinstance(embed, dict) and embed.get("chord"):
        embed = {**embed, "chord": None}
    return _dump(message, [args, kwargs, embed]), is_other_job


def _edit_first_protocol(
    message: StoredMessage, task_id: str, edited_arguments: Mapping[str, Any] | None, *, keeps_chord: bool
) -> tuple[bytes, bool]:
    """Edit the id, retries, ETA and expiry where the first protocol keeps them; leave what is no job as it is.

    Return the body, and whether its arguments are others now.
    """
    try:
        content = _load(message)
    except ReplayRefused:
        if edited_arguments is not None:
            raise
        return message.body, False
    if not isinstance(content, dict) or "task" not in content:
        if edited_arguments is not None:
            raise ReplayRefused("Its body is not a job, so arguments have no place in it.")
        return message.body, False
    is_other_job = _differ(content.get("args"), content.get("kwargs"), edited_arguments)
    content = {**content, "id": task_id, "retries": 0, "eta": None, "expires": None}
    if edited_arguments is not None:
        content |= {"args": edited_arguments["args"], "kwargs": edited_arguments["kwargs"]}
    if not keeps_chord and content.get("chord"):
        content["chord"] = None
    return _dump(message, content), is_other_job


def _differ(args: Any, kwargs: Any, edited_arguments: Mapping[str, Any] | None) -> bool:
    """Say whether edited arguments are others. As text: to Python, 1, 1.0 and True are one, and no key's text is."""
    if edited_arguments is None:
        return False
    before, after = (
        json.dumps([list(one or ()), dict(other or {})], sort_keys=True)
        for one, other in ((args, kwargs), (edited_arguments["args"], edited_arguments["kwargs"]))
    )
    return before != after


def _not_editable(message: StoredMessage) -> str:
    return (
        f"Its body is {message.content_type or 'of an unknown type'}, and only application/json can be edited."
        " Replay it unedited."
    )


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _REPR_LENGTH else text[: _REPR_LENGTH - 3] + "..."
