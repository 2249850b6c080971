"""Where a series of numbers changed its level, if it did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Neither side of a change is shorter.
LEAST_STEPS = 3
# A change is at least this share of the higher level, and this share of what the numbers vary by.
LEAST_SHARE = 0.2
LEAST_EXPLAINED = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """The level before step ``index`` and that from it on: means, in the series' own unit."""

    before: float
    after: float
    index: int

    @property
    def is_rise(self) -> bool:
        """Whether the level is higher than before."""
        return self.after > self.before

    @property
    def share(self) -> float | None:
        """Return the change as a share of the level before; None from zero."""
        return (self.after - self.before) / self.before if self.before else None


def find_change(
    values: Sequence[float | None], *, least: float = 0.0, least_share: float = LEAST_SHARE
) -> Change | None:
    """Find the step at which two levels explain the series best; None when one level does as well.

    Unknown steps are passed over. ``least`` is the smallest difference worth telling, ``least_share`` that of
    the higher level. The split with the
    least squares around its two means: of all splits the one whose means lie furthest apart, by weight.
    """
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    number = len(known)
    if number < 2 * LEAST_STEPS:
        return None
    total = sum(value for _, value in known)
    mean = total / number
    spread = sum((value - mean) ** 2 for _, value in known)
    best, best_explained, passed = None, 0.0, 0.0
    for split in range(1, number):
        passed += known[split - 1][1]
        if split < LEAST_STEPS or number - split < LEAST_STEPS:
            continue
        before, after = passed / split, (total - passed) / (number - split)
        explained = split * (number - split) / number * (before - after) ** 2
        if explained > best_explained:
            best, best_explained = Change(before, after, known[split][0]), explained
    if best is None or best_explained < LEAST_EXPLAINED * spread:
        return None
    difference = abs(best.after - best.before)
    if difference < least or difference < least_share * max(abs(best.before), abs(best.after)):
        return None
    return best
