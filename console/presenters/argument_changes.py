"""Editing arguments: masked values keep their place, mistakes are located, changes are listed before anything is sent."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from console.presenters import json_view
from jobs.core.masking import MASKED
from jobs.errors import JobsError

# Stands in the editor for a masked value; left alone, the value itself is sent.
PLACEHOLDER = "(masked, kept as it is)"
# The payload limit of a job; an editor is no place for more.
TEXT_LIMIT = 256_000
CHANGE_LIMIT = 100
_ABSENT = object()


class ArgumentsRefused(JobsError):
    """Edited arguments cannot be used; says where and why."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: "added", "removed" or "changed" at a path, with both values as one line."""

    kind: str
    path: str
    before: str
    after: str


def editor_text(masked: Any) -> str:
    """Return a masked value as JSON for the editor, with a placeholder for each mask."""
    return json_view.plain_text(_with_placeholders(masked))


def read_editor(text: str, *, name: str, original: Any, masked: Any) -> Any:
    """Read the editor's JSON, put masked values back, and check that it is a list (args) or an object (kwargs).

    Raises:
        ArgumentsRefused: with line and column of a mistake, or the path of a misplaced placeholder.
    """
    if len(text) > TEXT_LIMIT:
        raise ArgumentsRefused(
            f"Cannot use {name}: {len(text):,} characters, the limit is {TEXT_LIMIT:,}. "
            "Pass an id instead of the content."
        )
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        shown = text.splitlines()[error.lineno - 1].strip()[:80] if text.strip() else ""
        where = f"line {error.lineno}, column {error.colno}"
        raise ArgumentsRefused(
            f"Cannot read {name} as JSON: {error.msg} at {where}" + (f", in “{shown}”." if shown else ".")
        ) from error
    except RecursionError as error:
        raise ArgumentsRefused(f"Cannot read {name}: it is nested too deep. Flatten it.") from error
    except ValueError as error:
        raise ArgumentsRefused(f"Cannot read {name} as JSON: {error}") from error
    wanted, words = (
        (list, "a list such as [1, 2]") if name == "args" else (dict, 'an object such as {"a": 1}')
    )
    if not isinstance(value, wanted):
        raise ArgumentsRefused(
            f"Cannot use {name}: it is {_json_kind(value)}, and {name} must be {words}. Wrap it."
        )
    return _restored(value, masked, original, name)


def changes(
    before: Any, after: Any, *, masked_before: Any, masked_after: Any, path: str = ""
) -> list[Change]:
    """List the differences, masked values as "masked"; at most a hundred."""
    found: list[Change] = []
    for change in _differences(before, after, masked_before, masked_after, path):
        if len(found) == CHANGE_LIMIT:
            break
        found.append(change)
    return found


def _with_placeholders(value: Any) -> Any:
    if value is MASKED:
        return PLACEHOLDER
    if isinstance(value, dict):
        return {key: _with_placeholders(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_placeholders(item) for item in value]
    return value


def _restored(value: Any, masked: Any, original: Any, path: str) -> Any:
    """Put the original where a placeholder stands and the original is masked."""
    if value == PLACEHOLDER and isinstance(value, str):
        if masked is MASKED:
            return copy.deepcopy(original)
        # Somebody's real text may read the same.
        if original == PLACEHOLDER:
            return value
        raise ArgumentsRefused(
            f"Cannot keep the masked value at {path}: nothing masked was there. Write the value itself."
        )
    if isinstance(value, dict):
        inside = isinstance(masked, dict)
        return {
            key: _restored(
                item,
                masked.get(key) if inside else None,
                original.get(key) if inside else None,
                f"{path}.{key}"[:200],
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        length = len(masked) if isinstance(masked, (list, tuple)) else 0
        return [
            _restored(
                item,
                masked[index] if index < length else None,
                original[index] if index < length else None,
                f"{path}[{index}]"[:200],
            )
            for index, item in enumerate(value)
        ]
    return value


def _differences(before: Any, after: Any, shown_before: Any, shown_after: Any, path: str) -> Iterator[Change]:
    if before is _ABSENT:
        yield Change("added", path, "", json_view.one_line(shown_after))
    elif after is _ABSENT:
        yield Change("removed", path, json_view.one_line(shown_before), "")
    elif shown_before is MASKED or shown_after is MASKED:
        if not _same(before, after):
            yield Change(
                "changed",
                path,
                json_view.one_line(shown_before),
                f"{json_view.one_line(shown_after)}, another value",
            )
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _differences(
                before.get(key, _ABSENT),
                after.get(key, _ABSENT),
                shown_before.get(key),
                shown_after.get(key),
                f"{path}.{key}" if path else str(key),
            )
    elif isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        for index in range(max(len(before), len(after))):
            yield from _differences(
                before[index] if index < len(before) else _ABSENT,
                after[index] if index < len(after) else _ABSENT,
                shown_before[index] if index < len(before) else None,
                shown_after[index] if index < len(after) else None,
                f"{path}[{index}]",
            )
    elif not _same(before, after):
        yield Change("changed", path, json_view.one_line(shown_before), json_view.one_line(shown_after))


def _same(before: Any, after: Any) -> bool:
    """Compare as JSON does: 1, 1.0 and true are three things."""
    return type(before) is type(after) and bool(before == after) and json.dumps(before) == json.dumps(after)


def _json_kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    kinds = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number"}
    return kinds[type(value)]


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON. Use null or a text.")
