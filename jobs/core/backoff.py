"""How long a failed job waits before its next attempt."""

from __future__ import annotations

import math
from collections.abc import Callable

# What any one wait is cut to: a day. A job that should wait longer should be scheduled.
LONGEST_WAIT_SECONDS = 86_400.0
# e to this power is still a float.
_LARGEST_EXPONENT = 700.0


def ceiling(attempt: int, *, base: float, factor: float, cap: float) -> float:
    """Return the longest wait after this attempt, in seconds; ``attempt`` counts from 0.

    It is ``min(cap, base * factor ** attempt)``, for any attempt: the power is never computed where it
    would leave the range of a float.
    """
    if base <= 0 or cap <= 0:
        return 0.0
    growth = attempt * math.log(factor)
    if growth > _LARGEST_EXPONENT:
        # Beyond a float, and yet the product need not be: the base may be hardly above zero.
        return float(cap) if growth + math.log(base) >= math.log(cap) else math.exp(growth + math.log(base))
    return float(min(cap, base * factor**attempt))


def delay(
    attempt: int,
    *,
    base: float,
    factor: float,
    cap: float,
    uniform: Callable[[float, float], float],
    at_least: float = 0.0,
) -> float:
    """Return the seconds to wait after this attempt: full jitter, ``uniform(0, ceiling)``.

    ``at_least`` is what the other side asked for. The jitter comes on top of it, or all jobs that were
    told the same time would come back at once. A wish for more than a day counts as a day.

    Source: AWS SDK, FullJitterBackoffStrategy; AWS Architecture Blog, "Exponential Backoff And Jitter".
    """
    return min(at_least, LONGEST_WAIT_SECONDS) + uniform(
        0.0, ceiling(attempt, base=base, factor=factor, cap=cap)
    )
