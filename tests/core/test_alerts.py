"""When alerts fire and end: examples, and what holds for any sequence of values."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.core.alerts import GAP, Limits, Standing, Transition, judge, shortest_period
from jobs.core.words import AlertState

NOW = datetime(2026, 11, 12, 2, 41, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LIMITS = Limits(
    threshold=20,
    recovery_threshold=10,
    hold=60 * SECOND,
    recovery_hold=120 * SECOND,
    cool_down=600 * SECOND,
    reminder=3600 * SECOND,
)

Sample = tuple[float, float | None]
Event = tuple[datetime, Transition]


def run(
    limits: Limits, samples: list[Sample], standing: Standing | None = None
) -> tuple[list[Event], Standing]:
    """Judge values at so many seconds after each other."""
    standing, now, events = standing or Standing(), NOW, []
    for seconds, value in samples:
        now += seconds * SECOND
        verdict = judge(limits, standing, value, now=now)
        standing = verdict.standing
        events += [(now, each) for each in verdict.transitions]
    return events, standing


def names(events: list[Event]) -> list[str]:
    return [transition.value for _, transition in events]


def every(seconds: float, *values: float | None) -> list[Sample]:
    return [(seconds, value) for value in values]


def test_it_begins_above_the_threshold_and_fires_once_it_held() -> None:
    events, standing = run(LIMITS, every(20, 20, 21, 25, 22, 23, 24))

    assert names(events) == ["began", "fired"]
    began, fired = (at for at, _ in events)
    assert fired - began == LIMITS.hold
    assert standing.state is AlertState.FIRING
    assert standing.peak == 25


def test_without_a_hold_time_it_fires_at_once() -> None:
    events, _ = run(replace(LIMITS, hold=timedelta(0)), every(5, 21))

    assert names(events) == ["began", "fired"]


def test_a_value_at_the_threshold_begins_nothing() -> None:
    assert run(LIMITS, every(5, *[20] * 100))[0] == []


def test_it_is_forgotten_when_it_ends_before_the_hold_time() -> None:
    events, standing = run(LIMITS, every(20, 30, 30, 5))

    assert names(events) == ["began", "forgotten"]
    assert standing.state is None


def test_between_the_thresholds_it_neither_ends_nor_recovers() -> None:
    events, standing = run(LIMITS, every(30, 30, 30, 30, *[15] * 100))

    assert names(events) == ["began", "fired"]
    assert standing.state is AlertState.FIRING


def test_it_is_resolved_once_it_was_low_for_the_recovery_hold() -> None:
    events, standing = run(LIMITS, every(30, 30, 30, 30, 10, 9, 8, 7, 6))

    assert names(events) == ["began", "fired", "recovering", "resolved"]
    assert standing.state is AlertState.RESOLVED
    assert standing.resolved_at == standing.recovering_since + LIMITS.recovery_hold


def test_a_relapse_begins_the_recovery_hold_anew() -> None:
    events, _ = run(LIMITS, every(30, 30, 30, 30, 5, 5, 5, 12, 5, 5, 5, 5, 5))

    assert names(events) == ["began", "fired", "recovering", "relapsed", "recovering", "resolved"]


def test_after_it_was_resolved_it_fires_again_only_when_it_has_cooled_down() -> None:
    low = every(30, *[0] * 5)
    events, _ = run(LIMITS, every(30, 30, 30, 30) + low + every(30, *[30] * 40))

    fired = [at for at, each in events if each is Transition.FIRED]
    resolved = [at for at, each in events if each is Transition.RESOLVED]
    assert len(fired) == 2
    assert fired[1] - resolved[0] == LIMITS.cool_down


def test_one_reminder_comes_each_so_long_while_it_fires() -> None:
    limits = replace(LIMITS, hold=timedelta(0), reminder=300 * SECOND)
    events, standing = run(limits, every(50, *[30] * 20))

    assert names(events).count("reminded") == 3
    assert standing.reminders == 3


def test_nobody_is_reminded_of_what_recovers() -> None:
    limits = replace(LIMITS, hold=timedelta(0), reminder=300 * SECOND, recovery_hold=3600 * SECOND)
    events, _ = run(limits, every(50, 30, *[5] * 40))

    assert "reminded" not in names(events)


@pytest.mark.parametrize("state", [AlertState.PENDING, AlertState.FIRING])
def test_a_value_that_is_not_known_changes_nothing(state: AlertState) -> None:
    standing = Standing(state=state, began_at=NOW, fired_at=NOW, measured_at=NOW, value=30, peak=30)

    verdict = judge(LIMITS, standing, None, now=NOW + timedelta(days=1))

    assert verdict.standing == standing
    assert verdict.transitions == ()


def test_an_hour_in_which_nobody_judged_does_not_count_as_hold_time() -> None:
    """Runops was down: what was in between is not known."""
    events, standing = run(LIMITS, [(0, 30), (3600, 30)])
    assert names(events) == ["began"]
    assert standing.began_at == NOW + timedelta(hours=1)

    events, _ = run(LIMITS, [(0, 30), (3600, 30), (30, 30), (30, 30)])
    assert names(events) == ["began", "fired"]


def test_an_hour_in_which_nothing_was_known_does_not_count_as_recovery() -> None:
    events, standing = run(LIMITS, [*every(30, 30, 30, 30, 5), *every(30, *[None] * 120), (30, 5)])

    assert names(events) == ["began", "fired", "recovering"]
    assert standing.state is AlertState.FIRING


def test_quiet_until_holds_firing_back() -> None:
    standing = Standing(state=AlertState.PENDING, began_at=NOW - timedelta(hours=1), measured_at=NOW, peak=30)
    until = NOW + timedelta(minutes=5)

    early = judge(LIMITS, standing, 30, now=NOW, quiet_until=until)
    assert early.transitions == ()
    late = judge(LIMITS, replace(early.standing, measured_at=until), 30, now=until, quiet_until=until)
    assert late.transitions == (Transition.FIRED,)


def test_a_recovery_threshold_above_the_other_counts_as_that() -> None:
    limits = replace(LIMITS, recovery_threshold=50, hold=timedelta(0), recovery_hold=timedelta(0))

    events, _ = run(limits, every(5, 30, 30, 30))

    assert names(events) == ["began", "fired"]


seconds = st.integers(0, 900).map(lambda each: each * SECOND)
some_limits = st.builds(
    Limits,
    threshold=st.floats(0, 30),
    recovery_threshold=st.none() | st.floats(0, 40),
    hold=seconds,
    recovery_hold=seconds,
    cool_down=seconds,
    reminder=st.none() | st.integers(60, 900).map(lambda each: each * SECOND),
)
# Mostly as often as runops judges, sometimes after a while, rarely after an outage.
some_values = st.none() | st.floats(0, 40) | st.sampled_from([0.0, 40.0])
some_samples = st.lists(
    st.tuples(st.one_of(st.just(5.0), st.floats(0.1, 59), st.floats(61, 4000)), some_values), max_size=150
)


def moments_of(samples: list[Sample]) -> list[tuple[datetime, float | None]]:
    """Return when each value is judged: step by step as ``run`` does, since a sum of seconds is a microsecond off."""
    at = itertools.accumulate((seconds * SECOND for seconds, _ in samples), initial=timedelta(0))
    return [(NOW + since, value) for since, (_, value) in zip(list(at)[1:], samples, strict=True)]


def moments(events: list[Event], transition: Transition) -> list[datetime]:
    return [at for at, each in events if each is transition]


@given(some_limits, some_samples)
@settings(max_examples=400, deadline=None)
def test_no_sequence_fires_or_ends_more_often_than_hold_and_cool_down_allow(
    limits: Limits, samples: list[Sample]
) -> None:
    events, _ = run(limits, samples)

    period = shortest_period(limits)
    for transition in (Transition.FIRED, Transition.RESOLVED):
        at = moments(events, transition)
        for first, last in itertools.combinations(range(len(at)), 2):
            # In a span of length T: at most 1 + T / period.
            assert last - first <= (at[last] - at[first]) / period if period else True
    told = [each for _, each in events if each in {Transition.FIRED, Transition.RESOLVED}]
    assert told == [Transition.FIRED, Transition.RESOLVED] * (len(told) // 2) + told[len(told) // 2 * 2 :]
    assert told[:1] in ([], [Transition.FIRED])


@given(some_limits, some_samples)
@settings(max_examples=400, deadline=None)
def test_it_never_fires_before_it_held_without_a_gap(limits: Limits, samples: list[Sample]) -> None:
    events, _ = run(limits, samples)

    known = moments_of(samples)
    for fired in moments(events, Transition.FIRED):
        held = [
            (at, value) for at, value in known if fired - limits.hold <= at <= fired and value is not None
        ]
        assert all(value > limits.threshold for _, value in held)
        assert held[-1][0] == fired
        before = [at for at, value in known if at <= fired - limits.hold and value is not None]
        chain = ([before[-1]] if before and limits.hold else []) + [at for at, _ in held]
        assert fired - chain[0] >= limits.hold
        assert all(later - earlier <= GAP for earlier, later in itertools.pairwise(chain))


@given(some_limits, some_samples)
@settings(max_examples=400, deadline=None)
def test_it_ends_only_after_the_recovery_hold_below_the_threshold(
    limits: Limits, samples: list[Sample]
) -> None:
    events, _ = run(limits, samples)

    known = moments_of(samples)
    for resolved in moments(events, Transition.RESOLVED):
        low = [v for at, v in known if resolved - limits.recovery_hold <= at <= resolved and v is not None]
        assert low
        assert all(value <= limits.recovery for value in low)


@given(some_limits, some_samples, st.integers(0, 150))
@settings(max_examples=200, deadline=None)
def test_who_continues_from_the_stored_state_comes_to_the_same(
    limits: Limits, samples: list[Sample], cut: int
) -> None:
    whole, end = run(limits, samples)

    standing, now, events = Standing(), NOW, []
    for number, (after, value) in enumerate(samples):
        now += after * SECOND
        if number == cut:
            standing = stored(standing)
        verdict = judge(limits, standing, value, now=now)
        standing = verdict.standing
        events += [(now, each) for each in verdict.transitions]

    assert events == whole
    assert stored(standing) == stored(end)


def stored(standing: Standing) -> Standing:
    """Return what the database keeps: of a subject without an open alert only when the last one ended."""
    if standing.state in {AlertState.PENDING, AlertState.FIRING}:
        return standing
    return Standing(resolved_at=standing.resolved_at)
