"""The seats that jobs of this process hold: renewed while they run, freed when they end.

A process that is killed renews nothing, so its seat is free when the lease ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobs.limits.client import LimitsUnavailable, Store
from jobs.limits.script import Keys

logger = logging.getLogger(__name__)

# A lease lives through two renewals that fail.
RENEWALS_A_LEASE = 3
# A thread that has nothing to renew ends after so long.
IDLE_SECONDS = 30.0


@dataclass
class Seat:
    """A job's place among those that run at once."""

    store: Store
    keys: Keys
    scope: str
    holder: str
    lease_seconds: float
    renew_at: float
    is_lost: bool = False


class Heartbeat:
    """Renews every seat of the process from one thread, which exists only while there are seats."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at = float("inf")

    def add(self, seat: Seat) -> None:
        """Renew a seat from now on."""
        with self._changed:
            self._seats[seat.holder] = seat
            if self._thread is None:
                # A daemon: it must not keep a worker from ending, whose seats are freed by their jobs.
                self._thread = threading.Thread(target=self._run, name="jobs-seats", daemon=True)
                self._thread.start()
            elif seat.renew_at < self._wakes_at:
                self._changed.notify()

    def remove(self, seat: Seat) -> None:
        """Renew a seat no longer. A renewal that is under way has ended when this returns."""
        with self._changed:
            self._seats.pop(seat.holder, None)

    def _run(self) -> None:
        idle_until = time.monotonic() + IDLE_SECONDS
        while True:
            with self._changed:
                now = time.monotonic()
                if self._seats:
                    idle_until = now + IDLE_SECONDS
                elif now >= idle_until:
                    self._thread = None
                    return
                self._wakes_at = min((seat.renew_at for seat in self._seats.values()), default=idle_until)
                if self._wakes_at > now:
                    self._changed.wait(self._wakes_at - now)
                    continue
                # Under the lock, so that no seat is renewed after its job has freed it.
                for seat in [each for each in self._seats.values() if each.renew_at <= now]:
                    self._renew(seat)

    def _renew(self, seat: Seat) -> None:
        seat.renew_at = time.monotonic() + seat.lease_seconds / RENEWALS_A_LEASE
        try:
            with seat.store.asked() as scripts:
                was_held = scripts.renew(seat.keys, holder=seat.holder, lease_seconds=seat.lease_seconds)
        except LimitsUnavailable:
            # Logged as an outage. When it is back in time, nothing was lost.
            return
        if not was_held and not seat.is_lost:
            logger.warning(
                "The lease of a seat of %s ran out while its job still ran: for a while one more may have "
                "run than its concurrency allows. Redis was away, or the process did not get to renew it.",
                seat.scope,
            )
        seat.is_lost = not was_held


_heartbeat = Heartbeat()


@contextmanager
def held(*, store: Store, keys: Keys, scope: str, holder: str, lease_seconds: float) -> Iterator[None]:
    """Keep a seat that was given, and free it in the end, however the job ends."""
    started = time.monotonic()
    seat = Seat(
        store=store,
        keys=keys,
        scope=scope,
        holder=holder,
        lease_seconds=lease_seconds,
        renew_at=started + lease_seconds / RENEWALS_A_LEASE,
    )
    heartbeat = _heartbeat
    heartbeat.add(seat)
    try:
        yield
    finally:
        heartbeat.remove(seat)
        try:
            with store.asked() as scripts:
                scripts.release(keys, holder=holder, ran_seconds=time.monotonic() - started)
        except LimitsUnavailable:
            # The job has ended and must not fail for this: its seat is free when the lease ends.
            logger.warning(
                "Could not free a seat of %s: it is free in %.0f s at the latest.", scope, lease_seconds
            )


def forget() -> None:
    """Leave the parent's seats to the parent, as a forked child must: its thread does not exist here."""
    global _heartbeat  # one for the process
    _heartbeat = Heartbeat()


os.register_at_fork(after_in_child=forget)
