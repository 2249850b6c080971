"""The promise of rate over four real workers on a real Redis; last of all tests, for it needs both cores."""

from __future__ import annotations

import bisect
from collections import Counter

import pytest

from tests.job_fleet import JobFleet
from tests.servers import wait_until

pytestmark = pytest.mark.worker

# What the script lets through above the pace: 0.2 s of jobs, and one.
RATE, TOLERANCE_SECONDS = 100, 0.2


def test_a_hundred_a_second_over_four_workers_holds_within_five_percent(fleet: JobFleet) -> None:
    """Above always; below in one of three backlogs: a machine without time for four workers starts fewer,
    and that says nothing about the limit."""
    fullest = 0
    for _ in range(3):
        starts = run_backlog(fleet, 1_500)
        fullest = most_in_a_window(starts, 10)
        assert fullest <= RATE * 10 + round(RATE * TOLERANCE_SECONDS) + 1 <= RATE * 10 * 1.05
        if fullest >= RATE * 10 * 0.95:
            break

    assert fullest >= RATE * 10 * 0.95


def run_backlog(fleet: JobFleet, count: int) -> list[float]:
    """Let a backlog run; see that nothing is lost, repeated or counted as an attempt; return the starts."""
    fleet.clear()
    fleet.send("limited.paced", ((number,) for number in range(count)))
    wait_until(lambda: fleet.ledger_length() >= count, seconds=50, what="jobs at 100 a second")
    fleet.wait_until_drained()
    lines = fleet.ledger()

    assert Counter(line["number"] for line in lines) == Counter(range(count))
    # Held back several times, with one attempt in all.
    assert {line["retries"] for line in lines} == {0}
    assert fleet.dead() == 0
    # A job asks when it comes and when it is its turn, and hardly ever again.
    assert count * 1.5 < fleet.asked() < count * 3
    return sorted(line["at"] for line in lines)


def most_in_a_window(moments: list[float], seconds: float) -> int:
    """Return the largest number of moments that lie within so many seconds, wherever they begin."""
    return max(bisect.bisect_left(moments, first + seconds) - index for index, first in enumerate(moments))
