"""Rates as people write them: "100/m" is 100 jobs a minute, "10/30s" is 10 in 30 seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass

# "10/s", "100/m", "1000/h", "10/30s". ASCII only: int() reads other digits too, and nobody means them.
_RATE = re.compile(r"(?P<limit>[0-9]{1,9})/(?P<count>[0-9]{1,9})?(?P<unit>[smh])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}
# Above it a limit is no limit, and a store of one entry a job would not hold it.
MOST_JOBS = 1_000_000
# A longer window would outlive the keys that a limiter keeps.
LONGEST_PERIOD_SECONDS = 86_400


class RateError(ValueError):
    """A rate cannot be read; says why and what is allowed."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``limit`` jobs start within any ``period_seconds``."""

    limit: int
    period_seconds: float

    @property
    def interval_seconds(self) -> float:
        """Seconds from one job's start to the next when they come evenly."""
        return self.period_seconds / self.limit

    def __str__(self) -> str:
        for unit, seconds in (("h", 3600), ("m", 60), ("s", 1)):
            if self.period_seconds == seconds:
                return f"{self.limit}/{unit}"
        return f"{self.limit}/{self.period_seconds:.0f}s"


def parse_rate(text: str) -> Rate:
    """Read a rate: a whole number, "/", then "s", "m" or "h", before which a whole number may stand.

    Raises:
        RateError: when it is something else, is nothing at all, or is too much; the message says what is
            allowed.
    """
    found = _RATE.fullmatch(text)
    if found is None:
        raise RateError("it is not a number of jobs in a time, as 100/m or 10/30s are")
    limit = int(found["limit"])
    period = int(found["count"] or 1) * _UNIT_SECONDS[found["unit"]]
    if not 1 <= limit <= MOST_JOBS:
        raise RateError(f"the number of jobs is from 1 to {MOST_JOBS}; leave the rate out for no limit")
    if not 1 <= period <= LONGEST_PERIOD_SECONDS:
        raise RateError(f"the time is from 1 s to {LONGEST_PERIOD_SECONDS} s, which is 24h")
    return Rate(limit=limit, period_seconds=float(period))
