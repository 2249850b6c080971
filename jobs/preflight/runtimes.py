"""The p99 of runtimes. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from jobs.preflight.facts import Runtime

# With fewer runs of a task the longest of them says little.
FEWEST_RUNS = 20


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that ``share`` of all do not exceed.

    Raises:
        ValueError: when there are no values, or the share is not in (0, 1].
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"no percentile {share} of {len(values)} values")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def longest(runs: Iterable[tuple[str, float]], *, fewest: int = FEWEST_RUNS) -> Runtime | None:
    """Return the task with the longest p99 among those with enough runs, given as (task, seconds)."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, seconds in runs:
        by_task[task].append(seconds)
    measured = [
        Runtime(task, len(seconds), percentile(seconds, 0.99))
        for task, seconds in sorted(by_task.items())
        if len(seconds) >= fewest
    ]
    return max(measured, key=lambda runtime: runtime.p99_seconds, default=None)
