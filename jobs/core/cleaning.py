"""Text from messages, made fit for a database column and a page.

PostgreSQL refuses NUL, UTF-8 refuses lone surrogates, and a terminal obeys control characters.
Each is replaced by U+FFFD, so that the length stays and one sees that something was there.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

NAME_LENGTH = 255

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_CONTROLS_BUT_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TURNS = re.compile("[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HASH_LENGTH = 12


def clean_name(text: str, *, limit: int = NAME_LENGTH) -> str:
    """Return ``text`` on one line of at most ``limit`` characters.

    A longer one is cut and ends in a hash of the whole, so that two names that differ only
    after the cut stay different.
    """
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    if len(text) > limit:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
        text = f"{text[: limit - _HASH_LENGTH - 1]}…{digest}"
    return _CONTROLS.sub("\ufffd", text)


def clean_line(text: str, *, limit: int) -> str:
    """Return ``text`` on one line of at most ``limit`` characters, an ellipsis where it is cut."""
    text = " ".join(text[: limit * 2].split())
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return _CONTROLS.sub("\ufffd", text)


def clean_text(text: str, *, limit: int) -> str:
    """Return ``text`` with its lines, at most ``limit`` characters.

    The middle of a longer one is left out and its length said: of a traceback the end names the
    error and the place, the start says who called.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > limit:
        # Room for the note, whose number has at most 13 digits and signs.
        room = max(limit - 40, 2)
        head, tail = room // 4, room - room // 4
        text = f"{text[:head]}\n… {len(text) - room:,} characters left out …\n{text[-tail:]}"[:limit]
    return _CONTROLS_BUT_LINES.sub("\ufffd", text)


def for_terminal(text: str) -> str:
    """Return clean text without what turns a terminal's line around: marks, overrides and isolates."""
    return text if text.isascii() else _TURNS.sub("\ufffd", text)


def clean_json(value: Any, *, depth: int = 20) -> Any:
    """Return ``value`` as JSON that PostgreSQL takes: clean strings, no NaN, no depth beyond ``depth``."""
    if isinstance(value, str):
        return clean_text(value, limit=10_000)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        # Beyond this JSON readers round; NaN and infinity are no JSON at all.
        return value if abs(value) < 2**63 else clean_text(repr(value)[:100], limit=100)
    if depth <= 0:
        return "…"
    if isinstance(value, dict):
        return {clean_name(str(key)): clean_json(item, depth=depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_json(item, depth=depth - 1) for item in value]
    return clean_text(repr(value), limit=10_000)
