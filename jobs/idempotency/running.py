"""Runs a body once a key: claims the key, runs, writes down what came of it."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobs.agent.wire import AWAITED_HEADER
from jobs.core.claims import MAX_TAKEOVERS, AlreadyDone, Claimant, Hold, RanOut, Stale, judge
from jobs.core.cleaning import clean_name
from jobs.errors import HeldBack, LeaseRanOut, PermanentError, StaleAttempt
from jobs.idempotency import results
from jobs.idempotency.heartbeat import Errand, HeldLease, heart
from jobs.idempotency.ledger import Claim, Clock, Ledger

logger = logging.getLogger(__name__)

_AWAY = (OperationalError, InterfaceError)
# Several may claim a key in the same moment; each round one of them gets it.
CLAIM_ROUNDS = 3
# A key that another transaction is changing: nobody outside can see until when.
BUSY_SECONDS = 2.0
# A database that is away is asked again after so long.
AWAY_SECONDS = 10.0
# Of the time a copy is held, so much more at most, at random: copies held together come back apart.
JITTER = 0.25
# SQLite has one writer; a copy waits so long for its turn, then it gives its worker slot back.
SQLITE_WAIT_MILLISECONDS = 2_000
# So long a job that has run waits for the database to write that down; then the heartbeat goes on trying.
RECORD_SECONDS = 5.0
RECORD_PAUSE_SECONDS = 0.25

_host = socket.gethostname()


@dataclass(slots=True)
class _Current:
    """The run that this thread is in, with the attempts that it sent."""

    task: str
    key: str
    sent: list[Claimant] = field(default_factory=list)


_current: ContextVar[_Current | None] = ContextVar("jobs_idempotency_current", default=None)


def run(
    *,
    task: str,
    key: str,
    task_id: str,
    attempt: int,
    body: Callable[[], Any],
    atomic: bool,
    using: str,
    lease_seconds: float,
    has_successors: bool,
    replay: int = 0,
    awaited: int = 0,
    now: Clock | None = None,
) -> Any:
    """Run ``body`` unless the key is done, is being run, or a newer attempt of this job is known.

    With ``atomic`` the key and the body are one transaction of ``using``: a database effect happens
    exactly once. Otherwise the key is leased: a process that dies between its effect and the
    ledger's record leaves a key whose lease runs out, and the body then runs again.
    ``attempt`` counts from 0; ``replay`` is the number of the replay that sent this copy, 0 for none;
    ``awaited`` is what AWAITED_HEADER says on its message, 0 for none.
    ``now`` takes the place of the database's clock, for tests.

    Raises:
        HeldBack: when somebody runs the key, or the database cannot be asked; nothing has run.
        StaleAttempt: when a newer attempt of this job is known, or took the key while this one ran.
        LeaseRanOut: when the processes that ran this job died too often.
        PermanentError: when the key is done, its result was not kept and successors need it.
        Exception: whatever the body raises, once the key is free or its transaction rolled back.
    """
    claimant = Claimant(clean_name(task_id), attempt, replay, awaited)
    this = _Run(
        ledger=Ledger(using=using, task=clean_name(task), key=clean_name(key), now=now),
        claimant=claimant,
        task=clean_name(task),
        key=clean_name(key),
        lease_seconds=lease_seconds,
        has_successors=has_successors,
        now=now,
    )
    current = _Current(this.task, this.key)
    former = _current.set(current)
    try:
        return this.in_one_transaction(body) if atomic else this.under_a_lease(body)
    finally:
        _current.reset(former)
        for sent in current.sent:
            _note_sent(this.task, this.key, sent, using=using, now=now)


def sent_attempt(
    *,
    task: str,
    key: str,
    task_id: str,
    attempt: int,
    using: str,
    replay: int = 0,
    now: Clock | None = None,
) -> None:
    """Note that attempt number ``attempt`` of a job was published, so that older copies of it are stale.

    Call it right after a retry was published: ``attempt`` is the retry's number, one above that of the
    attempt that asked for it. In a transaction within the body it is written down when the body has ended.
    A database that is away only costs this protection: both copies may then run, one after the other.
    """
    claimant = Claimant(clean_name(task_id), attempt, replay)
    task, key = clean_name(task), clean_name(key)
    current = _current.get()
    if current is not None and (current.task, current.key) == (task, key):
        current.sent.append(claimant)
        if transaction.get_connection(using).in_atomic_block:
            return
        # Now as well: the process may die before the body has ended.
    _note_sent(task, key, claimant, using=using, now=now)


def ended(*, task: str, key: str, task_id: str, using: str) -> None:
    """Note that a job has ended without being done, and that no other attempt of it follows.

    From then on a job that is sent anew under the same id, with its first attempt, is not taken for an old
    copy. A database that is away only means that it still is, until somebody else has had the key.
    """
    ledger = Ledger(using=using, task=clean_name(task), key=clean_name(key))
    for is_last in (False, True):
        former = ledger.connection.connection
        try:
            return ledger.note_ended(clean_name(task_id))
        except _AWAY as error:
            if not _was_broken(ledger.connection, former) or is_last:
                logger.warning(
                    "Job %s of %s has ended, and the ledger could not note that: %s", task_id, task, error
                )
                return None
    return None  # pragma: no cover - the second round returns


def _note_sent(task: str, key: str, claimant: Claimant, *, using: str, now: Clock | None) -> None:
    ledger = Ledger(using=using, task=task, key=key, now=now)
    for is_last in (False, True):
        former = ledger.connection.connection
        try:
            return ledger.note_sent(claimant)
        except _AWAY as error:
            if not _was_broken(ledger.connection, former) or is_last:
                logger.warning(
                    "Job %s of %s: the ledger could not note that attempt %s was sent; should the attempt"
                    " before be delivered again, it will run again: %s",
                    *(claimant.task_id, task, claimant.attempt, error),
                )
                return None
    return None  # pragma: no cover - the second round returns


class _NotRun(Exception):
    """Carries the stored result of a key that is done out of the claim."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


@dataclass(slots=True)
class _Run:
    ledger: Ledger
    claimant: Claimant
    task: str
    key: str
    lease_seconds: float
    has_successors: bool
    now: Clock | None

    def under_a_lease(self, body: Callable[[], Any]) -> Any:
        try:
            token = self._claim_or_hold()
        except _NotRun as done:
            return done.result
        claim = Claim(
            self.ledger.using, self.task, self.key, self.claimant.task_id, token, self.lease_seconds, self.now
        )
        held = None if self.ledger.connection.in_atomic_block else heart().hold(claim)
        try:
            return self._run_held(claim, held, body)
        finally:
            # Also when a time limit's signal struck between two lines: a lease that is extended and belongs
            # to no job would hold its key for as long as this process lives.
            if held is not None:
                heart().let_go(held)

    def _run_held(self, claim: Claim, held: HeldLease | None, body: Callable[[], Any]) -> Any:
        try:
            result = body()
        except BaseException:
            if held is not None:
                heart().let_go(held)
            self._free(claim)
            raise
        text = self._encoded(result)
        try:
            is_mine = self._record(claim, text)
        except BaseException:
            # A time limit's signal may strike here as well; the body is done all the same.
            with contextlib.suppress(*_AWAY):
                claim.ledger.complete(claim.token, text)
            raise
        if not is_mine:
            self._lost(claim, text)
        return result

    def in_one_transaction(self, body: Callable[[], Any]) -> Any:
        connection = self.ledger.connection
        is_claimed = False
        for is_last in (False, True):
            former = connection.connection
            try:
                with _short_wait(connection) as wait_as_ever, transaction.atomic(using=self.ledger.using):
                    token = self._claim()
                    is_claimed = True
                    wait_as_ever()
                    result = body()
                    self.ledger.complete(token, self._encoded(result))
                return result
            except _NotRun as done:
                return done.result
            except _AWAY as error:
                if is_claimed:
                    raise
                if not _was_broken(connection, former) or is_last:
                    raise self._away(error) from error
        raise AssertionError("not reached")  # pragma: no cover

    def _claim_or_hold(self) -> int:
        connection = self.ledger.connection
        for is_last in (False, True):
            former = connection.connection
            try:
                with _short_wait(connection):
                    return self._claim()
            except _AWAY as error:
                if not _was_broken(connection, former) or is_last:
                    raise self._away(error) from error
        raise AssertionError("not reached")  # pragma: no cover

    def _claim(self) -> int:
        """Return the token under which this copy runs.

        Raises:
            _NotRun: when the key is done, with its result.
        """
        ledger, claimant = self.ledger, self.claimant
        holder = _holder()
        for _ in range(CLAIM_ROUNDS):
            token = ledger.insert(claimant, holder=holder, lease_seconds=self.lease_seconds)
            if token is not None:
                return token
            row = ledger.read()
            if row is None:
                continue
            verdict = judge(row.key, claimant)
            if isinstance(verdict, AlreadyDone):
                raise _NotRun(self._stored(row.result))
            if isinstance(verdict, Stale):
                raise StaleAttempt(
                    f"Attempt {claimant.attempt} of job {claimant.task_id} does not run: attempt"
                    f" {row.key.attempt} of the same job is known, and goes on instead. Nothing is to be done."
                )
            if isinstance(verdict, Hold) and verdict.is_for_newer:
                raise _held_back(
                    f"Attempt {claimant.attempt} of job {claimant.task_id} waits: attempt {row.key.attempt} of the"
                    " same job was sent, and has not begun.",
                    verdict.seconds,
                    {AWAITED_HEADER: row.key.attempt},
                )
            if isinstance(verdict, Hold):
                raise _held_back(
                    f"Job {claimant.task_id} waits: job {row.key.task_id} runs the same idempotency key.",
                    verdict.seconds,
                )
            if isinstance(verdict, RanOut):
                if not ledger.blame(row):
                    continue
                raise LeaseRanOut(
                    f"Job {claimant.task_id} does not run again: the process that ran it died or stood still"
                    f" until its lease ran out, {MAX_TAKEOVERS} times. Find out what it does to its process"
                    " (memory, a crash in native code, a hang); then replay it."
                )
            if ledger.take(
                row,
                claimant,
                takeovers=verdict.takeovers,
                holder=holder,
                lease_seconds=self.lease_seconds,
            ):
                if verdict.takeovers:
                    logger.warning(
                        "Job %s of %s takes over its key: the lease of its former process ran out (%s of %s)",
                        *(claimant.task_id, self.task, verdict.takeovers, MAX_TAKEOVERS),
                    )
                return row.token + 1
        raise _held_back(
            f"Job {claimant.task_id} waits: another transaction is changing its idempotency key.",
            BUSY_SECONDS,
        )

    def _stored(self, text: str | None) -> Any:
        """Return the result that was kept, or None when nobody waits for it."""
        if text is not None:
            return results.decode(text)
        if self.has_successors:
            raise PermanentError(
                f"Job {self.claimant.task_id} does not run: its idempotency key is done, and the result was"
                " not kept, because it has no JSON form or is too large. What comes after it in its chain,"
                " group or links needs that result. Let the task return a small JSON value, such as an id."
            )
        return None

    def _encoded(self, result: Any) -> str | None:
        text, why = results.encode(result)
        if why:
            logger.warning(
                "The result of job %s of %s is not kept: %s. A copy that finds its key done returns None,"
                " and fails when other jobs wait for the result.",
                *(self.claimant.task_id, self.task, why),
            )
        return text

    def _record(self, claim: Claim, text: str | None) -> bool:
        """Write down that the body is done; return False when another copy has taken the key over.

        While the database is away the job waits a little, and then the heartbeat goes on trying: the
        job is done, and would do it again if it failed now.
        """
        deadline = time.monotonic() + RECORD_SECONDS
        connection = claim.ledger.connection
        while True:
            former = connection.connection
            try:
                return claim.ledger.complete(claim.token, text)
            except _AWAY as error:
                if connection.in_atomic_block:
                    raise
                _was_broken(connection, former)
                if time.monotonic() >= deadline:
                    logger.error(
                        "Job %s of %s is done, and the ledger cannot be told: %s. It is tried until this"
                        " process ends; should that be first, another job with this key will run again.",
                        *(claim.task_id, claim.task, error),
                    )
                    self._record_later(claim, text)
                    return True
            time.sleep(RECORD_PAUSE_SECONDS)

    def _record_later(self, claim: Claim, text: str | None) -> None:
        ended = time.monotonic()

        def write() -> None:
            # As of its end: how long jobs run is read from there.
            if not claim.ledger.complete(claim.token, text, ago_seconds=time.monotonic() - ended):
                self._look_who_has_it(claim, text)

        heart().send(
            f"completion {claim.using} {claim.task} {claim.key}",
            Errand(claim.using, write, f"The completion of job {claim.task_id} of {claim.task}"),
        )

    def _lost(self, claim: Claim, text: str | None) -> None:
        """Say that the body ran without its lease; end this copy when the same job runs in another.

        Raises:
            StaleAttempt: then; the other copy goes on with what comes after.
        """
        if self._look_who_has_it(claim, text) == claim.task_id:
            raise StaleAttempt(
                f"This copy of job {claim.task_id} lost its lease while it ran, and another copy of the same"
                " job has taken it over and goes on. What the body does outside this database may have"
                " happened twice."
            )

    def _look_who_has_it(self, claim: Claim, text: str | None) -> str:
        """Return the job that took the key over, or "" when it is recorded as this run's after all."""
        ledger = claim.ledger
        row = ledger.read()
        if row is None and self._write_again(claim, text):
            return ""
        row = ledger.read() if row is None else row
        if row is not None and row.token == claim.token:
            # The first try had reached the database, and only its answer was lost.
            return ""
        holder = "" if row is None else row.key.task_id
        logger.error(
            "Job %s of %s is done, but it had lost its lease while it ran: its key is held by job %s. What"
            " the body does outside this database may have happened twice.",
            *(claim.task_id, claim.task, holder or "(unknown)"),
        )
        return holder

    def _write_again(self, claim: Claim, text: str | None) -> bool:
        """Write a row that is gone: a crash of the server forgot it, or somebody deleted it."""
        ledger = claim.ledger
        token = ledger.insert(
            self.claimant,
            holder=_holder(),
            lease_seconds=claim.lease_seconds,
            token=claim.token,
        )
        if token is None or not ledger.complete(token, text):
            return False
        logger.warning(
            "Job %s of %s is done, and the record of its key was gone; it is written anew.",
            *(claim.task_id, claim.task),
        )
        return True

    def _free(self, claim: Claim) -> None:
        """Let others claim the key; the body's own error is what matters, so none is raised here."""
        connection = claim.ledger.connection
        for is_last in (False, True):
            former = connection.connection
            try:
                if not claim.ledger.free(claim.token):
                    logger.warning(
                        "Job %s of %s failed, and had lost its lease while it ran: another copy has its key.",
                        *(claim.task_id, claim.task),
                    )
                return
            except (DatabaseError, InterfaceError) as error:
                if not _was_broken(connection, former) or is_last:
                    logger.warning(
                        "Job %s of %s failed, and its key could not be freed: it stays taken until its"
                        " lease ends, within %g s: %s",
                        *(claim.task_id, claim.task, claim.lease_seconds, error),
                    )
                    return

    def _away(self, error: Exception) -> Exception:
        if "no such table" in str(error):
            # SQLite's word for a database that nobody migrated, which waiting does not mend.
            return error
        logger.warning(
            "Job %s of %s has not started: the ledger cannot be asked who runs its key, and without it the"
            " job might run twice. It comes back in some %g s and has used no attempt: %s",
            *(self.claimant.task_id, self.task, AWAY_SECONDS, error),
        )
        return _held_back(
            f"Job {self.claimant.task_id} waits: the idempotency ledger did not answer"
            f" ({type(error).__name__}).",
            AWAY_SECONDS,
        )


def _holder() -> str:
    return clean_name(f"{_host}:{os.getpid()}")


def _held_back(message: str, seconds: float, headers: dict[str, object] | None = None) -> HeldBack:
    later = random.uniform(0.05, max(0.5, JITTER * seconds))  # noqa: S311 - to come back apart
    return HeldBack(message, seconds=seconds + later, headers=headers)


def _was_broken(connection: BaseDatabaseWrapper, former: object) -> bool:
    """Say whether the connection broke since its last use, so that a new one is worth a try; leave it behind."""
    if former is None or connection.in_atomic_block:
        return False
    if connection.connection is former:
        if connection.is_usable():
            return False
        connection.close()
    return True


@contextlib.contextmanager
def _short_wait(connection: BaseDatabaseWrapper) -> Iterator[Callable[[], None]]:
    """Let SQLite wait for its turn only shortly, until the end or until what is yielded is called."""
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        yield lambda: None
        return
    with connection.cursor() as cursor:
        former = int(cursor.execute("PRAGMA busy_timeout").fetchone()[0])

    def wait(milliseconds: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout = {milliseconds:d}")

    wait(min(former, SQLITE_WAIT_MILLISECONDS))
    try:
        yield lambda: wait(former)
    finally:
        # A body may have closed it.
        if connection.connection is not None:
            wait(former)
