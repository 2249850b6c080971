"""The rate, against a model and in simulated fleets; the test moves the clock."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.limits.script import (
    STALE_TURN_SECONDS,
    TOLERANCE_INTERVALS,
    TOLERANCE_SECONDS,
    Answer,
    Keys,
    Scripts,
)

START = 1_800_000_000.0
LONGEST = 300.0
# The script counts in microseconds.
ROUNDING = 1e-5


def ask(
    scripts: Scripts,
    keys: Keys,
    now: float,
    *,
    interval: float = 0.1,
    turn: float | None = None,
    longest: float = LONGEST,
) -> Answer:
    return scripts.admit(
        keys,
        interval_seconds=interval,
        seats=0,
        lease_seconds=60,
        holder="somebody",
        turn=turn,
        longest_hold_seconds=longest,
        now=now,
    )


@dataclass
class Bucket:
    """A token bucket as a textbook has it."""

    interval: float
    tokens: float = -1.0
    at: float = START

    def __post_init__(self) -> None:
        self.size = 1 + max(TOLERANCE_SECONDS, self.interval * TOLERANCE_INTERVALS) / self.interval
        self.tokens = self.size

    def fill(self, now: float) -> None:
        self.tokens = min(self.size, self.tokens + (now - self.at) / self.interval)
        self.at = now


@settings(max_examples=150, deadline=None)
@given(
    interval=st.sampled_from([0.001, 0.01, 1 / 7, 0.6, 60.0]),
    steps=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.001, 0.09, 0.11, 0.9, 1.01, 3.0, 40.0]), st.sampled_from(["new", "due"])
        ),
        min_size=1,
        max_size=60,
    ),
)
def test_no_start_without_a_token_and_no_turn_refused_with_one(
    scripts: Scripts, new_keys: Callable[[], Keys], interval: float, steps: list[tuple[float, str]]
) -> None:
    keys, now, bucket = new_keys(), START, Bucket(interval)
    queue: list[float] = []

    for part, kind in steps:
        now += part * interval
        bucket.fill(now)
        due = kind == "due" and bool(queue) and now - STALE_TURN_SECONDS < queue[0] <= now
        answer = ask(scripts, keys, now, interval=interval, turn=queue.pop(0) if due else None)

        if answer.is_admitted:
            assert bucket.tokens > 1 - ROUNDING / interval
            bucket.tokens -= 1
        else:
            if due:
                assert bucket.tokens < 1 + ROUNDING / interval
            if answer.turn is not None:
                assert answer.turn == pytest.approx(now + answer.wait_seconds, abs=ROUNDING)
                queue.append(answer.turn)


@settings(max_examples=100, deadline=None)
@given(
    interval=st.sampled_from([0.01, 0.25, 2.0]),
    arrivals=st.lists(st.floats(0, 30, allow_nan=False), min_size=2, max_size=80),
)
def test_no_window_holds_more_than_the_rate_and_its_tolerance(
    scripts: Scripts, new_keys: Callable[[], Keys], interval: float, arrivals: list[float]
) -> None:
    keys = new_keys()
    tolerance = max(TOLERANCE_SECONDS, interval * TOLERANCE_INTERVALS)

    starts = [
        moment
        for moment in sorted(arrivals)
        if ask(scripts, keys, START + moment, interval=interval).is_admitted
    ]

    for first, last in itertools.combinations(range(len(starts)), 2):
        window = starts[last] - starts[first]
        assert last - first + 1 <= (window + tolerance) / interval + 1 + ROUNDING / interval


@dataclass
class Fleet:
    """Jobs that come, are held back and come again, each ``lateness()`` seconds late."""

    scripts: Scripts
    keys: Keys
    interval: float
    lateness: Callable[[], float]
    longest: float = LONGEST

    def run(self, arrivals: list[float]) -> tuple[list[float], list[int]]:
        """Return when jobs started, in order, and how often each was held back."""
        numbers = itertools.count()
        waiting: list[tuple[float, int, int, float | None]] = [
            (moment, next(numbers), job, None) for job, moment in enumerate(arrivals)
        ]
        heapq.heapify(waiting)
        starts, holds = [], [0] * len(arrivals)
        while waiting:
            now, _, job, turn = heapq.heappop(waiting)
            answer = ask(
                self.scripts, self.keys, now, interval=self.interval, turn=turn, longest=self.longest
            )
            if answer.is_admitted:
                starts.append(now)
                continue
            holds[job] += 1
            assert holds[job] < 500, "a job that never gets its turn"
            wait = answer.wait_seconds if answer.turn is not None else self.longest * random.uniform(0.5, 1)
            heapq.heappush(waiting, (now + wait + self.lateness(), next(numbers), job, answer.turn))
        return starts, holds


def test_a_backlog_is_held_back_once_a_job_and_runs_at_the_pace(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    fleet = Fleet(scripts, new_keys(), interval=0.01, lateness=lambda: random.uniform(0, 0.15))

    starts, holds = fleet.run([START] * 2000)

    assert len(starts) == 2000
    assert starts[-1] - START == pytest.approx(20, rel=0.05)
    assert max(holds) <= 2
    assert sum(holds) <= 2000 * 1.02


def test_a_backlog_whose_workers_are_very_late_still_gets_its_rate(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    """As on a machine under load: most are on time, one in a hundred is late by up to a second."""

    def lateness() -> float:
        return random.uniform(0, 1) if random.random() < 0.01 else random.uniform(0, 0.05)

    fleet = Fleet(scripts, new_keys(), interval=0.01, lateness=lateness)

    starts, holds = fleet.run([START] * 3000)

    assert len(starts) == 3000
    assert starts[-1] - START < 30 * 1.1 + 1
    assert sum(holds) < 3000 * 1.5


def test_jobs_beyond_the_longest_hold_come_back_and_all_start(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    fleet = Fleet(scripts, new_keys(), interval=0.1, lateness=lambda: 0.01, longest=10)

    starts, holds = fleet.run([START] * 600)

    assert len(starts) == 600
    assert starts[-1] - START < 60 * 1.25
    # Asking again and again at each free token would be 600 * 600 / 2.
    assert sum(holds) < 600 * 10


def test_arrivals_below_the_rate_are_hardly_ever_held_back(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    fleet = Fleet(scripts, new_keys(), interval=0.01, lateness=lambda: 0.0)
    moments = itertools.accumulate(random.expovariate(50) for _ in range(2000))

    _, holds = fleet.run([START + moment for moment in moments])

    assert sum(holds) < 2000 * 0.02


def test_a_job_that_comes_first_stands_behind_those_that_wait(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    while (first := ask(scripts, keys, START)).is_admitted:
        pass
    assert first.turn is not None
    shortly_before = first.turn - 0.001

    newcomer = ask(scripts, keys, shortly_before)
    waited = ask(scripts, keys, first.turn, turn=first.turn)

    assert not newcomer.is_admitted
    assert newcomer.turn == pytest.approx(first.turn + 0.1, abs=ROUNDING)
    assert waited.is_admitted


def test_a_token_that_would_be_lost_goes_to_whoever_asks(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    """Jobs that were held back may never return: purged, revoked, or with a worker that hangs."""
    keys = new_keys()
    for _ in range(100):
        ask(scripts, keys, START)

    newcomer = ask(scripts, keys, START + 1)

    assert newcomer.is_admitted


def test_the_last_that_waits_keeps_its_place(scripts: Scripts, new_keys: Callable[[], Keys]) -> None:
    """At one a minute the end of the queue would be another minute away."""
    keys = new_keys()
    ask(scripts, keys, START, interval=60)
    second = ask(scripts, keys, START + 1, interval=60)
    third = ask(scripts, keys, START + 2, interval=60)
    assert second.turn is not None
    assert third.turn is not None
    late = ask(scripts, keys, second.turn + 40, interval=60, turn=second.turn)

    refused = ask(scripts, keys, third.turn, interval=60, turn=third.turn)

    assert late.is_admitted
    assert not refused.is_admitted
    assert refused.wait_seconds == pytest.approx(25, abs=ROUNDING)


def test_a_job_that_comes_before_its_turn_is_told_the_same_turn(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    while (held := ask(scripts, keys, START, interval=10)).is_admitted:
        pass
    assert held.turn is not None

    early = ask(scripts, keys, held.turn - 4, interval=10, turn=held.turn)

    assert not early.is_admitted
    assert early.turn == pytest.approx(held.turn, abs=ROUNDING)
    assert early.wait_seconds == pytest.approx(4, abs=ROUNDING)


@pytest.mark.parametrize("turn", [START - STALE_TURN_SECONDS - 1, START + LONGEST + 60, 1e300, -1e300, -5.0])
def test_a_turn_of_an_earlier_life_or_an_invented_one_gives_no_precedence(
    scripts: Scripts, new_keys: Callable[[], Keys], turn: float
) -> None:
    keys = new_keys()
    for _ in range(20):
        ask(scripts, keys, START)

    answer = ask(scripts, keys, START + 0.15, turn=turn)

    assert not answer.is_admitted
    assert answer.turn is not None
    assert answer.turn > START + 1


def test_jobs_too_far_behind_get_no_turn_and_leave_the_queue_as_it_is(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    answers = [ask(scripts, keys, START, longest=5) for _ in range(200)]

    turns = [answer.turn for answer in answers if answer.turn is not None]
    without = [answer for answer in answers if not answer.is_admitted and answer.turn is None]

    assert max(turns) <= START + 5
    assert len(without) > 100
    assert all(answer.wait_seconds == 5 for answer in without)
    assert len(set(turns)) == len(turns)


def test_a_rate_that_was_raised_holds_nobody_back_for_the_old_one(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    ask(scripts, keys, START, interval=3600)

    first = ask(scripts, keys, START + 1, interval=0.1)
    second = ask(scripts, keys, START + 1.3, interval=0.1, turn=first.turn)

    assert first.wait_seconds < 0.3
    assert second.is_admitted


def test_a_clock_that_is_set_back_stops_nobody_for_long(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    for _ in range(20):
        ask(scripts, keys, START)
    day_before = START - 86_400

    first = ask(scripts, keys, day_before)
    second = ask(scripts, keys, day_before + LONGEST + 1)

    assert first.wait_seconds <= LONGEST
    assert second.is_admitted


def test_numbers_of_a_limit_that_nobody_uses_end_by_themselves(
    scripts: Scripts, new_keys: Callable[[], Keys], redis_server
) -> None:
    keys = new_keys()
    for _ in range(50):
        ask(scripts, keys, START)

    with redis_server.client() as redis:
        left = redis.pttl(keys.numbers) / 1000

    # The queue is 4.8 s long; a second more for the tolerance.
    assert 4 < left < 7
