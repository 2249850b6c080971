"""The span of time that a page shows, and the steps of its charts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from jobs.core.words import RollupLevel

# What a page offers by name: its length and the step of its charts, in seconds.
NAMED: dict[str, tuple[int, int]] = {
    "1h": (3_600, 60),
    "6h": (21_600, 300),
    "24h": (86_400, 900),
    "7d": (604_800, 7_200),
    "30d": (2_592_000, 21_600),
}
DEFAULT = "1h"
# The steps a range of one's own may have, in seconds: the first with at most MOST_POINTS points.
STEPS = (60, 300, 900, 3_600, 7_200, 21_600, 86_400)
MOST_POINTS = 120
LEAST = timedelta(minutes=5)
# How long the span of each level of rollups is, and how long it is kept: whole days, so that a day's minutes go
# together.
LENGTHS: Mapping[RollupLevel, timedelta] = {
    RollupLevel.MINUTE: timedelta(minutes=1),
    RollupLevel.HOUR: timedelta(hours=1),
    RollupLevel.DAY: timedelta(days=1),
}
KEPT: Mapping[RollupLevel, timedelta] = {
    RollupLevel.MINUTE: timedelta(days=7),
    RollupLevel.HOUR: timedelta(days=90),
    RollupLevel.DAY: timedelta(days=730),
}
MOST = KEPT[RollupLevel.DAY]


@dataclass(frozen=True, slots=True)
class Window:
    """[start, end) in steps of ``step_seconds``; both ends lie on a step, UTC.

    ``name`` is one of NAMED, "" for a range of one's own. ``now`` lies in the last step of a named one.
    """

    start: datetime
    end: datetime
    step_seconds: int
    name: str = ""

    @property
    def steps(self) -> list[datetime]:
        """Where each step begins."""
        step = timedelta(seconds=self.step_seconds)
        return [self.start + step * number for number in range(round((self.end - self.start) / step))]

    @property
    def length(self) -> timedelta:
        """How long it is."""
        return self.end - self.start

    def before(self) -> Window:
        """Return the span of the same length that ends where this one begins."""
        return Window(self.start - self.length, self.start, self.step_seconds)

    def index(self, moment: datetime) -> int:
        """Return which step a moment lies in; it may lie outside."""
        return int((moment - self.start).total_seconds() // self.step_seconds)

    def level(self, *, now: datetime) -> RollupLevel:
        """Return the coarsest rollup that its steps can be made of, and that is still kept at its start."""
        if self.step_seconds >= 86_400 or now - self.start > KEPT[RollupLevel.HOUR]:
            return RollupLevel.DAY
        if self.step_seconds >= 3_600 or now - self.start > KEPT[RollupLevel.MINUTE]:
            return RollupLevel.HOUR
        return RollupLevel.MINUTE


def named(name: str, *, now: datetime) -> Window:
    """Return a named window that ends with the step of ``now``; an unknown name is DEFAULT."""
    known = name if name in NAMED else DEFAULT
    length, step = NAMED[known]
    end = _floor(now, step) + timedelta(seconds=step)
    return Window(end - timedelta(seconds=length), end, step, known)


def between(start: datetime, end: datetime, *, now: datetime) -> Window:
    """Return the window of a range of one's own, widened to whole steps and to LEAST.

    Raises:
        ValueError: when it ends before it begins, lies ahead or too far back, or is longer than MOST; says which.
    """
    if end <= start:
        raise ValueError("The range ends before it begins.")
    if start >= now:
        raise ValueError("The range lies in the future.")
    if now - end > MOST:
        raise ValueError(f"The range ends more than {MOST.days} days ago, and older numbers are not kept.")
    if end - start > MOST:
        raise ValueError(f"The range is longer than {MOST.days} days, and older numbers are not kept.")
    length = max(end - start, LEAST).total_seconds()
    step = next((each for each in STEPS if length / each <= MOST_POINTS), STEPS[-1])
    # Of the first step all must be kept, which begins before the range does.
    for level, coarser in ((RollupLevel.MINUTE, 3_600), (RollupLevel.HOUR, 86_400)):
        if now - _floor(start, step) > KEPT[level]:
            step = max(step, coarser)
    begin = _floor(start, step)
    last = _floor(max(end, begin + LEAST) + timedelta(seconds=step) - timedelta(microseconds=1), step)
    return Window(begin, last, step)


def _floor(moment: datetime, step_seconds: int) -> datetime:
    return datetime.fromtimestamp(moment.timestamp() // step_seconds * step_seconds, UTC)
