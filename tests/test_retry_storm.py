"""A downstream that is away under 1,000 jobs must not be met by all of them at once when it comes back."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.job_fleet import JobFleet, job_fleet
from tests.servers import wait_until
from tests.storm_shop import DOWN, FAILURES

pytestmark = pytest.mark.worker

JOBS = 1_000
# A minute, scaled down; the cap in tests.storm_shop is scaled with it.
OUTAGE_SECONDS = 8.0
BIN_SECONDS = 0.1
# How far the fullest tenth of a second may be above the mean one. Full jitter spreads the first retries
# over the base of one second: a tenth of the jobs in each of ten bins, some eight times the mean. Without
# jitter nearly all are in one, some seventy times the mean.
MOST_ABOVE_MEAN = 20


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobFleet]:
    with job_fleet(tmp_path_factory.mktemp("storm"), 4, application="tests.storm_shop") as started:
        yield started


def run_storm(fleet: JobFleet, task: str) -> list[dict[str, Any]]:
    """Send the jobs while the downstream is away, bring it back, and return every call once all succeeded.

    It is away for at least ``OUTAGE_SECONDS``, and on a slow machine until each job failed twice.
    """
    fleet.clear()
    with fleet.server.client() as client:
        client.set(DOWN, 1)
        begun = time.monotonic()
        fleet.send(task, ((number,) for number in range(JOBS)))
        wait_until(
            lambda: (
                int(client.hget(FAILURES, "1") or 0) == JOBS and time.monotonic() - begun >= OUTAGE_SECONDS
            ),
            seconds=60,
            what="every job to fail twice",
        )
        client.delete(DOWN)
    fleet.wait_until_drained(seconds=60)
    calls = fleet.ledger()
    assert {call["number"] for call in calls if not call["failed"]} == set(range(JOBS))
    return calls


def retries_on_a_fleet_of_any_speed(calls: list[dict[str, Any]]) -> list[float]:
    """Return when each retry would have come, in seconds after its job's first call.

    That is the sum of the waits that its messages carried. Workers on a slow machine take seconds for
    a thousand jobs, which spreads them however they were scheduled; here they are as fast as they can be,
    which is the worst for the downstream.
    """
    by_job: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        by_job[call["number"]].append(call)
    moments = []
    for attempts in by_job.values():
        attempts.sort(key=lambda call: call["retries"])
        moment = 0.0
        for before, after in itertools.pairwise(attempts):
            moment += datetime.fromisoformat(after["eta"]).timestamp() - before["at"]
            moments.append(moment)
    return moments


def peak_above_mean(moments: list[float]) -> float:
    """Return how many times the mean the fullest bin of the histogram holds, the empty ones counted."""
    bins = Counter(int((moment - min(moments)) / BIN_SECONDS) for moment in moments)
    return max(bins.values()) / (len(moments) / (max(bins) + 1))


def test_retries_of_a_thousand_jobs_come_spread(fleet: JobFleet) -> None:
    calls = run_storm(fleet, "storm.with_jitter")

    scheduled = retries_on_a_fleet_of_any_speed(calls)
    arrived = [call["at"] for call in calls if call["retries"]]
    assert len(scheduled) > JOBS * 2
    assert peak_above_mean(scheduled) < MOST_ABOVE_MEAN
    assert peak_above_mean(arrived) < MOST_ABOVE_MEAN
    assert fleet.dead() == 0


def test_the_same_without_jitter_comes_in_waves(fleet: JobFleet) -> None:
    """Shows that the test above can fail."""
    calls = run_storm(fleet, "storm.without_jitter")

    scheduled = retries_on_a_fleet_of_any_speed(calls)
    assert peak_above_mean(scheduled) > MOST_ABOVE_MEAN
