"""One daemon thread a process that does what a running job cannot: its body has the job's own thread.

It extends the leases of long jobs, writes how far they are, and writes down completions that a database
that was away would not take. It starts in the process that runs the job, never in the parent of a prefork
pool, and has its own database connections: what it writes is no part of the body's transaction.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.db import InterfaceError, OperationalError, connections

from jobs.idempotency.ledger import Claim

logger = logging.getLogger(__name__)

# A lease is extended so often within its time.
BEATS_A_LEASE = 3
# Connections of a thread with nothing to do are closed after so long.
IDLE_SECONDS = 10.0
# So long the thread waits for SQLite's one writer; then it does what else is due, and comes back.
SQLITE_WAIT_MILLISECONDS = 500
RETRY_SECONDS = 1.0
DATABASE_TROUBLE = (OperationalError, InterfaceError)


@dataclass(eq=False, slots=True)
class HeldLease:
    """A claim whose lease the thread extends until it is let go."""

    claim: Claim
    due_at: float
    is_lost: bool = False
    is_in_trouble: bool = False


@dataclass(eq=False, slots=True)
class Errand:
    """Something to write once, ``write`` at ``due_at`` or later; it is tried again while the database is away."""

    alias: str
    write: Callable[[], object]
    what: str
    due_at: float = 0.0
    tries: int = 0


@dataclass(slots=True)
class _Round:
    leases: list[HeldLease] = field(default_factory=list)
    errands: list[tuple[str, Errand]] = field(default_factory=list)


class Heart:
    """The thread and what it has to do. All methods may be called from any thread of the process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._leases: set[HeldLease] = set()
        self._errands: dict[str, Errand] = {}
        # The errand that is being written now.
        self._busy_with = ""
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0
        self._is_stopping = False

    def hold(self, claim: Claim) -> HeldLease:
        """Extend the claim's lease until let_go."""
        held = HeldLease(claim, time.monotonic() + claim.lease_seconds / BEATS_A_LEASE)
        with self._changed:
            self._leases.add(held)
            self._wake(held.due_at)
        return held

    def let_go(self, held: HeldLease) -> None:
        """Leave the lease alone from now on."""
        with self._changed:
            self._leases.discard(held)

    def send(self, name: str, errand: Errand) -> None:
        """Do an errand when it is due; a newer one of the same name takes its place."""
        with self._changed:
            self._errands[name] = errand
            self._wake(errand.due_at)

    def take_back(self, name: str, *, wait_seconds: float) -> Errand | None:
        """Return an errand that is not done yet and forget it; one being done is waited for."""
        with self._changed:
            errand = self._errands.pop(name, None)
            self._changed.wait_for(lambda: self._busy_with != name, timeout=wait_seconds)
            return errand

    def stop(self) -> None:
        """End the thread, forget what it had to do and close its connections; the next use starts another."""
        with self._changed:
            self._leases.clear()
            self._errands.clear()
            thread, self._thread = self._thread, None
            self._is_stopping = True
            self._changed.notify_all()
        if thread is not None:
            thread.join(timeout=30)
        with self._changed:
            self._is_stopping = False

    def _wake(self, due_at: float) -> None:
        """Start the thread, or wake it when it would sleep too long. Called with the lock held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._live, name="jobs-heartbeat", daemon=True)
            self._thread.start()
        elif due_at < self._wakes_at:
            self._changed.notify_all()

    def _live(self) -> None:
        used: set[str] = set()
        while (todo := self._next_round(has_connections=bool(used))) is not None:
            if not todo.leases and not todo.errands:
                _close(used)
                used.clear()
            for name, errand in todo.errands:
                used.add(errand.alias)
                self._run_errand(name, errand)
            for held in todo.leases:
                used.add(held.claim.using)
                self._extend(held)
        _close(used)

    def _next_round(self, *, has_connections: bool) -> _Round | None:
        """Sleep until something is due; return it, nothing when the thread is idle, None at the end."""
        with self._changed:
            idle_at = time.monotonic() + IDLE_SECONDS
            while not self._is_stopping:
                now = time.monotonic()
                leases = [held for held in self._leases if held.due_at <= now]
                errands = [(name, errand) for name, errand in self._errands.items() if errand.due_at <= now]
                if leases or errands:
                    return _Round(leases, errands)
                waiting = [held.due_at for held in self._leases]
                waiting += [errand.due_at for errand in self._errands.values()]
                if has_connections and not waiting and now >= idle_at:
                    return _Round()
                if has_connections and not waiting:
                    waiting = [idle_at]
                self._wakes_at = min(waiting, default=float("inf"))
                self._changed.wait(self._wakes_at - now if waiting else None)
            return None

    def _run_errand(self, name: str, errand: Errand) -> None:
        with self._changed:
            if self._errands.get(name) is not errand:
                return  # taken back, or a newer one has taken its place
            del self._errands[name]
            self._busy_with = name
        try:
            with _own_connection(errand.alias):
                errand.write()
        except DATABASE_TROUBLE as error:
            errand.tries += 1
            errand.due_at = time.monotonic() + RETRY_SECONDS
            log = logger.warning if errand.tries == 1 else logger.debug
            log("%s could not be written and is tried again: %s", errand.what, error)
            with self._changed:
                self._errands.setdefault(name, errand)
        except Exception:
            logger.exception("%s could not be written and is given up.", errand.what)
        finally:
            with self._changed:
                self._busy_with = ""
                self._changed.notify_all()

    def _extend(self, held: HeldLease) -> None:
        claim = held.claim
        pause = claim.lease_seconds / BEATS_A_LEASE
        try:
            with _own_connection(claim.using):
                is_mine = claim.ledger.extend(claim.token, lease_seconds=claim.lease_seconds)
        except DATABASE_TROUBLE as error:
            held.due_at = time.monotonic() + min(RETRY_SECONDS, pause / 2)
            if not held.is_in_trouble:
                logger.warning(
                    "Job %s of %s: its lease could not be extended and is tried again; it ends %g s after"
                    " its last extension, and then another copy may start beside it: %s",
                    *(claim.task_id, claim.task, claim.lease_seconds, error),
                )
            held.is_in_trouble = True
            return
        except Exception:
            logger.exception("Job %s of %s: its lease could not be extended.", claim.task_id, claim.task)
            held.due_at = time.monotonic() + pause
            return
        held.is_in_trouble = False
        held.due_at = time.monotonic() + pause
        if is_mine:
            return
        with self._changed:
            # Its job may have ended while the statement was under way.
            is_lost = held in self._leases
            self._leases.discard(held)
        if is_lost:
            held.is_lost = True
            logger.error(
                "Job %s of %s lost its lease while it runs: another copy has taken its key over and may run"
                " beside it. The process stood still, or could not reach the database, for %g s.",
                *(claim.task_id, claim.task, claim.lease_seconds),
            )


@contextmanager
def _own_connection(alias: str) -> Iterator[None]:
    """Use this thread's connection; leave a broken one behind."""
    connection = connections[alias]
    try:
        connection.close_if_unusable_or_obsolete()
        if connection.connection is None and connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                cursor.execute(f"PRAGMA busy_timeout = {SQLITE_WAIT_MILLISECONDS:d}")
        yield
    except BaseException:
        connection.close()
        raise


def _close(aliases: set[str]) -> None:
    for alias in aliases:
        connections[alias].close()


class _Process:
    heart = Heart()


def heart() -> Heart:
    """Return the heart of this process."""
    return _Process.heart


def _forget_parent() -> None:
    """Start anew in a forked child: threads do not survive a fork, locks might be held for ever."""
    _Process.heart = Heart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
