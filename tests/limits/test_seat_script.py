"""The seats, against a model and in simulated fleets; the test moves the clock."""

from __future__ import annotations

import heapq
import itertools
import random
import statistics
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.limits.script import Answer, Keys, Scripts
from tests.servers import RedisServer

START = 1_800_000_000.0
LONGEST = 300.0
LEASE = 60.0


def ask(
    scripts: Scripts,
    keys: Keys,
    now: float | None,
    *,
    holder: str,
    seats: int = 1,
    interval: float = 0.0,
    turn: float | None = None,
    lease: float = LEASE,
) -> Answer:
    return scripts.admit(
        keys,
        interval_seconds=interval,
        seats=seats,
        lease_seconds=lease,
        holder=holder,
        turn=turn,
        longest_hold_seconds=LONGEST,
        now=now,
    )


@settings(max_examples=150, deadline=None)
@given(
    seats=st.integers(1, 4),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["come", "end", "renew"]), st.integers(0, 9), st.sampled_from([0, 1, 20, 45])
        ),
        max_size=60,
    ),
)
def test_seats_are_given_only_when_free_and_a_turn_gets_every_free_one(
    scripts: Scripts, new_keys: Callable[[], Keys], seats: int, steps: list[tuple[str, int, int]]
) -> None:
    keys, now, names = new_keys(), START, itertools.count()
    taken: dict[str, float] = {}

    for action, which, passed in steps:
        now += passed
        # A dead holder says nothing any more; a live one renews even after its lease ran out.
        live = {name: end for name, end in taken.items() if end > now}
        chosen = sorted(taken)[which % len(taken)] if taken else None
        if action == "come":
            holder = str(next(names))
            has_turn = bool(which % 2)
            answer = ask(scripts, keys, now, holder=holder, seats=seats, turn=now if has_turn else None)
            assert not answer.is_admitted or len(live) < seats
            assert answer.is_admitted or len(live) >= seats or not has_turn
            taken = live
            if answer.is_admitted:
                taken[holder] = now + LEASE
        elif chosen is not None and action == "end":
            scripts.release(keys, holder=chosen, ran_seconds=1, now=now)
            del taken[chosen]
        elif chosen is not None:
            was_held = scripts.renew(keys, holder=chosen, lease_seconds=LEASE, now=now)
            assert was_held is (chosen in live)
            taken[chosen] = now + LEASE


def run_fleet(
    scripts: Scripts, keys: Keys, *, jobs: int, seats: int, runtime: Callable[[], float]
) -> tuple[float, float]:
    """Let all jobs come at once; return the part of the seats' time that was used, and the holds a job."""
    numbers = itertools.count()
    events = [(START, next(numbers), "come", job, 0.0) for job in range(jobs)]
    heapq.heapify(events)
    running = holds = done = 0
    used = ended = 0.0
    while events:
        now, _, kind, job, value = heapq.heappop(events)
        if kind == "end":
            scripts.release(keys, holder=str(job), ran_seconds=value, now=now)
            running, done, ended = running - 1, done + 1, now
            continue
        answer = ask(scripts, keys, now, holder=str(job), seats=seats, turn=value or None, lease=1e5)
        if answer.is_admitted:
            running += 1
            assert running <= seats
            seconds = runtime()
            used += seconds
            heapq.heappush(events, (now + seconds, next(numbers), "end", job, seconds))
        else:
            holds += 1
            assert holds < jobs * 200, "jobs that never get a seat"
            wait = answer.wait_seconds if answer.turn is not None else LONGEST * random.uniform(0.5, 1)
            again = now + wait + random.uniform(0, 0.02)
            heapq.heappush(events, (again, next(numbers), "come", job, answer.turn or 0.0))
    assert done == jobs
    return used / seats / (ended - START), holds / jobs


@pytest.mark.parametrize("seats", [1, 3, 10])
@pytest.mark.parametrize(
    "runtime", [lambda: 0.05, lambda: 1.0, lambda: random.expovariate(1)], ids=["short", "even", "mixed"]
)
def test_a_backlog_keeps_the_seats_busy_with_few_comebacks(
    scripts: Scripts, new_keys: Callable[[], Keys], seats: int, runtime: Callable[[], float]
) -> None:
    # One fleet of mixed jobs is between 0.53 and 0.81 of busy by chance; five together have not been below 0.7.
    fleets = [run_fleet(scripts, new_keys(), jobs=300, seats=seats, runtime=runtime) for _ in range(5)]

    assert statistics.fmean(used for used, _ in fleets) > 0.6
    assert statistics.fmean(holds for _, holds in fleets) < 8


def test_one_that_waits_for_a_dead_holder_asks_seldom_and_comes_soon_after(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys, now, asked, turn = new_keys(), START, 0, None
    for _ in range(20):
        ask(scripts, keys, now, holder="quick")
        scripts.release(keys, holder="quick", ran_seconds=0.01, now=now)
    ask(scripts, keys, now, holder="killed")

    while not (answer := ask(scripts, keys, now, holder="waits", turn=turn)).is_admitted:
        asked += 1
        now, turn = now + answer.wait_seconds, answer.turn

    assert asked < 30
    assert START + LEASE <= now <= START + LEASE * 1.5


def test_a_seat_is_free_once_the_lease_of_a_killed_holder_ended(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    ask(scripts, keys, START, holder="killed")

    before = ask(scripts, keys, START + LEASE - 1, holder="next", turn=START + LEASE - 1)
    after = ask(scripts, keys, START + LEASE, holder="next", turn=START + LEASE)

    assert not before.is_admitted
    assert after.is_admitted


def test_who_still_runs_holds_its_seat_again_after_its_lease_ran_out(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    ask(scripts, keys, START, holder="slow")

    was_held = scripts.renew(keys, holder="slow", lease_seconds=LEASE, now=START + LEASE + 5)
    answer = ask(scripts, keys, START + LEASE + 6, holder="next", turn=START + LEASE + 6)

    assert was_held is False
    assert not answer.is_admitted


def test_a_job_that_gets_no_seat_uses_no_token_of_the_rate(
    scripts: Scripts, new_keys: Callable[[], Keys]
) -> None:
    keys = new_keys()
    ask(scripts, keys, START, holder="first", interval=10)
    now = START + 20
    for number in range(5):
        assert not ask(scripts, keys, now, holder=str(number), interval=10, turn=now).is_admitted
    scripts.release(keys, holder="first", ran_seconds=20, now=now)

    answer = ask(scripts, keys, now, holder="next", interval=10, turn=now)

    assert answer.is_admitted


def test_a_job_that_the_rate_holds_back_takes_no_seat(
    scripts: Scripts, new_keys: Callable[[], Keys], redis_server: RedisServer
) -> None:
    keys = new_keys()
    ask(scripts, keys, START, holder="first", interval=10, seats=5)

    answer = ask(scripts, keys, START + 1, holder="second", interval=10, seats=5)

    with redis_server.client() as redis:
        holders = redis.zrange(keys.seats, 0, -1)
    assert not answer.is_admitted
    assert holders == [b"first"]


def test_clients_that_race_by_the_real_clock_never_share_a_seat(
    redis_server: RedisServer, new_keys: Callable[[], Keys]
) -> None:
    keys, seats, most, running, served = new_keys(), 3, 0, 0, 0
    lock, pause = threading.Lock(), threading.Event()

    def work(name: str) -> None:
        nonlocal most, running, served
        with redis_server.client() as redis:
            own = Scripts(redis)
            for number in range(150):
                holder = f"{name}-{number}"
                if not ask(own, keys, None, holder=holder, seats=seats).is_admitted:
                    continue
                with lock:
                    running += 1
                    most, served = max(most, running), served + 1
                pause.wait(0.001)
                with lock:
                    running -= 1
                own.release(keys, holder=holder, ran_seconds=0.001)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert served > seats
    # How many overlap is the machine's affair.
    assert 1 <= most <= seats


def test_seats_and_numbers_end_by_themselves(
    scripts: Scripts, new_keys: Callable[[], Keys], redis_server: RedisServer
) -> None:
    keys = new_keys()
    ask(scripts, keys, START, holder="killed")

    with redis_server.client() as redis:
        seats, numbers = redis.pttl(keys.seats) / 1000, redis.pttl(keys.numbers) / 1000

    assert LEASE - 5 < seats <= LEASE + 1
    assert 500 < numbers <= 700
