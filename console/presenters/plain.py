"""Text from messages, made safe to read: what cannot be seen or turns a line around is written out."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from jobs.core.spans import duration as duration

# Marks, embeddings, overrides and isolates that reorder what stands around them.
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_LINE_SEPARATORS = frozenset("\u2028\u2029\x85")
_HEX_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Capped:
    """The beginning of a text and how long the whole is."""

    text: str
    shown: int
    total: int

    @property
    def is_cut(self) -> bool:
        """Whether something is missing."""
        return self.shown < self.total


def visible(text: str, *, keep: str = "\n\t") -> str:
    r"""Write control characters, direction marks and lone surrogates as escapes such as ``\u202e``.

    ``keep`` names control characters that stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if _is_plain(character, keep) else _escape(character) for character in text)


def capped(text: str, *, limit: int) -> Capped:
    """Keep the first ``limit`` characters, made visible."""
    return Capped(text=visible(text[:limit]), shown=min(limit, len(text)), total=len(text))


def capped_in_the_middle(text: str, *, limit: int) -> Capped:
    """Keep the beginning and the end, which say what began and what went wrong; one line says what is left out."""
    if len(text) <= limit:
        return Capped(text=visible(text), shown=len(text), total=len(text))
    half = limit // 2
    left_out = f"\n[… {len(text) - 2 * half:,} characters are left out here …]\n"
    return Capped(
        text=visible(text[:half]) + left_out + visible(text[-half:]), shown=2 * half, total=len(text)
    )


def hex_lines(body: bytes, *, limit: int = 1_024) -> list[tuple[str, str, str]]:
    """Return (offset, hexadecimal, printable characters) for each 16 of the first ``limit`` bytes."""
    lines = []
    for start in range(0, min(len(body), limit), _HEX_WIDTH):
        chunk = body[start : min(start + _HEX_WIDTH, limit)]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in chunk)
        lines.append((f"{start:06x}", chunk.hex(" "), printable))
    return lines


def byte_size(size: int) -> str:
    """Return a size as people read it: "412 bytes", "204.8 KB"."""
    if size < 1_000:
        return "1 byte" if size == 1 else f"{size} bytes"
    if size < 1_000_000:
        return f"{size / 1_000:.1f} KB"
    return f"{size / 1_000_000:.1f} MB"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return "1 letter", "2 letters", "4,310 letters"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def either(names: list[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    return " or ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} or {names[-1]}"


def short_task(task: str) -> str:
    """Return a task's last part, as sentences call it: "charge_card" of "shop.tasks.charge_card"."""
    return task.rsplit(".", 1)[-1] or task


def _is_plain(character: str, keep: str) -> bool:
    if character in keep:
        return True
    if character in _BIDI_CONTROLS or character in _LINE_SEPARATORS:
        return False
    return unicodedata.category(character) not in {"Cc", "Cs"}


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}"
