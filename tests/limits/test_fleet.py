"""The promises of rate and concurrency, with four real workers on a real Redis."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.job_fleet import JobFleet, job_fleet
from tests.servers import RedisServer, wait_until

pytestmark = pytest.mark.worker

LEASE_SECONDS = 4  # of limited.seated


def most_at_once(lines: list[dict[str, Any]]) -> int:
    running = most = 0
    for line in sorted(lines, key=lambda each: each["at"]):
        running += 1 if line["what"] == "start" else -1
        most = max(most, running)
    return most


def test_never_more_than_three_run_at_once_over_four_workers(fleet: JobFleet) -> None:
    count = fleet.send("limited.seated", ((number, 0.1) for number in range(60)))

    wait_until(lambda: fleet.ledger_length() >= count * 2, seconds=90, what="60 jobs on three seats")
    fleet.wait_until_drained()
    lines = fleet.ledger()

    assert most_at_once(lines) == 3
    assert Counter(line["number"] for line in lines if line["what"] == "end") == Counter(range(count))
    assert {line["retries"] for line in lines} == {0}
    assert fleet.dead() == 0


def test_holders_that_were_killed_keep_their_seats_for_one_lease_and_nobody_hangs(
    fleet: JobFleet,
) -> None:
    """Their jobs come back at once, since the parents saw the children die, and wait like all others."""
    fleet.send("limited.seated", ((number, 60.0) for number in range(3)))
    wait_until(lambda: fleet.ledger_length() == 3, seconds=30, what="three long jobs to take all seats")
    victims = fleet.ledger()
    count = 3 + fleet.send("limited.seated", ((number, 0.1) for number in range(3, 15)))
    wait_until(lambda: fleet.asked() > 12, seconds=30, what="others to ask for a seat")

    for victim in victims:
        os.kill(victim["pid"], signal.SIGKILL)
    wait_until(lambda: len(_ended(fleet)) == count, seconds=60, what="all jobs to end")
    fleet.wait_until_drained()
    lines = fleet.ledger()[len(victims) :]

    assert most_at_once(lines) <= 3
    assert Counter(line["number"] for line in lines if line["what"] == "start") == Counter(range(count))
    assert {line["retries"] for line in lines} == {0}
    assert fleet.dead() == 0
    # The seats of the dead were not given away before their lease ended; it began just before the ledger's line.
    assert lines[0]["at"] - victims[0]["at"] > LEASE_SECONDS * 2 / 3


def _ended(fleet: JobFleet) -> set[int]:
    return {line["number"] for line in fleet.ledger() if line["what"] == "end"}


def test_a_limit_key_limits_each_customer_alone(fleet: JobFleet) -> None:
    customers = ("ann", "bob", "cy")

    count = fleet.send("limited.keyed", ((number, customers[number % 3]) for number in range(45)))
    wait_until(lambda: fleet.ledger_length() >= count * 2, seconds=60, what="the jobs of three customers")
    lines = fleet.ledger()

    for customer in customers:
        assert most_at_once([line for line in lines if line["customer"] == customer]) == 1
    assert most_at_once(lines) > 1


def test_while_the_redis_of_the_limits_is_away_jobs_wait_and_none_fails(tmp_path: Path) -> None:
    limits, count = RedisServer().start(), 20
    try:
        with job_fleet(tmp_path, 1, application="tests.limits.shop", limits_url=limits.url) as fleet:
            (worker,) = fleet.workers
            limits.stop()
            fleet.send("limited.paced", ((number,) for number in range(count)))
            held = b"are kept in a Redis that cannot be asked now"
            wait_until(lambda: worker.log.read_bytes().count(held) >= count, what="all jobs to be held back")
            # One that is just being fetched again is in neither of the two places for a moment.
            wait_until(lambda: fleet.waiting() == count, what="all jobs to wait")
            started_meanwhile = fleet.ledger_length()
            limits.start()
            wait_until(lambda: fleet.ledger_length() >= count, seconds=60, what="the jobs to run")
            fleet.wait_until_drained()
            lines, log = fleet.ledger(), worker.log.read_text()

            assert started_meanwhile == 0
            assert Counter(line["number"] for line in lines) == Counter(range(count))
            assert {line["retries"] for line in lines} == {0}
            assert fleet.dead() == 0
            assert log.count("none is let through and none fails") == 1
            assert log.count("answers again") == 1
    finally:
        limits.remove()
