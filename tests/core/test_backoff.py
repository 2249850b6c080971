"""Full jitter: the formula, its edges, and its distribution."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.core.backoff import LONGEST_WAIT_SECONDS, ceiling, delay


def most(low: float, high: float) -> float:
    return high


def least(low: float, high: float) -> float:
    return low


@pytest.mark.parametrize(
    ("attempt", "expected"), [(0, 1), (1, 4), (2, 16), (3, 64), (4, 256), (5, 300), (6, 300), (10**9, 300)]
)
def test_the_longest_wait_grows_by_the_factor_up_to_the_cap(attempt: int, expected: float) -> None:
    assert ceiling(attempt, base=1, factor=4, cap=300) == expected


@pytest.mark.parametrize(
    ("base", "factor", "cap", "expected"),
    [(0, 4, 300, 0), (1, 4, 0, 0), (2, 1, 300, 2), (500, 4, 300, 300), (1e-300, 100, 86_400, 86_400)],
)
def test_the_edges_of_the_policies_have_a_longest_wait(
    base: float, factor: float, cap: float, expected: float
) -> None:
    assert ceiling(200, base=base, factor=factor, cap=cap) == expected


def test_a_base_that_is_hardly_above_nothing_overflows_nothing() -> None:
    assert ceiling(10_000, base=5e-324, factor=100, cap=86_400) == 86_400
    assert 0 < ceiling(160, base=5e-324, factor=100, cap=86_400) < 1
    assert 0 < ceiling(400, base=5e-324, factor=1.5, cap=86_400) < 1e-200


def test_a_wait_is_anything_from_nothing_to_the_longest() -> None:
    for attempt, longest in ((0, 1), (3, 64), (9, 300)):
        assert delay(attempt, base=1, factor=4, cap=300, uniform=least) == 0
        assert delay(attempt, base=1, factor=4, cap=300, uniform=most) == longest


def test_what_was_asked_for_comes_before_the_jitter_and_not_instead_of_it() -> None:
    assert delay(0, base=1, factor=4, cap=300, uniform=least, at_least=30) == 30
    assert delay(2, base=1, factor=4, cap=300, uniform=most, at_least=30) == 46


def test_nobody_waits_more_than_a_day_and_the_jitter() -> None:
    assert delay(0, base=1, factor=4, cap=300, uniform=most, at_least=1e12) == LONGEST_WAIT_SECONDS + 1


@given(
    attempt=st.integers(0, 10_000),
    base=st.floats(0, 86_400),
    factor=st.floats(1, 100),
    cap=st.floats(0, 86_400),
    at_least=st.floats(0, 1e18),
    part=st.floats(0, 1),
)
def test_any_policies_give_a_wait_within_its_bounds(
    attempt: int, base: float, factor: float, cap: float, at_least: float, part: float
) -> None:
    wait = delay(
        attempt,
        base=base,
        factor=factor,
        cap=cap,
        uniform=lambda low, high: low + (high - low) * part,
        at_least=at_least,
    )

    asked = min(at_least, LONGEST_WAIT_SECONDS)
    assert asked <= wait <= (asked + cap) * (1 + 1e-12)


@given(
    attempt=st.integers(0, 1000),
    base=st.floats(0.001, 100),
    factor=st.floats(1, 100),
    cap=st.floats(0.001, 1000),
)
def test_the_longest_wait_never_shrinks_with_the_attempts(
    attempt: int, base: float, factor: float, cap: float
) -> None:
    assert ceiling(attempt, base=base, factor=factor, cap=cap) <= ceiling(
        attempt + 1, base=base, factor=factor, cap=cap
    ) * (1 + 1e-9)


@pytest.mark.parametrize("attempt", [0, 2, 6])
def test_the_waits_are_spread_evenly_from_nothing_to_the_longest(attempt: int) -> None:
    """20,000 waits in ten equal parts: each part holds a tenth, to within four standard deviations."""
    source = random.Random(attempt)
    longest = ceiling(attempt, base=1, factor=4, cap=300)

    waits = [delay(attempt, base=1, factor=4, cap=300, uniform=source.uniform) for _ in range(20_000)]

    parts = [0] * 10
    for wait in waits:
        parts[min(9, int(wait / longest * 10))] += 1
    expected, deviation = 2_000, (20_000 * 0.1 * 0.9) ** 0.5
    assert all(abs(count - expected) < 4 * deviation for count in parts)
    assert statistics.mean(waits) == pytest.approx(longest / 2, rel=0.02)
