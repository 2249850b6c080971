"""The process behind ``manage.py runops``: duties in threads, each held by a lease.

Any number of these processes may run; each duty is carried out by one of them, and passes on when
its holder stops or dies. A database or broker that is away is waited for: one line when it goes,
one when it is back.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from typing import Any

from django.db import close_old_connections, connection, connections

from jobs import conf, leases
from jobs.duties import Duty, Round, all_duties
from jobs.errors import LeaseLost
from jobs.leases import HeldLease

logger = logging.getLogger(__name__)

STOP_SECONDS = 5.0
# A duty that has shown no life for so long is given to somebody else.
STUCK_SECONDS = 120.0
FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 2.0
# Of a trouble that was not raised, where others have the name of the error's class.
HINDERED = "Hindered"
# A thread that comes back from the database waits so long at most for one that computes. Python's 5 ms
# would cost a replay a third of its speed, and the collector its promptness.
SWITCH_SECONDS = 0.0005


class DutyThread(threading.Thread):
    """Waits for a duty's lease, and carries the duty out while it holds it."""

    def __init__(self, duty: Duty, *, holder: str, lease_seconds: float, stop: threading.Event) -> None:
        # A daemon: a broker call that hangs must not keep the process after its stop.
        super().__init__(name=f"runops-{duty.name}", daemon=True)
        self._duty = duty
        self._holder = holder
        self._lease_seconds = lease_seconds
        # Not _stop: threading.Thread has a method of that name.
        self._stopping = stop
        self._round: Round | None = None
        self._trouble = ""
        self._trouble_since = 0.0
        # The kind of trouble that the lease's row has from here, "" when it has none.
        self._told = ""
        self._backoff = FIRST_BACKOFF_SECONDS
        self._shown_life_at = time.monotonic()
        self.lease: HeldLease | None = None

    @property
    def is_stuck(self) -> bool:
        """Say whether a round has not come back for STUCK_SECONDS."""
        return time.monotonic() - self._shown_life_at > STUCK_SECONDS

    def run(self) -> None:
        """Work until told to stop; give the lease up at the end."""
        try:
            while not self._stopping.is_set():
                self._shown_life_at = time.monotonic()
                self._stopping.wait(self._try())
        finally:
            self._give_up()
            connections.close_all()

    def _try(self) -> float:
        """Do what can be done now; return how long to wait. No error ends the thread."""
        try:
            close_old_connections()
            seconds = self._do()
        except LeaseLost as lost:
            logger.warning("%s: %s", self._duty.name, lost)
            self.lease, self._round = None, None
            return self._lease_seconds / 3
        except Exception as error:  # noqa: BLE001 - a duty outlives what is away; it is logged and tried again
            return self._back_off(error)
        if self._trouble:
            seconds_away = time.monotonic() - self._trouble_since
            logger.warning("%s: works again after %.0f s", self._duty.name, seconds_away)
            self._trouble, self._backoff = "", FIRST_BACKOFF_SECONDS
        self._tell_hindrance()
        return seconds

    def _tell_hindrance(self) -> None:
        """Write down what a round that succeeded says keeps the duty from being done, and take it back."""
        hindrance = self.lease.hindrance if self.lease is not None else ""
        kind = HINDERED if hindrance else ""
        if self._told != kind:
            self._tell(f"{HINDERED}: {hindrance}" if hindrance else "", kind=kind)

    def _do(self) -> float:
        if self.lease is None or self.lease.is_lost:
            self._round = None
            self.lease = leases.acquire(
                duty=self._duty.name, holder=self._holder, seconds=self._lease_seconds
            )
            if self.lease is None:
                return self._lease_seconds / 3
            self._told = ""
            logger.info("%s: carried out here (token %s)", self._duty.name, self.lease.token)
        if self._round is None:
            self._round = self._duty.begin()
        return self._round(self.lease)

    def _back_off(self, error: Exception) -> float:
        """Log a new trouble once, with its traceback when it is not a known outage."""
        self._round = None
        trouble = f"{type(error).__name__}: {error}"
        kind = type(error).__name__
        if not self._trouble:
            self._trouble_since = time.monotonic()
        if not self._trouble.startswith(f"{kind}:"):
            logger.error(
                "%s: waits and tries again: %s",
                self._duty.name,
                trouble,
                exc_info=error if logger.isEnabledFor(logging.DEBUG) or not _is_outage(error) else None,
            )
        self._trouble = trouble
        if self._told != kind:
            self._tell(trouble, kind=kind)
        wait, self._backoff = self._backoff, min(self._backoff * 2, LAST_BACKOFF_SECONDS)
        # A connection may be what is broken; the next round opens new ones.
        connections.close_all()
        return wait

    def _tell(self, trouble: str, *, kind: str) -> None:
        """Write the trouble down for the pages; while the database is the trouble, later."""
        if self.lease is None or self.lease.is_lost:
            return
        try:
            self.lease.tell_trouble(trouble)
            self._told = kind
        except Exception as error:  # noqa: BLE001 - the log has the trouble, the pages learn of it with the next try
            logger.debug("%s: its trouble could not be written down: %s", self._duty.name, error)

    def _give_up(self) -> None:
        if self.lease is not None and not self.lease.is_lost:
            try:
                self.lease.release()
            except Exception as error:  # noqa: BLE001 - the lease then runs out by itself
                logger.warning("%s: the lease could not be given up: %s", self._duty.name, error)


def _is_outage(error: Exception) -> bool:
    from django.db import DatabaseError, InterfaceError

    from jobs.errors import JobsError

    return isinstance(error, (DatabaseError, InterfaceError, JobsError, OSError))


class Renewer(threading.Thread):
    """Renews all leases, so that a long round does not lose its own."""

    def __init__(self, threads: list[DutyThread], *, lease_seconds: float, stop: threading.Event) -> None:
        super().__init__(name="runops-leases", daemon=True)
        self._threads = threads
        self._lease_seconds = lease_seconds
        self._stopping = stop

    def run(self) -> None:
        """Renew three times a lease; a stuck duty's lease is left to expire."""
        while not self._stopping.wait(self._lease_seconds / 3):
            for thread in self._threads:
                lease = thread.lease
                if lease is None or lease.is_lost:
                    continue
                if thread.is_stuck:
                    logger.error("%s: shows no life, its lease is left to expire", lease.duty)
                    continue
                try:
                    close_old_connections()
                    if not lease.renew():
                        logger.warning("%s: somebody else carries it out now", lease.duty)
                except Exception as error:  # noqa: BLE001 - the duty itself reports and waits for the outage
                    logger.debug("%s: the lease could not be renewed: %s", lease.duty, error)
                    connection.close()
        connection.close()


class StopRequest:
    """Asks the main thread to stop, also from a handler of signals; only that thread may wait.

    threading.Event would hang now and then: the waiting thread holds its lock for a moment, and a handler that runs
    in that moment, in that thread, waits for the lock for ever. What SimpleQueue takes no signal can hold up.
    """

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def set(self, *_: Any) -> None:
        """Ask; twice is as once. What a handler of signals is given is taken and not looked at."""
        self._is_set = True
        self._asked.put(None)

    def is_set(self) -> bool:
        """Say whether somebody has asked."""
        return self._is_set

    def wait(self, timeout: float) -> bool:
        """Wait until somebody asks, so many seconds at most; say whether somebody has."""
        if not self._is_set:
            with contextlib.suppress(queue.Empty):
                self._asked.get(timeout=timeout)
        return self._is_set


def holder_name() -> str:
    """Return the name under which this process holds duties."""
    return f"runops@{socket.gethostname()}:{os.getpid()}"


class Runops:
    """All duties of one process."""

    def __init__(self, *, duties: tuple[Duty, ...] | None = None, holder: str | None = None) -> None:
        self.holder = holder or holder_name()
        self._asked = StopRequest()
        self._stop = threading.Event()
        lease_seconds = conf.current().lease_seconds
        self._threads = [
            DutyThread(duty, holder=self.holder, lease_seconds=lease_seconds, stop=self._stop)
            for duty in (all_duties() if duties is None else duties)
        ]
        self._renewer = Renewer(self._threads, lease_seconds=lease_seconds, stop=self._stop)

    def start(self) -> None:
        """Start all threads."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._renewer.start()
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self, *_: Any) -> None:
        """Let ``wait`` come back. May be called from a signal handler, and twice."""
        self._asked.set()

    def wait(self) -> None:
        """Block until somebody asks to stop; then let every duty end after its batch."""
        # A wait without a timeout cannot be interrupted by a signal on every platform.
        while not self._asked.wait(timeout=1.0):
            pass
        self._stop.set()

    def join(self) -> bool:
        """Wait for the threads, STOP_SECONDS at most; return whether all have ended."""
        deadline = time.monotonic() + STOP_SECONDS
        for thread in [*self._threads, self._renewer]:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def run(self) -> bool:
        """Carry duties out until SIGTERM or SIGINT; return whether all ended in time."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask_to_stop)
        # What is loaded by now stays: the collector of garbage need not look through it again and again while
        # a replay makes objects by the thousand, which costs it a sixth of the time for its messages.
        gc.freeze()
        self.start()
        self.wait()
        return self.join()
