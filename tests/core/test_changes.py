"""Where a series changed its level: found where it is plain, silent where it is noise."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from jobs.core.changes import LEAST_STEPS, find_change


def test_a_step_is_found_where_it_is():
    change = find_change([9.0] * 29 + [505.0] * 31)

    assert change is not None
    assert (change.before, change.after, change.index, change.is_rise) == (9.0, 505.0, 29, True)


def test_unknown_steps_are_passed_over_and_keep_their_place():
    change = find_change([10.0] * 12 + [None] * 6 + [2.0] * 12)

    assert change is not None
    assert (change.index, change.is_rise, change.share) == (18, False, -0.8)


def test_noise_is_no_change():
    chance = random.Random(5)

    assert find_change([650 + chance.uniform(-20, 20) for _ in range(60)]) is None
    assert find_change([4.0] * 60) is None


def test_one_spike_is_no_change():
    assert find_change([2.0] * 30 + [60.0] + [2.0] * 29) is None


def test_what_is_too_small_to_tell_is_not_told():
    assert find_change([0.0] * 30 + [0.4] * 30, least=1.0) is None
    assert find_change([100.0] * 30 + [110.0] * 30) is None


def test_from_zero_there_is_no_share():
    change = find_change([0.0] * 10 + [3.0] * 10)

    assert change is not None
    assert change.share is None


@given(st.lists(st.none() | st.floats(0, 1e9), max_size=80))
def test_any_series_gives_a_change_within_it_or_none(values):
    change = find_change(values)

    if change is not None:
        known = [number for number, value in enumerate(values) if value is not None]
        assert change.index in known[LEAST_STEPS : len(known) - LEAST_STEPS + 1]
        assert math.isfinite(change.before)
        assert math.isfinite(change.after)
