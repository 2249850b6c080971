"""The arguments inside a message's body. JSON only: what is pickled or signed stays closed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jobs.core.cleaning import clean_line
from jobs.core.masking import DEFAULT_KEYS, MASKED, mask

JSON_TYPES = frozenset({"application/json"})
JSON_ENCODINGS = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii", "binary"})
PREVIEW_LENGTH = 255
# What ``args.order_id:48213`` searches; further arguments are in the body only.
TEXT_LENGTH = 4_000
VALUE_LENGTH = 500
# A body nested deeper than this is shown to this depth.
FLATTEN_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a body holds. ``error`` says in one sentence why it cannot be read; then the rest is empty.

    ``protocol`` is 1 or 2, 0 when unknown. Values are JSON as sent: a datetime or UUID is kombu's
    ``{"__type__": …, "__value__": …}``.
    """

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    embed: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    protocol: int = 0
    byte_size: int = 0


def read(
    body: bytes,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[str, Any] | None = None,
) -> Arguments:
    """Read a body of protocol 2, ``[args, kwargs, embed]``, or of protocol 1, an object.

    Total: what cannot be read has an ``error``. Nothing is ever unpickled or evaluated.
    """
    size = len(body)
    if (content_type or "").lower() not in JSON_TYPES:
        kind = clean_line(content_type or "of no known type", limit=80)
        return Arguments(
            error=f"The body is {kind}. Only JSON is read, so it is kept as it is.", byte_size=size
        )
    if (content_encoding or "").lower() not in JSON_ENCODINGS:
        encoding = clean_line(content_encoding or "", limit=80)
        return Arguments(
            error=f"The body is JSON in the encoding {encoding}, which is not read; it is kept as it is.",
            byte_size=size,
        )
    try:
        value = json.loads(body.decode("utf-8", "surrogatepass"))
    except RecursionError:
        return Arguments(error="The body is JSON nested too deep to be read.", byte_size=size)
    except ValueError as error:
        reason = clean_line(str(error), limit=120)
        return Arguments(error=f"The body is not valid JSON: {reason}.", byte_size=size)
    return _shaped(value, size)


def _shaped(value: Any, size: int) -> Arguments:
    if isinstance(value, list) and len(value) == 3:
        args, kwargs, embed, protocol = *value, 2
        embed = {} if embed is None else embed
    elif isinstance(value, dict) and "task" in value:
        args, kwargs, protocol = value.get("args") or [], value.get("kwargs") or {}, 1
        embed = {key: value[key] for key in ("callbacks", "errbacks", "chord", "taskset") if key in value}
    else:
        kind = "an object" if isinstance(value, dict) else "a single value"
        if isinstance(value, list):
            kind = f"a list of {len(value)}"
        return Arguments(
            error=f"The body is {kind}, not [arguments, named arguments, callbacks] as Celery sends it.",
            byte_size=size,
        )
    for name, part, kinds in (
        ("arguments", args, list),
        ("named arguments", kwargs, dict),
        ("callbacks", embed, dict),
    ):
        if not isinstance(part, kinds):
            wanted = "a list" if kinds is list else "an object"
            return Arguments(error=f"The {name} in the body are not {wanted}.", byte_size=size)
    return Arguments(args=args, kwargs=kwargs, embed=embed, protocol=protocol, byte_size=size)


def bind(parameters: Sequence[str] | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name the arguments: by the task's parameters where they are known, else by position from 0."""
    bound: dict[str, Any] = {}
    names = list(parameters or ())
    for position, value in enumerate(args):
        name = names[position] if position < len(names) else str(position)
        # Given twice, the job could not even start: both are shown.
        bound[str(position) if name in kwargs else name] = value
    bound.update(kwargs)
    return bound


def summarise(bound: Mapping[str, Any], keys: Iterable[str] = DEFAULT_KEYS) -> tuple[str, str]:
    """Return ``preview`` and ``flatten_text``, masking once."""
    shown = mask(bound, keys)
    return _preview(shown), _flatten_text(shown)


def preview(bound: Mapping[str, Any], keys: Iterable[str] = DEFAULT_KEYS) -> str:
    """Return the first argument that may be shown, as ``order_id=48213``; at most 255 characters."""
    return _preview(mask(bound, keys))


def flatten_text(bound: Mapping[str, Any], keys: Iterable[str] = DEFAULT_KEYS) -> str:
    """Return one ``\\npath=value\\n`` line an argument that may be shown, at most TEXT_LENGTH.

    A path goes down with dots: ``amount.currency``, ``items.0.sku``.
    """
    return _flatten_text(mask(bound, keys))


def _preview(shown: Mapping[str, Any]) -> str:
    first = next(((k, v) for k, v in shown.items() if v is not MASKED), None)
    if first is None:
        return "masked" if shown else ""
    name, value = first
    text = _value_text(value, quoted=True)
    return clean_line(text if name.isdigit() else f"{name}={text}", limit=PREVIEW_LENGTH)


def _flatten_text(shown: Mapping[str, Any]) -> str:
    lines: list[str] = []
    length = 0
    for path, value in _flatten(shown, "", 0) if shown else ():
        line = f"\n{clean_line(path, limit=VALUE_LENGTH)}={clean_line(value, limit=VALUE_LENGTH)}\n"
        length += len(line)
        if length > TEXT_LENGTH:
            break
        lines.append(line)
    return "".join(lines)


def _flatten(value: Any, path: str, depth: int) -> Iterable[tuple[str, str]]:
    if value is MASKED:
        return
    untagged = _untagged(value)
    if isinstance(untagged, (dict, list)) and untagged and depth < FLATTEN_DEPTH:
        items = untagged.items() if isinstance(untagged, dict) else enumerate(untagged)
        for key, item in items:
            yield from _flatten(item, f"{path}.{key}" if path else str(key), depth + 1)
    else:
        yield path, _value_text(value, quoted=False)


def _untagged(value: Any) -> Any:
    """Return what kombu's JSON wraps: the text of a datetime, UUID, decimal or bytes."""
    if isinstance(value, dict) and value.keys() == {"__type__", "__value__"}:
        inner = value["__value__"]
        if isinstance(inner, dict) and inner.keys() == {"hex"}:
            inner = inner["hex"]
            if isinstance(inner, str) and len(inner) == 32:
                return "-".join((inner[:8], inner[8:12], inner[12:16], inner[16:20], inner[20:]))
        return inner
    return value


def _value_text(value: Any, *, quoted: bool) -> str:
    value = _untagged(value)
    if isinstance(value, str):
        # Only so much of it can be shown: do not quote a megabyte.
        return (
            json.dumps(value[: VALUE_LENGTH * 2], ensure_ascii=False) if quoted else value[: VALUE_LENGTH * 2]
        )
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)[: VALUE_LENGTH * 2]
    except (RecursionError, ValueError):
        return "…"
