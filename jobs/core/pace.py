"""How many letters may go now, so that a rate is kept smoothly."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

# The longest stretch that may be caught up at once. Half a second keeps a late runner from sending
# more than half a second's worth together.
BURST_SECONDS = 0.5


@dataclass(slots=True)
class Pace:
    """Counts what a rate allows. Starts with one letter, so that nothing bursts after a restart.

    Time is given by the caller; a clock that is set back costs no more than the moment it happens.
    """

    at: datetime
    credit: float = 1.0

    def allowance(self, *, rate_per_second: float, now: datetime) -> int:
        """Return how many letters may go at ``now``. The rate may differ from call to call."""
        elapsed = max(0.0, (now - self.at).total_seconds())
        self.at = now
        limit = max(1.0, rate_per_second * BURST_SECONDS)
        self.credit = min(limit, self.credit + elapsed * rate_per_second)
        # A product such as 0.1 s times 10 is a hair below its letter.
        return int(self.credit + 1e-9)

    def spend(self, count: int) -> None:
        """Take what was sent off the credit."""
        self.credit -= count

    def seconds_until(self, *, rate_per_second: float) -> float:
        """Return how long until the next letters may go: a tenth of a second's worth, or one."""
        wanted = max(1.0, rate_per_second * 0.1)
        return max(0.0, (wanted - self.credit) / rate_per_second)
