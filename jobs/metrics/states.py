"""What stands open, written down each minute: dead letters, the outbox's lag, workers online."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs.core.windows import Window
from jobs.core.words import LetterState, RollupLevel
from jobs.metrics import workers
from jobs.models import DeadLetter, StateSample
from jobs.outbox import service as outbox

DUTY = "states"
# Several times a minute, so that each has one and the last of an hour is near its end.
EVERY_SECONDS = 20.0
MINUTES_KEPT = timedelta(days=7)
HOURS_KEPT = timedelta(days=730)


@dataclass(frozen=True, slots=True)
class State:
    """What stood open at ``at``."""

    at: datetime
    dead_letters: int | None
    outbox_lag_seconds: float | None
    workers_online: int | None


def write_state(*, now: datetime) -> StateSample:
    """Count what stands open now, keep it as its minute's and its hour's, and delete what is too old."""
    boots = workers.boots_now(now=now)
    counted = {
        "dead_letters": DeadLetter.objects.filter(state=LetterState.DEAD).count(),
        "outbox_lag_seconds": outbox.overview(now=now).lag_seconds,
        "workers_online": sum(boot.is_online for boot in boots),
    }
    minute = now.replace(second=0, microsecond=0)
    sample, _ = StateSample.objects.update_or_create(
        level=RollupLevel.MINUTE.value, at=minute, defaults=counted
    )
    StateSample.objects.update_or_create(
        level=RollupLevel.HOUR.value, at=minute.replace(minute=0), defaults=counted
    )
    for level, kept in ((RollupLevel.MINUTE, MINUTES_KEPT), (RollupLevel.HOUR, HOURS_KEPT)):
        StateSample.objects.filter(level=level.value, at__lt=now - kept).delete()
    return sample


def state_at(moment: datetime, *, now: datetime) -> State | None:
    """Return what stood open at a moment, or None when nobody counted then. One query.

    As it was counted last in the minute that ends there, or lately before: five minutes, of hours three.
    """
    is_recent = now - moment < MINUTES_KEPT
    level, reach = (
        (RollupLevel.MINUTE, timedelta(minutes=5)) if is_recent else (RollupLevel.HOUR, timedelta(hours=3))
    )
    samples = StateSample.objects.filter(level=level.value, at__lt=moment, at__gte=moment - reach)
    row = samples.order_by("-at").values_list(*_COLUMNS).first()
    return None if row is None else State(*row)


def series(window: Window, *, now: datetime) -> list[State | None]:
    """Return what stood open at the end of each step, None where nobody counted. One query."""
    level = RollupLevel.MINUTE if window.level(now=now) == RollupLevel.MINUTE else RollupLevel.HOUR
    found: list[State | None] = [None] * len(window.steps)
    samples = StateSample.objects.filter(level=level.value, at__gte=window.start, at__lt=window.end)
    for row in samples.order_by("at").values_list(*_COLUMNS):
        found[window.index(row[0])] = State(*row)
    return found


_COLUMNS = ("at", "dead_letters", "outbox_lag_seconds", "workers_online")
