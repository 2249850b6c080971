"""What a limit costs that is never reached, and how exactly one is held that is.

Real workers on Redis, prefork. For the cost rounds alternate and the figure is the median of their
ratios, so that whatever else the machine does falls on both sides.
"""

from __future__ import annotations

import bisect
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.job_fleet import QUEUE, JobFleet

FILLED = "bench.filled"
PLAIN = "limited.plain"
TARGETS = {
    "limited.roomy": ("a rate that is never reached", 0.8),
    "limited.wide": ("a concurrency that is never reached", 0.65),
}
RATE, WINDOW_SECONDS = 100, 10


def run(quick: bool) -> list[dict[str, Any]]:
    """Return a row a kind of limit, and one for a rate over four workers."""
    return [*_costs(*((5, 600) if quick else (9, 1_500))), _accuracy(1_200 if quick else 2_500)]


def _costs(rounds: int, count: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as directory:
        fleet = JobFleet(Path(directory), application="tests.limits.shop")
        try:
            fleet.start(1, concurrency=2)
            _jobs_a_second(fleet, PLAIN, count=200)
            for task, (name, target) in TARGETS.items():
                pairs = []
                for number in range(rounds):
                    order = (task, PLAIN) if number % 2 else (PLAIN, task)
                    measured = {each: _jobs_a_second(fleet, each, count=count) for each in order}
                    pairs.append((measured[task], measured[PLAIN]))
                rows.append(
                    {
                        "name": f"limits: {name}, against the same job without",
                        "ours": statistics.median(ours for ours, _ in pairs),
                        "peer": statistics.median(peer for _, peer in pairs),
                        "unit": "jobs/s",
                        "ratio": statistics.median(ours / peer for ours, peer in pairs),
                        "target": target,
                    }
                )
        finally:
            fleet.stop()
    return rows


def _jobs_a_second(fleet: JobFleet, task: str, *, count: int) -> float:
    fleet.send(task, ((number,) for number in range(count)), queue=FILLED)
    with fleet.server.client() as client:
        begun = time.perf_counter()
        client.rename(FILLED, QUEUE)
        deadline = time.monotonic() + 300
        while fleet.waiting():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{task}: {fleet.waiting()} of {count} jobs are left")
            time.sleep(0.01)
        return count / (time.perf_counter() - begun)


def _accuracy(count: int) -> dict[str, Any]:
    """Count what starts in the fullest ten seconds of a backlog, and how often a job asks."""
    with tempfile.TemporaryDirectory(prefix="bench-limits-") as directory:
        fleet = JobFleet(Path(directory), application="tests.limits.shop")
        try:
            fleet.start(4)
            before = fleet.asked()
            fleet.send("limited.paced", ((number,) for number in range(count)))
            deadline = time.monotonic() + 30 + count / RATE * 3
            while fleet.ledger_length() < count:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{fleet.ledger_length()} of {count} jobs started")
                time.sleep(0.1)
            starts = sorted(line["at"] for line in fleet.ledger())
            asked = (fleet.asked() - before) / count
        finally:
            fleet.stop()
    fullest = max(
        bisect.bisect_left(starts, first + WINDOW_SECONDS) - index for index, first in enumerate(starts)
    )
    overall = (count - 1) / (starts[-1] - starts[0])
    wanted = RATE * WINDOW_SECONDS
    return {
        "name": f"limits: 100/s, four workers, {overall:.1f}/s over all, a job asks {asked:.2f} times",
        "ours": fullest,
        "peer": wanted,
        "unit": "in 10 s",
        "ratio": fullest / wanted,
        "target": "within 5 %",
        "is_met": 0.95 <= fullest / wanted <= 1.05,
    }
