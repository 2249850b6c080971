"""Rollups of all levels and scopes out of minutes, as the collector adds them up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from jobs.core import histograms
from jobs.core.words import RollupLevel, RollupScope
from jobs.models import Rollup

_STARTS = {
    RollupLevel.MINUTE: {"second": 0, "microsecond": 0},
    RollupLevel.HOUR: {"minute": 0, "second": 0, "microsecond": 0},
    RollupLevel.DAY: {"hour": 0, "minute": 0, "second": 0, "microsecond": 0},
}
COUNTS = ("received", "done", "retried", "dead", "revoked", "ignored", "dropped")


@dataclass(slots=True)
class Told:
    """What was told of one minute, one task and one queue. ``task`` None: a worker lived, and nothing ran."""

    at: datetime
    task: str | None = "shop.tasks.send_receipt"
    queue: str = "critical"
    received: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    revoked: int = 0
    ignored: int = 0
    dropped: int = 0
    latency: list[float] = field(default_factory=list)
    runtime: list[float] = field(default_factory=list)


def write(told: Iterable[Told], *, levels: Iterable[RollupLevel] = tuple(RollupLevel)) -> None:
    """Insert the rollups of all of it."""
    rows: dict[tuple[str, str, datetime, str, str], Rollup] = {}
    durations: dict[tuple[str, str, datetime, str, str], dict[str, list[float]]] = defaultdict(
        lambda: {"latency": [], "runtime": []}
    )
    for each in told:
        for level in levels:
            starts_at = each.at.replace(**_STARTS[level])  # type: ignore[arg-type]
            for scope, task, queue in _scopes(each):
                key = (level.value, scope.value, starts_at, task, queue)
                row = rows.get(key)
                if row is None:
                    row = rows[key] = Rollup(
                        level=key[0], scope=key[1], starts_at=starts_at, task=task, queue=queue
                    )
                for name in COUNTS:
                    setattr(row, name, getattr(row, name) + getattr(each, name))
                durations[key]["latency"] += each.latency
                durations[key]["runtime"] += each.runtime
    for key, row in rows.items():
        for name, values in durations[key].items():
            setattr(row, f"{name}_sum_seconds", sum(values))
            buckets: dict[int, int] = defaultdict(int)
            for value in values:
                buckets[histograms.bucket_of(value)] += 1
            setattr(row, name, histograms.pack(buckets))
    Rollup.objects.bulk_create(rows.values(), batch_size=500)


def _scopes(each: Told) -> list[tuple[RollupScope, str, str]]:
    everything = (RollupScope.ALL, "", "")
    if each.task is None:
        return [everything]
    return [
        everything,
        (RollupScope.TASK, each.task, ""),
        (RollupScope.QUEUE, "", each.queue),
        (RollupScope.BOTH, each.task, each.queue),
    ]
