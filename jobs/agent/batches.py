"""What an agent tells on ``jobs.runs``: one batch a second, which is also the worker's heartbeat.

Counts are exact; ``runs`` may be fewer than were counted, by ``dropped``. Times are seconds since the epoch.
A batch is known by boot and sequence, from 1 on without a gap.

Records travel as lists in the order of their fields: one field more of theirs needs a new ``VERSION``, which
the collector must know before the first agent sends it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

CONTENT_TYPE = "application/vnd.jobs.batch+json"
VERSION = 1
# What one batch may come to when it is unpacked: it may be anybody's.
MOST_BYTES = 32_000_000

# How an attempt ended, and "received" for a message that a worker took.
OUTCOMES = ("done", "retried", "dead", "revoked", "ignored")

# As in core.histograms, which an agent may not import; a test compares them.
ALPHA = 0.05
LEAST_SECONDS = 1e-4
MOST_SECONDS = 31_536_000.0
_LOG_GAMMA = math.log((1 + ALPHA) / (1 - ALPHA))
ZERO_BUCKET = math.ceil(math.log(LEAST_SECONDS) / _LOG_GAMMA) - 1
LAST_BUCKET = math.ceil(math.log(MOST_SECONDS) / _LOG_GAMMA)


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration, as ``core.histograms.bucket_of`` does."""
    if LEAST_SECONDS <= seconds <= MOST_SECONDS:
        return math.ceil(math.log(seconds) / _LOG_GAMMA)
    return LAST_BUCKET if seconds > MOST_SECONDS else ZERO_BUCKET


@dataclass(slots=True)
class Cell:
    """What happened in one minute to one task on one queue. ``latency`` and ``runtime`` count by bucket."""

    minute: int  # seconds since the epoch, a multiple of 60
    task: str
    queue: str
    received: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    revoked: int = 0
    ignored: int = 0
    # Attempts in here whose record was dropped.
    dropped: int = 0
    latency_sum: float = 0.0
    runtime_sum: float = 0.0
    latency: dict[int, int] = field(default_factory=dict)
    runtime: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class FinishedRun:
    """One finished attempt. What is not known is None or ""."""

    task_id: str
    task: str
    queue: str
    outcome: str
    attempt: int
    publication_id: str
    root_id: str
    published_at: float | None
    started_at: float | None
    finished_at: float
    latency: float | None
    runtime: float | None
    error_type: str = ""


@dataclass(slots=True)
class RunningJob:
    """A job that a child runs now. Of one that was acknowledged early nobody else has the message."""

    task_id: str
    task: str
    queue: str
    attempt: int
    publication_id: str
    root_id: str
    published_at: float | None
    started_at: float
    is_acknowledged: bool
    replay_of: str = ""
    replay_item: int | None = None


@dataclass(slots=True)
class Batch:
    """All of what a worker tells at once."""

    boot_id: str
    sequence: int
    hostname: str
    at: float
    started_at: float
    pool: str = ""
    concurrency: int | None = None
    queues: list[str] = field(default_factory=list)
    is_goodbye: bool = False
    load: float | None = None
    memory_bytes: int | None = None
    # Messages in the worker's memory, by queue: waiting for their time; taken and not started.
    held: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    running: list[RunningJob] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    runs: list[FinishedRun] = field(default_factory=list)
    # Records that were dropped since the batch before.
    dropped: int = 0


class BatchError(ValueError):
    """Bytes that are no batch."""


def encode(batch: Batch, *, rows: list[tuple[Any, ...]] | None = None) -> bytes:
    """Write a batch as compressed JSON; records become lists, in the order of their fields.

    ``rows`` are finished runs in that form already, in the place of ``batch.runs``: an agent that makes
    objects of them first takes a third longer.
    """
    values = {name: getattr(batch, name) for name in _BATCH_FIELDS}
    for name, kind in _LISTS.items():
        fields = _FIELDS[kind]
        values[name] = [[getattr(row, each) for each in fields] for row in getattr(batch, name)]
    if rows is not None:
        values["runs"] = rows
    values["v"] = VERSION
    return zlib.compress(json.dumps(values, separators=(",", ":")).encode("utf-8", "surrogatepass"), 1)


def decode(data: bytes) -> Batch:
    """Read a batch; each field has the type it must have, and a count is never below zero.

    Raises:
        BatchError: when the bytes are not a batch; says what is wrong.
    """
    unpacked = _unpack(data)
    if unpacked.pop("v", None) != VERSION:
        raise BatchError(f"only batches of version {VERSION} are known")
    try:
        for name, kind in _LISTS.items():
            unpacked[name] = [kind(*row) for row in unpacked.get(name, [])]
        for cell in unpacked["cells"]:
            cell.latency, cell.runtime = _histogram(cell.latency), _histogram(cell.runtime)
        batch = Batch(**{name: value for name, value in unpacked.items() if name in _BATCH_FIELDS})
    except (TypeError, ValueError, AttributeError) as error:
        raise BatchError(f"a part is missing or has another shape: {error}") from error
    _check(batch)
    return batch


def _unpack(data: bytes) -> dict[str, Any]:
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(data, MOST_BYTES)
        if unpacker.unconsumed_tail:
            raise BatchError(f"it is larger than {MOST_BYTES} bytes")
        values = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise (
            error if isinstance(error, BatchError) else BatchError(f"it cannot be unpacked: {error}")
        ) from error
    if not isinstance(values, dict):
        raise BatchError(f"it is {type(values).__name__}, not an object")
    return values


def _histogram(value: Any) -> dict[int, int]:
    return {int(bucket): number for bucket, number in value.items()}


def _check(batch: Batch) -> None:
    # By column: a collector reads 20,000 records a second, each with 13 fields.
    for holders in ([batch], batch.cells, batch.runs, batch.running):
        for name, allowed in _KINDS[type(holders[0])] if holders else ():
            column = list(map(attrgetter(name), holders))
            # Types as JSON makes them: a bool is no int here.
            if wrong := set(map(type, column)) - allowed:
                raise BatchError(f"{name} is {min(each.__name__ for each in wrong)}")
            if float in allowed and not all(map(math.isfinite, (v for v in column if type(v) is float))):
                raise BatchError(f"{name} is not finite")
    if not batch.boot_id or batch.sequence < 1:
        raise BatchError("it has no boot id or no sequence")
    if unknown := {run.outcome for run in batch.runs} - set(OUTCOMES):
        raise BatchError(f"the outcome {min(unknown)!r} is not known")
    _check_counts(batch)


def _check_counts(batch: Batch) -> None:
    histograms = [histogram for cell in batch.cells for histogram in (cell.latency, cell.runtime)]
    mappings: list[dict[Any, int]] = [batch.held, batch.reserved, *histograms]
    counts = [n for mapping in mappings for n in mapping.values()]
    if set(map(type, counts)) - {int} or min(counts, default=0) < 0:
        raise BatchError("a count is not a whole number from zero on")
    for name in ("received", "dropped", *OUTCOMES):
        if min((getattr(cell, name) for cell in batch.cells), default=0) < 0:
            raise BatchError("a count is below zero")
    buckets = [bucket for histogram in histograms for bucket in histogram]
    if buckets and not ZERO_BUCKET <= min(buckets) <= max(buckets) <= LAST_BUCKET:
        raise BatchError("a bucket is out of range")


_LISTS: dict[str, type[Any]] = {"running": RunningJob, "cells": Cell, "runs": FinishedRun}
_BATCH_FIELDS = tuple(each.name for each in dataclasses.fields(Batch))
_FIELDS = {kind: tuple(each.name for each in dataclasses.fields(kind)) for kind in _LISTS.values()}
_TYPES: dict[str, set[type]] = {
    "str": {str},
    "int": {int},
    "bool": {bool},
    "float": {float, int},
    "float | None": {float, int, type(None)},
    "int | None": {int, type(None)},
}
_KINDS: dict[type[Any], list[tuple[str, set[type]]]] = {
    kind: [
        (each.name, _TYPES.get(str(each.type), {dict} if "dict" in str(each.type) else {list}))
        for each in dataclasses.fields(kind)
    ]
    for kind in (Batch, Cell, FinishedRun, RunningJob)
}
