"""Text from messages, made fit for a database column and a page.

PostgreSQL refuses NUL, UTF-8 refuses lone surrogates, and a terminal obeys control characters.
Each is replaced by U+FFFD, so that the length stays and one sees that something was there.
"""

from __future__ import annotations

import hashlib
import re

NAME_LENGTH = 255

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
_CONTROLS_BUT_LINES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_HASH_LENGTH = 12


def clean_name(text: str, *, limit: int = NAME_LENGTH) -> str:
    """Return ``text`` on one line of at most ``limit`` characters.

    A longer one is cut and ends in a hash of the whole, so that two names that differ only
    after the cut stay different.
    """
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
    """Return ``text`` with its lines, at most about ``limit`` characters.

    The middle of a longer one is left out and its length said: of a traceback the end names the
    error and the place, the start says who called.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > limit:
        head = limit // 4
        tail = limit - head
        left_out = len(text) - head - tail
        text = f"{text[:head]}\n… {left_out:,} characters left out …\n{text[-tail:]}"
    return _CONTROLS_BUT_LINES.sub("\ufffd", text)
