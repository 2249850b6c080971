"""When a rule would have fired, had it been judged before: the same judge over values of the past. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs.core.alerts import Limits, Standing, Transition, judge


@dataclass(frozen=True, slots=True)
class Firing:
    """When it would have fired, and been over; None while it still fires at the end."""

    fired_at: datetime
    resolved_at: datetime | None


def rehearse(
    limits: Limits, values: Sequence[float | None], *, start: datetime, step: timedelta
) -> list[Firing]:
    """Judge the values one after the other, the first at ``start``; None is not known.

    A step of more than ``alerts.GAP`` never fires a rule with a hold time, since nothing is concluded over a gap.
    """
    standing = Standing()
    firings: list[Firing] = []
    for number, value in enumerate(values):
        verdict = judge(limits, standing, value, now=start + step * number)
        standing = verdict.standing
        if Transition.FIRED in verdict.transitions and standing.fired_at is not None:
            firings.append(Firing(standing.fired_at, None))
        if Transition.RESOLVED in verdict.transitions:
            firings[-1] = Firing(firings[-1].fired_at, standing.resolved_at)
            standing = Standing(resolved_at=standing.resolved_at, measured_at=standing.measured_at)
    return firings
