"""Reads what workers told on ``jobs.runs`` as a collector does: each batch of a boot and number once."""

from __future__ import annotations

import base64
import functools
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import redis

from jobs.agent import wire
from jobs.agent.batches import OUTCOMES, Batch, Cell, FinishedRun, decode

# What a test puts on the queue to make it long.
FILLER = b"filler"


def bodies_on(client: redis.Redis) -> list[bytes]:
    """Return the bytes of the batches on the queue, oldest first; they stay there. FILLER is left out."""
    raw: list[Any] = list(client.lrange(wire.RUNS_QUEUE, 0, -1))
    return [_body(each) for each in reversed(raw) if each != FILLER]


# A test that waits reads the same ones again and again.
@functools.lru_cache(maxsize=2_000)
def _body(raw: bytes) -> bytes:
    return base64.b64decode(json.loads(raw)["body"])


@functools.lru_cache(maxsize=2_000)
def _batch(body: bytes) -> Batch:
    return decode(body)


def batches_on(client: redis.Redis) -> list[Batch]:
    """Return the batches on the queue, each once, oldest first."""
    return once(bodies_on(client))


def once(bodies: Iterable[bytes]) -> list[Batch]:
    """Return each batch once, and see that one that came twice is the same and that no number is missing."""
    known: dict[tuple[str, int], bytes] = {}
    found = []
    for body in bodies:
        batch = _batch(body)
        key = (batch.boot_id, batch.sequence)
        if key not in known:
            known[key] = body
            found.append(batch)
        assert known[key] == body, f"batch {key} came twice and differs"
    for boot in {batch.boot_id for batch in found}:
        numbers = [batch.sequence for batch in found if batch.boot_id == boot]
        assert numbers == list(range(1, len(numbers) + 1))
    return found


def cells_of(batches: Iterable[Batch], task: str | None = None) -> list[Cell]:
    """Return the cells of a task, or all."""
    return [cell for batch in batches for cell in batch.cells if task is None or cell.task == task]


def counts_of(batches: Iterable[Batch], task: str | None = None) -> dict[str, int]:
    """Return what is counted of a task, or of all, without what is zero."""
    totals: Counter[str] = Counter()
    for cell in cells_of(batches, task):
        for name in ("received", "dropped", *OUTCOMES):
            totals[name] += getattr(cell, name)
    return {name: number for name, number in totals.items() if number}


def runs_of(batches: Iterable[Batch], task_id: str | None = None) -> list[FinishedRun]:
    """Return the records of a job, or all."""
    return [run for batch in batches for run in batch.runs if task_id is None or run.task_id == task_id]
