"""Which numbers of a sequence that starts at 1 were counted: the newest, and the gaps before it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# What is kept of the gaps, the newest: numbers in a gap that is forgotten pass for counted. A gap closes
# when its batches come; hundreds of them at once no broker leaves.
MOST_GAPS = 200

# The first and the last number that is missing.
Gap = Sequence[int]


class Counted(NamedTuple):
    """The newest number, 0 at the beginning, and the gaps before it in ascending order."""

    newest: int
    gaps: list[Gap]


def count(counted: Counted, number: int) -> Counted | None:
    """Return what is counted with ``number``; None when it was counted already."""
    newest, gaps = counted
    if number > newest:
        opened = [[newest + 1, number - 1]] if number > newest + 1 else []
        return Counted(number, [*gaps, *opened][-MOST_GAPS:])
    for place, (first, last) in enumerate(gaps):
        if first <= number <= last:
            left = [[first, number - 1]] if first < number else []
            right = [[number + 1, last]] if number < last else []
            return Counted(newest, [*gaps[:place], *left, *right, *gaps[place + 1 :]][-MOST_GAPS:])
    return None
