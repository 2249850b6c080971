"""The duty of queues: counts them each 5 s, keeps paused ones paused, carries purges out."""

from __future__ import annotations

import time
from datetime import datetime

from jobs.broker import connect
from jobs.broker.queues import Meter
from jobs.queues.pausing import enforce
from jobs.queues.purging import HoldsDuty, Purger
from jobs.queues.reading import SAMPLE_EVERY
from jobs.queues.sampling import Sampler

# A purge starts within so long of its confirmation.
IDLE_SECONDS = 0.5
# A worker that starts takes from a paused queue until it has reported and was told.
ENFORCE_SECONDS = 1.0


class Watcher:
    """Holds the connections of the duty. After an error it is made anew."""

    def __init__(self) -> None:
        self._sampler = Sampler(Meter(connect()))
        self._control = connect()
        self._purger = Purger(connect())
        self._sampled_at = self._enforced_at = -SAMPLE_EVERY.total_seconds()

    def round(self, *, now: datetime, lease: HoldsDuty) -> float:
        """Do what is due; return the seconds until the next round.

        Raises:
            BrokerUnavailable: when the broker is away.
            LeaseLost: when somebody else carries the duty out.
        """
        left = self._sampled_at + SAMPLE_EVERY.total_seconds() - time.monotonic()
        if left <= 0:
            lease.check()
            self._sampled_at = time.monotonic()
            self._sampler.sample(now=now)
            left = SAMPLE_EVERY.total_seconds()
        if time.monotonic() - self._enforced_at >= ENFORCE_SECONDS:
            self._enforced_at = time.monotonic()
            enforce(self._control, now=now)
        if self._purger.step(now=now, lease=lease):
            return 0.0
        return min(left, IDLE_SECONDS)
