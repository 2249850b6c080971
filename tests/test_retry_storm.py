"""A downstream that is away under 1,000 jobs must not be met by all of them at once when it comes back."""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from tests.job_fleet import JobFleet, job_fleet
from tests.servers import wait_until
from tests.storm_shop import DOWN, FAILURES

pytestmark = pytest.mark.worker

JOBS = 1_000
# Sent beside them, for comparison: their waves are as high above their mean however many they are.
WITHOUT_JITTER = 250
# A minute, scaled down; the cap in tests.storm_shop is scaled with it.
OUTAGE_SECONDS = 8.0
BIN_SECONDS = 0.1
# How far the fullest tenth of a second may be above the mean one. Full jitter spreads the first retries
# over the base of one second: a tenth of the jobs in each of ten bins, some eight times the mean. Without
# jitter nearly all are in one, some seventy times the mean.
MOST_ABOVE_MEAN = 20


@dataclass(frozen=True)
class Storm:
    """Every call of the jobs with jitter, of those without, and how many jobs died."""

    with_jitter: list[dict[str, Any]]
    without_jitter: list[dict[str, Any]]
    dead: int


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    with job_fleet(tmp_path_factory.mktemp("storm"), 4, application="tests.storm_shop") as fleet:
        calls = run_storm(fleet)
        yield Storm(
            [call for call in calls if call["number"] < JOBS],
            [call for call in calls if call["number"] >= JOBS],
            fleet.dead(),
        )


def run_storm(fleet: JobFleet) -> list[dict[str, Any]]:
    """Send the jobs while the downstream is away, bring it back, and return every call once all succeeded.

    It is away for at least ``OUTAGE_SECONDS``, and on a slow machine until each job failed twice.
    """
    numbers = range(JOBS + WITHOUT_JITTER)
    with fleet.server.client() as client:
        client.set(DOWN, 1)
        begun = time.monotonic()
        fleet.send("storm.with_jitter", ((number,) for number in numbers[:JOBS]))
        fleet.send("storm.without_jitter", ((number,) for number in numbers[JOBS:]))
        wait_until(
            lambda: (
                int(client.hget(FAILURES, "1") or 0) == len(numbers)
                and time.monotonic() - begun >= OUTAGE_SECONDS
            ),
            seconds=60,
            what="every job to fail twice",
        )
        client.delete(DOWN)
    fleet.wait_until_drained(seconds=60)
    calls = fleet.ledger()
    assert {call["number"] for call in calls if not call["failed"]} == set(numbers)
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


def test_retries_of_a_thousand_jobs_come_spread(storm: Storm) -> None:
    scheduled = retries_on_a_fleet_of_any_speed(storm.with_jitter)
    arrived = [call["at"] for call in storm.with_jitter if call["retries"]]

    assert len(scheduled) > JOBS * 2
    assert peak_above_mean(scheduled) < MOST_ABOVE_MEAN
    assert peak_above_mean(arrived) < MOST_ABOVE_MEAN
    assert storm.dead == 0


def test_the_same_without_jitter_comes_in_waves(storm: Storm) -> None:
    """Shows that the test above can fail."""
    scheduled = retries_on_a_fleet_of_any_speed(storm.without_jitter)

    assert peak_above_mean(scheduled) > MOST_ABOVE_MEAN
