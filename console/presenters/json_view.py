"""JSON as a page shows it: indented, coloured by kind, capped, with masked values as boxes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

from console.presenters.plain import visible
from jobs.core.masking import MASKED

# About 300 lines; the whole value is in the export.
TEXT_LIMIT = 12_000
STRING_LIMIT = 2_000
DEPTH_LIMIT = 40
_INDENT = "  "
_CLASSES = {"key": "json-key", "string": "json-string", "number": "json-number", "literal": "json-word"}


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of JSON text: punctuation, key, string, number, literal, masked or cut."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class JsonView:
    """Rendered JSON. ``has_masked`` tells whether there is something to reveal."""

    html: SafeString
    is_cut: bool
    has_masked: bool


def render(value: Any, *, masked_html: SafeString | None = None, limit: int = TEXT_LIMIT) -> JsonView:
    """Render a value; ``masked_html`` stands where a masked value is."""
    box = masked_html if masked_html is not None else format_html('<span class="masked">{}</span>', "masked")
    pieces: list[str] = []
    length = 0
    is_cut = has_masked = False
    for token in tokens(value):
        length += len(token.text)
        if length > limit:
            pieces.append('<span class="dim">…</span>')
            is_cut = True
            break
        if token.kind == "masked":
            has_masked = True
            pieces.append(box)
        elif token.kind == "cut":
            is_cut = True
            pieces.append(f'<span class="dim">{escape(token.text)}</span>')
        elif token.kind in _CLASSES:
            pieces.append(f'<span class="{_CLASSES[token.kind]}">{escape(token.text)}</span>')
        else:
            pieces.append(escape(token.text))
    # Every piece was escaped above or is a constant.
    return JsonView(html=mark_safe("".join(pieces)), is_cut=is_cut, has_masked=has_masked)  # noqa: S308


def plain_text(value: Any) -> str:
    """Return the value as indented JSON for an editor, exactly: every string survives a round trip."""
    return json.dumps(value, indent=2, ensure_ascii=False).translate(_UNSAFE_IN_EDITOR)


def one_line(value: Any, *, limit: int = 200) -> str:
    """Return the value as one line of readable JSON, cut at ``limit`` characters."""
    pieces: list[str] = []
    length = 0
    for token in tokens(value, indent=""):
        pieces.append("masked" if token.kind == "masked" else token.text)
        length += len(pieces[-1])
        if length > limit:
            return "".join(pieces)[:limit] + "…"
    return "".join(pieces)


def tokens(value: Any, *, indent: str = _INDENT, depth: int = 0) -> Iterator[Token]:
    """Yield the pieces of a value in reading order."""
    if value is MASKED:
        yield Token("masked", "masked")
    elif isinstance(value, dict):
        yield from _container("{", "}", value.items(), indent, depth)
    elif isinstance(value, (list, tuple)):
        yield from _container("[", "]", ((None, item) for item in value), indent, depth)
    elif isinstance(value, str):
        yield from _string(value)
    elif value is None or isinstance(value, bool):
        yield Token("literal", json.dumps(value))
    elif isinstance(value, (int, float)):
        yield Token("number", _number(value))
    else:
        yield Token("string", visible(repr(value)[:STRING_LIMIT]))


def _container(opening: str, closing: str, items: Any, indent: str, depth: int) -> Iterator[Token]:
    if depth >= DEPTH_LIMIT:
        yield Token("cut", f"{opening}… nested deeper than {DEPTH_LIMIT} levels …{closing}")
        return
    newline = "\n" if indent else ""
    yield Token("punctuation", opening)
    is_first = True
    for key, item in items:
        separator = "" if is_first else "," + ("" if indent else " ")
        yield Token("punctuation", separator + newline + indent * (depth + 1))
        if key is not None:
            yield Token("key", _quoted(str(key)[:STRING_LIMIT]))
            yield Token("punctuation", ": ")
        yield from tokens(item, indent=indent, depth=depth + 1)
        is_first = False
    yield Token("punctuation", closing if is_first else newline + indent * depth + closing)


def _string(value: str) -> Iterator[Token]:
    yield Token("string", _quoted(value[:STRING_LIMIT]))
    if len(value) > STRING_LIMIT:
        yield Token("cut", f" … {len(value) - STRING_LIMIT:,} characters more")


def _quoted(value: str) -> str:
    return visible(json.dumps(value, ensure_ascii=False), keep="")


def _number(value: float) -> str:
    # Python refuses to write integers of more than 4,300 digits.
    if isinstance(value, int) and value.bit_length() > 1_000:
        return f"a whole number of {value.bit_length():,} bits"
    return json.dumps(value)


# What a textarea would show wrongly or turn around, written as the JSON escape that means the same.
_UNSAFE_IN_EDITOR = {
    code: f"\\u{code:04x}"
    for code in (
        *range(0x7F, 0xA0),
        0x061C,
        *range(0x200E, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    )
}
