"""Batches as an agent would send them; every argument has a believable default. Times are around NOW."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from jobs.agent import batches
from jobs.agent.batches import Batch, Cell, FinishedRun, RunningJob, bucket_of
from jobs.broker import probing
from jobs.broker.inbox import Taken

NOW = datetime(2026, 11, 12, 3, 12, 30, tzinfo=UTC)
MINUTE = int(NOW.timestamp()) // 60 * 60

_numbers = itertools.count(1)


def make_run(**fields: Any) -> FinishedRun:
    """Return a finished attempt that ended at NOW."""
    task_id = fields.get("task_id") or str(uuid.uuid4())
    values: dict[str, Any] = {
        "task_id": task_id,
        "task": "shop.tasks.send_receipt",
        "queue": "critical",
        "outcome": "done",
        "attempt": 0,
        "publication_id": uuid.uuid4().hex,
        "root_id": task_id,
        "published_at": NOW.timestamp() - 2,
        "started_at": NOW.timestamp() - 1,
        "finished_at": NOW.timestamp(),
        "latency": 1.0,
        "runtime": 1.0,
    }
    return FinishedRun(**{**values, **fields})


def make_running(**fields: Any) -> RunningJob:
    """Return a job that runs, acknowledged when it began."""
    task_id = fields.get("task_id") or str(uuid.uuid4())
    values: dict[str, Any] = {
        "task_id": task_id,
        "task": "shop.tasks.send_receipt",
        "queue": "critical",
        "attempt": 0,
        "publication_id": uuid.uuid4().hex,
        "root_id": task_id,
        "published_at": NOW.timestamp() - 2,
        "started_at": NOW.timestamp() - 1,
        "is_acknowledged": True,
    }
    return RunningJob(**{**values, **fields})


def cells_of(runs: Iterable[FinishedRun]) -> list[Cell]:
    """Count runs by minute, task and queue, as the agent does."""
    cells: dict[tuple[int, str, str], Cell] = {}
    for run in runs:
        key = int(run.finished_at) // 60 * 60, run.task, run.queue
        cell = cells.setdefault(key, Cell(*key))
        cell.received += 1
        setattr(cell, run.outcome, getattr(cell, run.outcome) + 1)
        for name, seconds in (("latency", run.latency), ("runtime", run.runtime)):
            if seconds is not None:
                setattr(cell, f"{name}_sum", getattr(cell, f"{name}_sum") + seconds)
                counts = getattr(cell, name)
                counts[bucket_of(seconds)] = counts.get(bucket_of(seconds), 0) + 1
    return list(cells.values())


def make_batch(runs: Iterable[FinishedRun] = (), **fields: Any) -> Batch:
    """Return a batch made at NOW with these runs and the cells that count them."""
    runs = list(runs)
    values: dict[str, Any] = {
        "boot_id": "boot-1",
        "sequence": 1,
        "hostname": "celery@pay-1",
        "at": NOW.timestamp(),
        "started_at": NOW.timestamp() - 3_600,
        "pool": "prefork",
        "concurrency": 4,
        "queues": ["critical", "default"],
        "load": 0.5,
        "memory_bytes": 120_000_000,
        "runs": runs,
        "cells": cells_of(runs) if fields.get("cells") is None else fields["cells"],
    }
    return Batch(**{**values, **fields})


def taken(*made: Batch) -> list[Taken]:
    """Return batches as they come out of the queue."""
    return [
        Taken(body=batches.encode(batch), content_type=batches.CONTENT_TYPE, receipt=next(_numbers))
        for batch in made
    ]


class ListInbox:
    """An inbox whose broker is a list: what is not acknowledged is delivered again."""

    def __init__(self, *messages: Taken) -> None:
        self.waiting = list(messages)

    def take(self, limit: int, wait_seconds: float) -> list[Taken]:
        return self.waiting[:limit]

    def ack(self, taken: list[Taken]) -> None:
        self.waiting = self.waiting[len(taken) :]

    def probe(self) -> None:
        for body in (probing.AHEAD, probing.PROOF):
            self.waiting.append(Taken(body=body, content_type=probing.CONTENT_TYPE))
