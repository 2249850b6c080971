"""Reads a kombu message: what to keep of it, and who it is."""

from __future__ import annotations

import hashlib
from typing import Any

from kombu.message import Message

from .wire import (
    DELIVERIES_HEADER,
    PUBLICATION_HEADER,
    PUBLISHED_AT_HEADER,
    REPLAY_ITEM_HEADER,
    REPLAY_OF_HEADER,
    WireMessage,
)

# In seconds since the epoch.
_YEAR_10000 = 253_402_300_800
# As core.cleaning.clean_name, so that a name that is cut here is the name that the collector makes of it.
NAME_LENGTH, _HASH_LENGTH = 255, 12


def headers_of(message: Message) -> dict[str, Any]:
    """Return the message's headers; empty when it has none or something else in their place."""
    return message.headers if isinstance(message.headers, dict) else {}


def raw_body(message: Message) -> bytes:
    """Return the body as the worker holds it: decompressed already, otherwise untouched."""
    body = message.body
    if isinstance(body, bytes):
        return body
    if isinstance(body, (bytearray, memoryview)):
        return bytes(body)
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    return b"" if body is None else repr(body).encode("utf-8", "surrogatepass")


def to_wire(message: Message, queue: str) -> WireMessage:
    """Return the whole message as it travels in a record."""
    delivery = message.delivery_info if isinstance(message.delivery_info, dict) else {}
    properties = message.properties if isinstance(message.properties, dict) else {}
    return WireMessage(
        body=raw_body(message),
        content_type=text_or_none(message.content_type),
        content_encoding=text_or_none(message.content_encoding),
        headers=headers_of(message),
        # AMQP carries the headers among the properties; once is enough.
        properties={name: value for name, value in properties.items() if name != "application_headers"},
        exchange=text(delivery.get("exchange")),
        routing_key=text(delivery.get("routing_key")),
        queue=queue,
    )


def publication_id(message: Message, *, task_id: str, boot_id: str) -> str:
    """Return what tells this publication from every other.

    Without the stamp of a publishing agent: the job's id, or a digest of the body where there is
    none, with the broker's tag. A tag that is text survives a redelivery (Redis); a number counts
    deliveries on one connection, so it says something within one boot only. The id alone would
    not do: applications that choose their ids use one again.
    """
    headers = headers_of(message)
    stamped = headers.get(PUBLICATION_HEADER)
    if isinstance(stamped, str) and stamped:
        return stamped
    tag = message.delivery_tag
    delivery = tag if isinstance(tag, str) else f"{boot_id[:12]}-{tag}"
    if task_id:
        return f"id:{task_id}:{delivery}"
    return f"body:{hashlib.sha256(raw_body(message)).hexdigest()[:32]}:{delivery}"


def published_at(headers: dict[str, Any]) -> float | None:
    """Return when the message was published, in seconds since the epoch, if it says so and that is a time."""
    value = headers.get(PUBLISHED_AT_HEADER)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _YEAR_10000:
        return None
    return float(value)


def replay_of(headers: dict[str, Any]) -> tuple[str, int | None]:
    """Return the replayed letter and the operation's item; ("", None) when it is no replay."""
    letter = headers.get(REPLAY_OF_HEADER)
    if not isinstance(letter, str) or not letter:
        return "", None
    return letter, whole(headers.get(REPLAY_ITEM_HEADER))


def is_redelivered(message: Message) -> bool:
    """Return whether the broker delivered it before. The header of the same name leaks into retries."""
    delivery = message.delivery_info
    return bool(isinstance(delivery, dict) and delivery.get("redelivered"))


def counted_comebacks(headers: dict[str, Any], publication: str) -> int:
    """Return how often an agent put this publication back, where the message itself carries the count."""
    value = headers.get(DELIVERIES_HEADER)
    if not isinstance(value, str):
        return 0
    count, _, counted = value.partition(":")
    return int(count) if counted == publication and count.isdecimal() else 0


def text(value: Any) -> str:
    """Return text, or "" for anything else."""
    return value if isinstance(value, str) else ""


def text_or_none(value: Any) -> str | None:
    """Return text, or None for anything else."""
    return value if isinstance(value, str) else None


def name(value: Any) -> str:
    """Return text of at most 255 characters; a longer one ends in a hash of the whole."""
    if not isinstance(value, str):
        return ""
    if len(value) <= NAME_LENGTH:
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{value[: NAME_LENGTH - _HASH_LENGTH - 1]}…{digest}"


def whole(value: Any) -> int | None:
    """Return a whole number, also one written as text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 19 else None


def header_problem(message: Message) -> str:
    """Return what is wrong with the names a worker needs, or "".

    Without this check a message with a task and no id stops the queue for every worker.
    """
    headers = headers_of(message)
    names: Any = headers
    if "task" not in headers:
        try:
            names = message.payload  # protocol 1 keeps them in the body
        except Exception:  # noqa: BLE001 (Celery decodes it again, and gives it to on_decode_error)
            return ""
        if not isinstance(names, dict) or "task" not in names:
            return ""  # no job at all: Celery gives it to on_unknown_message
        names = {**names, **headers}
    for name in ("task", "id"):
        value = names.get(name)
        if not isinstance(value, str) or not value:
            return f"{name!r} is {_shape(value)}, it must be text that is not empty"
    return ""


def body_problem(message: Message) -> str:
    """Return what is wrong with the shape of the decoded body, or "".

    Raises:
        DecodeError, ContentDisallowed: as kombu does; Celery has a route for both.
    """
    payload = message.payload
    if isinstance(payload, dict):  # protocol 1
        return _arguments_problem(payload.get("args", ()), payload.get("kwargs", {}))
    if not isinstance(payload, (list, tuple)):
        return f"the body is {_shape(payload)}, it must be [args, kwargs, embed]"
    if len(payload) != 3:
        return f"the body has {len(payload)} parts, it must be [args, kwargs, embed]"
    args, kwargs, embed = payload
    if embed is not None and not isinstance(embed, dict):
        return f"the third part of the body is {_shape(embed)}, it must be an object"
    return _arguments_problem(args, kwargs)


def _arguments_problem(args: Any, kwargs: Any) -> str:
    if not isinstance(args, (list, tuple)):
        return f"the positional arguments are {_shape(args)}, they must be a list"
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        return f"the keyword arguments are {_shape(kwargs)}, they must be an object"
    return ""


def option_problem(headers: dict[str, Any]) -> str:
    """Return which header would break the worker later, when it runs or revokes the job, or ""."""
    limits = headers.get("timelimit")
    if limits is not None and not (
        isinstance(limits, (list, tuple)) and len(limits) == 2 and all(_is_limit(each) for each in limits)
    ):
        return f"'timelimit' is {_shape(limits)}, it must be two numbers or nulls"
    shadow = headers.get("shadow")
    if shadow is not None and not isinstance(shadow, str):
        return f"'shadow' is {_shape(shadow)}, it must be text"
    stamped = headers.get("stamped_headers")
    if stamped is not None and not (
        isinstance(stamped, (list, tuple)) and all(isinstance(name, str) for name in stamped)
    ):
        return f"'stamped_headers' is {_shape(stamped)}, it must be a list of texts"
    stamps = headers.get("stamps")
    if stamps is not None and not isinstance(stamps, dict):
        return f"'stamps' is {_shape(stamps)}, it must be an object"
    retries = headers.get("retries")
    if retries is not None and whole(retries) is None:
        return f"'retries' is {_shape(retries)}, it must be a whole number"
    return ""


def _is_limit(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _shape(value: Any) -> str:
    """Return the kind of a value, never the value: it may be an argument."""
    if value is None:
        return "missing"
    if isinstance(value, (str, bytes, list, tuple, dict)) and not value:
        return f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}"
