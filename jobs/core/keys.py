"""Idempotency keys and limit keys: templates over a job's arguments.

"receipt:{order_id}" names a parameter; "{order[id]}" and "{items[0]}" an item of one. Nothing else of
Python's format language is allowed: attributes reach into any object, and a format or a conversion
could make two different values look the same.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import itertools
import re
import string
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jobs.core.cleaning import clean_name

# The width of the columns that hold a key.
LONGEST_KEY = 255
_FIELD = re.compile(r"(?P<name>[^\W\d]\w*)(?P<items>(?:\[[^\[\]]+\])*)")
_ITEM = re.compile(r"\[([^\[\]]+)\]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class KeyRefused(ValueError):
    """A template or a key cannot be used; the text says why and what to do, without a full stop."""


@dataclass(frozen=True, slots=True)
class Field:
    """A place in a template: a parameter, and the items on the way into it."""

    name: str
    items: tuple[str, ...]

    def __str__(self) -> str:
        return "{" + self.name + "".join(f"[{item}]" for item in self.items) + "}"


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: literal texts and fields in turn."""

    text: str
    parts: tuple[str | Field, ...]
    # First characters of the texts between two fields; values escape them.
    separators: frozenset[str]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields, in order."""
        return tuple(part for part in self.parts if isinstance(part, Field))


@lru_cache(maxsize=1024)
def parse_template(text: str) -> Template:
    """Read a template.

    Raises:
        KeyRefused: when it is not one, or would give all jobs, or different ones, the same key.
    """
    try:
        pieces = list(string.Formatter().parse(text))
    except ValueError as error:
        raise KeyRefused(f"it cannot be read ({error}); a literal brace is written twice") from None
    parts: list[str | Field] = []
    for literal, name, spec, conversion in pieces:
        if literal:
            if parts and isinstance(parts[-1], str):
                parts[-1] += literal  # around an escaped brace
            else:
                parts.append(literal)
        if name is not None:
            if spec or conversion:
                raise KeyRefused(
                    f"{{{name}}} has a format or a conversion, which could make different values look the same; "
                    "name the parameter alone"
                )
            parts.append(_field(name))
    separators = _separators(parts)
    if not any(isinstance(part, Field) for part in parts):
        raise KeyRefused(
            'it names no parameter, so all jobs would share one key; write for instance "{order_id}"'
        )
    return Template(text=text, parts=tuple(parts), separators=separators)


def check_template(template: Template, parameters: Collection[str], *, takes_any: bool) -> None:
    """Check that a template names parameters that exist; ``takes_any`` is for a function with ``**kwargs``.

    Raises:
        KeyRefused: when a field is no parameter.
    """
    for field in template.fields:
        if field.name not in parameters and not takes_any:
            known = ", ".join(parameters) or "none"
            raise KeyRefused(f"{field} is no parameter; the job has {known}")


def format_key(template: Template, arguments: Mapping[str, Any]) -> str:
    """Return the key of a job with these arguments, by parameter name, defaults applied.

    Different values give different keys: a character that ends a value in the template is written as
    %XX inside the value. A key longer than ``LONGEST_KEY`` ends in a hash of the whole.

    Raises:
        KeyRefused: when a value is missing, None, or has no text that is surely always the same.
    """
    # With one field the rest of the template is fixed, so nothing needs to be escaped.
    escapes = template.separators | {"%"} if template.separators else frozenset()
    texts = [
        part if isinstance(part, str) else _escape(_text(part, _value(part, arguments)), escapes)
        for part in template.parts
    ]
    return checked_key("".join(texts))


def checked_key(key: object) -> str:
    """Return a key as it is stored. A long one is cut and ends in its SHA-256.

    One with control characters, which no page shows, has U+FFFD for each and ends in its SHA-256 too: the
    ledger would store two that differ in them alike.

    Raises:
        KeyRefused: when it is no text, is empty, or holds a character that a database does not take.
    """
    if not isinstance(key, str):
        raise KeyRefused(
            f"it is {type(key).__name__}, not a text; return a text, or None for a job without key"
        )
    if not key:
        raise KeyRefused("it is empty; return None for a job without key")
    if "\0" in key or _SURROGATE.search(key):
        raise KeyRefused("it holds a character that a database does not take (NUL or half a surrogate pair)")
    # Not a subclass of str: an enum member travels as its value.
    key = str.__str__(key)
    shown = clean_name(key, limit=len(key))
    if len(key) <= LONGEST_KEY and shown == key:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"{shown[: LONGEST_KEY - len(digest) - 1]}~{digest}"


def is_key(value: object) -> bool:
    """Return whether a header's value can be a key that ``checked_key`` made."""
    if not isinstance(value, str) or len(value) > LONGEST_KEY:
        return False
    try:
        return checked_key(value) == value
    except KeyRefused:
        return False


def _field(name: str) -> Field:
    found = _FIELD.fullmatch(name)
    if found is None:
        if "." in name:
            raise KeyRefused(
                f"{{{name}}} reads an attribute; name a parameter, or an item of one as in {{order[id]}}"
            )
        raise KeyRefused(f"{{{name}}} names no parameter; write for instance {{order_id}}, or {{order[id]}}")
    return Field(name=found["name"], items=tuple(_ITEM.findall(found["items"])))


def _separators(parts: list[str | Field]) -> frozenset[str]:
    found = set()
    for before, part, after in zip(parts, parts[1:], parts[2:], strict=False):
        if isinstance(part, str) and isinstance(before, Field) and isinstance(after, Field):
            found.add(part[0])
    for part, after in itertools.pairwise(parts):
        if isinstance(part, Field) and isinstance(after, Field):
            raise KeyRefused(
                f"{part}{after} stand side by side, so that 1 and 23 would look like 12 and 3; put a character between"
            )
    if "%" in found:
        raise KeyRefused("a percent sign between two fields is taken for an escaped character; use a colon")
    return frozenset(found)


def _value(field: Field, arguments: Mapping[str, Any]) -> Any:
    if field.name not in arguments:
        raise KeyRefused(f"{field} was not given; the job has {', '.join(arguments) or 'no arguments'}")
    value = arguments[field.name]
    for item in field.items:
        value = _item(field, value, item)
    return value


def _item(field: Field, value: Any, item: str) -> Any:
    if isinstance(value, Mapping):
        if item in value:
            return value[item]
        if item.isdecimal() and int(item) in value:
            return value[int(item)]
    elif isinstance(value, (list, tuple)) and item.isascii() and item.isdecimal() and int(item) < len(value):
        return value[int(item)]
    raise KeyRefused(f"{field} has no item [{item}] in a value of type {type(value).__name__}")


def _text(field: Field, value: Any) -> str:
    """Return the text of a value, the same before and after it travelled in a message."""
    if value is None:
        raise KeyRefused(f"{field} is None; give it a value, or name another parameter")
    if isinstance(value, str):
        # Enum members with a text as value arrive as that text.
        return str.__str__(value)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        # Not str(): beyond 4,300 digits Python refuses to write a number in base 10.
        return int.__repr__(value) if value.bit_length() < 8192 else hex(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, (uuid.UUID, decimal.Decimal)):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    raise KeyRefused(
        f"{field} is of type {type(value).__name__}, whose text may differ from time to time; "
        "pass a number, a text, a UUID or a date, or name an item of it as in {order[id]}"
    )


def _escape(text: str, characters: frozenset[str]) -> str:
    if characters.isdisjoint(text):
        return text
    return "".join(
        "".join(f"%{byte:02X}" for byte in char.encode()) if char in characters else char for char in text
    )
