"""The body of a message as kombu would put it on the wire, made at the moment it is enqueued.

An argument that cannot be serialised fails there, where its line of code is, and not in the relay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kombu.compression import compress
from kombu.serialization import dumps

from jobs.errors import PayloadTooLarge


@dataclass(frozen=True, slots=True)
class Content:
    """A body in bytes; ``compression`` is the value of the header of that name, None when there is none."""

    body: bytes
    content_type: str
    content_encoding: str
    compression: str | None = None


def encode(
    body: Any,
    *,
    serializer: str | None = None,
    compression: str | None = None,
    content_type: str | None = None,
    content_encoding: str | None = None,
) -> Content:
    """Serialise and compress as ``kombu.Producer._prepare`` does, byte for byte.

    With a content type the body is taken as serialised already.

    Raises:
        EncodeError: kombu's, when the serializer has no form for a value.
        TypeError: when a body that is said to be serialised is neither text nor bytes.
    """
    if not content_type:
        content_type, content_encoding, body = dumps(body, serializer=serializer)
    elif isinstance(body, str):
        content_encoding = content_encoding or "utf-8"
        body = body.encode(content_encoding)
    elif not content_encoding:
        content_encoding = "binary"
    header = None
    if compression:
        body, header = compress(body, compression)
    if isinstance(body, str):
        # kombu's own form of it on every transport.
        body = body.encode("utf-8")
    elif not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"Cannot send a body of type {type(body).__name__} as {content_type}: with a content type it has to"
            " be serialised already. Pass text or bytes, or leave the content type out."
        )
    return Content(bytes(body), str(content_type), str(content_encoding or "binary"), header)


def check_size(size_bytes: int, *, limit_bytes: int | None, task: str) -> None:
    """Refuse a body above the limit; None is no limit.

    Raises:
        PayloadTooLarge: with the size, the limit and what to do.
    """
    if limit_bytes is not None and size_bytes > limit_bytes:
        raise PayloadTooLarge(
            f"Cannot enqueue {task or 'the job'}: its arguments are {size_bytes:,} bytes, and its limit is"
            f" {limit_bytes:,} (payload_limit_bytes). Store the data and pass its id; nothing was sent."
        )
