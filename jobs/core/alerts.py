"""When an alert begins, fires, is told again and is over. Pure: (rule, state, value, now) → state.

A value above the threshold begins it; it fires once that has held for the hold time and the cool-down
is over, and is resolved once the value was at or below the recovery threshold for the recovery hold.
Nothing is concluded from a value that is not known, or over a gap between measurements.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from jobs.core.alert_kinds import KINDS, Kind, Subject, Unit
from jobs.core.words import AlertState

__all__ = [
    "GAP",
    "KINDS",
    "Kind",
    "Limits",
    "Standing",
    "Subject",
    "Transition",
    "Unit",
    "Verdict",
    "judge",
    "shortest_period",
]

# Between two known values further apart than this, nobody knows what was: hold times begin anew.
GAP = timedelta(seconds=60)


class Transition(StrEnum):
    """What became of an alert in one judgement."""

    BEGAN = "began"
    FIRED = "fired"
    REMINDED = "reminded"
    RECOVERING = "recovering"
    RELAPSED = "relapsed"
    RESOLVED = "resolved"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rule says of when; thresholds in its unit; a recovery threshold above the other counts as that."""

    threshold: float
    recovery_threshold: float | None = None
    hold: timedelta = timedelta(0)
    recovery_hold: timedelta = timedelta(0)
    cool_down: timedelta = timedelta(0)
    # None: no reminders.
    reminder: timedelta | None = None

    @property
    def recovery(self) -> float:
        """At or below what value it recovers."""
        if self.recovery_threshold is None:
            return self.threshold
        return min(self.threshold, self.recovery_threshold)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one subject of a rule between two judgements. ``state`` is None while all is well.

    ``told_at`` is when people were last told that it fires; ``measured_at`` of the newest known value.
    """

    state: AlertState | None = None
    began_at: datetime | None = None
    fired_at: datetime | None = None
    recovering_since: datetime | None = None
    resolved_at: datetime | None = None
    measured_at: datetime | None = None
    told_at: datetime | None = None
    value: float | None = None
    peak: float | None = None
    reminders: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The next state and what happened; of a quiet judgement nothing did."""

    standing: Standing
    transitions: tuple[Transition, ...] = ()


def judge(
    limits: Limits,
    standing: Standing,
    value: float | None,
    *,
    now: datetime,
    quiet_until: datetime | None = None,
) -> Verdict:
    """Judge one value of one subject.

    ``quiet_until`` holds firing back, as the cool-down after ``standing.resolved_at`` does: the caller
    collects what begins in a burst.
    """
    if value is None:
        return Verdict(standing)
    standing = _at_most(standing, now=now)
    has_gap = standing.measured_at is not None and now - standing.measured_at > GAP
    peak = value if standing.peak is None else max(standing.peak, value)
    measured = dataclasses.replace(standing, measured_at=now, value=value)
    if standing.state is AlertState.FIRING:
        return _firing(limits, dataclasses.replace(measured, peak=peak), value, has_gap=has_gap, now=now)
    if value <= limits.threshold:
        if standing.state is not AlertState.PENDING:
            return Verdict(measured)
        return Verdict(
            Standing(resolved_at=standing.resolved_at, measured_at=now, value=value), (Transition.FORGOTTEN,)
        )
    transitions: tuple[Transition, ...] = ()
    if standing.state is not AlertState.PENDING:
        measured = Standing(
            state=AlertState.PENDING,
            began_at=now,
            resolved_at=standing.resolved_at,
            measured_at=now,
            value=value,
            peak=value,
        )
        transitions = (Transition.BEGAN,)
    else:
        measured = dataclasses.replace(measured, peak=peak, began_at=now if has_gap else standing.began_at)
    if _may_fire(limits, measured, now=now, quiet_until=quiet_until):
        measured = dataclasses.replace(measured, state=AlertState.FIRING, fired_at=now, told_at=now)
        transitions = (*transitions, Transition.FIRED)
    return Verdict(measured, transitions)


def _at_most(standing: Standing, *, now: datetime) -> Standing:
    """Take moments that lie ahead for now: a clock that was wrong must not hold anything back until it is right.

    When it was resolved last stays: that is not written again, and would move along with now.
    """

    def past(at: datetime | None) -> datetime | None:
        return at if at is None else min(at, now)

    return dataclasses.replace(
        standing,
        began_at=past(standing.began_at),
        fired_at=past(standing.fired_at),
        recovering_since=past(standing.recovering_since),
        measured_at=past(standing.measured_at),
        told_at=past(standing.told_at),
    )


def _may_fire(limits: Limits, standing: Standing, *, now: datetime, quiet_until: datetime | None) -> bool:
    if standing.began_at is None or now - standing.began_at < limits.hold:
        return False
    if standing.resolved_at is not None and now - standing.resolved_at < limits.cool_down:
        return False
    return quiet_until is None or now >= quiet_until


def _firing(limits: Limits, standing: Standing, value: float, *, has_gap: bool, now: datetime) -> Verdict:
    if value > limits.recovery:
        if standing.recovering_since is not None:
            standing = dataclasses.replace(standing, recovering_since=None)
            return Verdict(standing, (Transition.RELAPSED,))
        if (
            limits.reminder is not None
            and standing.told_at is not None
            and now - standing.told_at >= limits.reminder
            and value > limits.threshold
        ):
            standing = dataclasses.replace(standing, told_at=now, reminders=standing.reminders + 1)
            return Verdict(standing, (Transition.REMINDED,))
        return Verdict(standing)
    since = now if standing.recovering_since is None or has_gap else standing.recovering_since
    transitions = (Transition.RECOVERING,) if standing.recovering_since is None else ()
    standing = dataclasses.replace(standing, recovering_since=since)
    if now - since >= limits.recovery_hold:
        standing = dataclasses.replace(standing, state=AlertState.RESOLVED, resolved_at=now)
        return Verdict(standing, (*transitions, Transition.RESOLVED))
    return Verdict(standing, transitions)


def shortest_period(limits: Limits) -> timedelta:
    """Return how far apart two firings of one subject are at least: no sequence of values beats it."""
    return limits.recovery_hold + max(limits.hold, limits.cool_down)
