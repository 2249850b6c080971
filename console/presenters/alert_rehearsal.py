"""How often a rule would have fired in the last day, in one sentence for its form."""

from __future__ import annotations

from datetime import datetime

from console import times
from jobs.alerts.rehearsing import HOURS, Rehearsal, rehearse_rule
from jobs.core.alert_rehearsals import Firing
from jobs.models import AlertRule

# With less than this share of the time known nothing can be said; with less than the other it is said how little.
_LEAST_KNOWN, _WELL_KNOWN = 0.02, 0.9


def sentence(rule: AlertRule, *, now: datetime) -> str:
    """Say when a rule, saved or not, would have fired; "" for kinds of which no numbers of the past are kept."""
    found = rehearse_rule(rule, now=now)
    return "" if found is None else _words(found, now=now)


def _words(found: Rehearsal, *, now: datetime) -> str:
    span = f"In the last {HOURS} hours"
    if found.known < _LEAST_KNOWN:
        return f"{span} too little was measured to say how often it would have fired."
    little = (
        f" Of {100 * (1 - found.known):.0f} % of that time nothing is known."
        if found.known < _WELL_KNOWN
        else ""
    )
    number = len(found.firings)
    if not number:
        return f"{span} it would not have fired.{little}"
    last = found.firings[-1]
    if number == 1:
        return f"{span} it would have fired once: {_period(last, now=now)}.{little}"
    return f"{span} it would have fired {number:,} times, the last time {_period(last, now=now)}.{little}"


def _period(firing: Firing, *, now: datetime) -> str:
    begin = times.clock(firing.fired_at, now=now)
    if firing.resolved_at is None:
        return f"from {begin} UTC until now"
    return f"from {begin} to {times.clock(firing.resolved_at, now=now)} UTC"
