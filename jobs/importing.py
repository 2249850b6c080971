"""Dead letters out of the lines that ``jobs.exporting`` wrote."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from django.db import DatabaseError

from jobs.agent import wire
from jobs.collector import insert_letters
from jobs.exporting import FORMAT

BATCH = 200
# One line holds one message; a longer one is no export.
MAX_LINE_BYTES = 256_000_000

# The number of a line, its record and its letter's id.
_Read = tuple[int, wire.Record, uuid.UUID]


@dataclass(slots=True)
class Imported:
    """What an import did. ``damaged`` are line numbers, from 1, with what is wrong with each."""

    letters: int = 0
    known: int = 0
    damaged: list[tuple[int, str]] = field(default_factory=list)


class _Damaged(ValueError):
    """A line that cannot be imported; the text says why."""


def import_lines(lines: Iterable[bytes], *, now: datetime) -> Imported:
    """Import all lines that can be, in batches; a letter that is here already is left as it is.

    One transaction a batch. A damaged line is noted and stops nothing.
    """
    result = Imported()
    numbered = enumerate(lines, start=1)
    while batch := list(islice(numbered, BATCH)):
        read: list[_Read] = []
        for number, line in batch:
            if not line.strip():
                continue
            try:
                read.append((number, *_read(line)))
            except _Damaged as damage:
                result.damaged.append((number, str(damage)))
        _insert(read, result, now)
    return result


def _insert(read: list[_Read], result: Imported, now: datetime) -> None:
    if not read:
        return
    try:
        stored = insert_letters([record for _, record, _ in read], now=now, uuids=[key for *_, key in read])
    except (ValueError, DatabaseError) as error:
        if len(read) == 1:
            result.damaged.append((read[0][0], f"it was refused: {error}"))
            return
        # One of them is refused: find it, and keep the others.
        for half in _halves(read):
            _insert(half, result, now)
        return
    result.letters += stored.letters
    result.known += len(read) - stored.letters


def _halves(items: list[_Read]) -> Iterator[list[_Read]]:
    middle = len(items) // 2
    yield items[:middle]
    yield items[middle:]


def _read(line: bytes) -> tuple[wire.Record, uuid.UUID]:
    if len(line) > MAX_LINE_BYTES:
        raise _Damaged(f"it has {len(line):,} bytes, an exported line has at most {MAX_LINE_BYTES:,}")
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _Damaged(f"it is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise _Damaged(f"it is {type(values).__name__}, not an object")
    if values.get("format") != FORMAT:
        raise _Damaged(f"its format is {values.get('format')!r}, this version reads {FORMAT}")
    if not isinstance(values.get("record"), dict):
        raise _Damaged(str(values.get("why_not") or "it holds no message: export it again, unmasked"))
    try:
        record = wire.decode(json.dumps(values["record"]))
        key = uuid.UUID(values["id"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Damaged(f"its record or id cannot be read ({error})") from error
    if record.kind != "death":
        raise _Damaged(f"it holds a record of kind {record.kind!r}, not of a death")
    return record, key
