"""Sends what a transaction wrote at the moment it has committed, so that no job waits for the relay.

It is only the fast way. Whatever stays behind here, for whatever reason, the relay sends: so nothing in
this module may raise, wait long, or send what the relay may be sending.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.utils import timezone
from kombu import Connection

from jobs import conf
from jobs.broker import connect
from jobs.broker.publish import FENCE_SECONDS, PublishResult, publish
from jobs.core.words import OutboxState
from jobs.errors import BrokerUnavailable
from jobs.models import OutboxMessage
from jobs.outbox import rows
from jobs.outbox.breaker import Breaker
from jobs.outbox.checks import LONGEST_IN_TIMEOUTS
from jobs.outbox.rows import NewRow

logger = logging.getLogger(__name__)

# What one transaction sends itself; more than that would hold up its request. The rest is the relay's.
MOST_ROWS = 1_000
# Connections that are kept for the next commit.
KEPT_CONNECTIONS = 4


class Departure:
    """The rows of one transaction, which leave together.

    It lives in the callbacks that Django keeps for the commit and nowhere else, so it goes with them when
    the transaction, or a savepoint, is rolled back.
    """

    __slots__ = ("began", "claim", "has_left", "rows", "using")

    def __init__(self, using: str) -> None:
        self.using = using
        self.claim = uuid.uuid4()
        self.began = time.monotonic()
        self.has_left = False
        self.rows: list[NewRow] = []


class Leaving:
    """What Django calls after the commit, once for each time rows were written.

    The first that is called sends its rows and all later ones. So a savepoint that takes some of the
    callbacks away leaves the others whole, and a test that captures callbacks gets what it captured.
    """

    __slots__ = ("callbacks", "departure", "first")
    # For Django's log, should this ever raise.
    __qualname__ = "jobs.outbox.commit.Leaving"

    def __init__(self, departure: Departure, first: int, callbacks: list[Any]) -> None:
        self.departure = departure
        self.first = first
        # Django's list of the transaction's callbacks, which every rollback to a savepoint replaces.
        self.callbacks = callbacks

    def __call__(self) -> None:
        departure = self.departure
        if departure.has_left:
            return
        departure.has_left = True
        try:
            _leave(departure, self.first, saw_rollback=self._saw_rollback())
        except Exception:
            logger.exception("Jobs of a transaction stay in the outbox; the relay sends them.")

    def _saw_rollback(self) -> bool:
        """Say whether something was rolled back to a savepoint since the first rows were written.

        Django takes this callback off the list before it calls it, unless that is another list by now. The
        savepoints that are known do not tell: those of ``transaction.savepoint()`` are not among them.
        """
        return any(entry[1] is self for entry in self.callbacks)


def write(using: str, written: Sequence[NewRow]) -> None:
    """Insert rows into the open transaction, and have them sent when it has committed."""
    connection = connections[using]
    now = timezone.now()
    leaving = [row for row in written if row.held_until is None]
    departure = _departure(using) if leaving else None
    # In a transaction without atomic(), which Django knows no end of, there is only the relay.
    is_known = connection.in_atomic_block or connection.get_autocommit()
    if departure is None or not is_known or breaker.is_open or len(departure.rows) + len(leaving) > MOST_ROWS:
        rows.insert(using, written, available_at=now, claim=None)
        return
    rows.insert(using, written, available_at=now + conf.current().outbox_grace, claim=departure.claim)
    first = len(departure.rows)
    departure.rows += leaving
    transaction.on_commit(Leaving(departure, first, connection.run_on_commit), using=using, robust=True)


def _departure(using: str) -> Departure:
    """Return that of the open transaction, or a new one."""
    kept: list[Any] = connections[using].run_on_commit
    for entry in reversed(kept):
        callback = entry[1]
        if isinstance(callback, Leaving):
            return Departure(using) if callback.departure.has_left else callback.departure
    return Departure(using)


def _leave(departure: Departure, first: int, *, saw_rollback: bool) -> None:
    current = conf.current()
    longest = LONGEST_IN_TIMEOUTS * current.outbox_timeout_seconds
    if time.monotonic() - departure.began > current.outbox_grace.total_seconds() - longest:
        # The relay may take them any moment.
        return
    chosen = _still_there(departure, first, saw_rollback=saw_rollback)
    now = timezone.now()
    if any(row.expires_at is not None and row.expires_at <= now for row in chosen):
        # Expired within their own transaction; the relay makes dead letters of them.
        return
    if not chosen or not breaker.lets_through():
        return
    try:
        result = _send(departure.claim, chosen, current)
    except BrokerUnavailable as error:
        if breaker.failed():
            logger.warning(
                "Jobs stay in the outbox until the relay can send them, new ones too for now: %s", error
            )
        return
    if breaker.succeeded():
        logger.warning("The broker takes jobs at commit again.")
    if result.fenced:
        return
    rows.mark_published(
        departure.using,
        [row.id for position, row in enumerate(chosen) if position not in result.refused],
        by=rows.COMMIT,
        now=timezone.now(),
    )
    if result.refused:
        rows.unclaim(departure.using, [chosen[position].id for position in result.refused], now=now)


def _still_there(departure: Departure, first: int, *, saw_rollback: bool) -> list[NewRow]:
    """Return the rows that were not rolled back with a savepoint, in their order."""
    chosen = departure.rows[first:]
    if first == 0 and not saw_rollback:
        return chosen
    there = set(
        OutboxMessage.objects.using(departure.using)
        .filter(uuid__in=[row.id for row in departure.rows], state=OutboxState.PENDING)
        .values_list("uuid", flat=True)
    )
    if left_out := there.difference(row.id for row in chosen):
        # A test captured only the later callbacks. What is sent under a claim has to be all of it.
        rows.unclaim(departure.using, left_out, now=timezone.now())
    return [row for row in chosen if row.id in there]


def _send(claim: uuid.UUID, chosen: Sequence[NewRow], current: conf.JobsSettings) -> PublishResult:
    now = timezone.now()
    messages = [rows.outgoing(row, now=now) for row in chosen]
    for is_last in (False, True):
        with _senders.borrowed(current) as (connection, is_fresh):
            try:
                return publish(
                    connection,
                    messages,
                    batch_key=rows.batch_key(claim),
                    marker_seconds=FENCE_SECONDS,
                    confirm_seconds=current.outbox_timeout_seconds,
                )
            except BrokerUnavailable:
                # One that was idle may have been closed at the other end. The batch key, and the ids where
                # there is none, make a second try safe.
                if is_fresh or is_last:
                    raise
    raise AssertionError("unreachable")


class Senders:
    """The connections of this process: borrowed by one thread at a time, and left behind by a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[str, Connection]] = []

    @contextmanager
    def borrowed(self, current: conf.JobsSettings) -> Iterator[tuple[Connection, bool]]:
        """Lend a connection and say whether it is a fresh one; after an error it is thrown away."""
        seconds = current.outbox_timeout_seconds
        place = f"{current.broker_url} {seconds} {current.broker_transport_options}"
        with self._lock:
            found = next((pair for pair in reversed(self._idle) if pair[0] == place), None)
            if found is not None:
                self._idle.remove(found)
        connection = connect(timeout_seconds=seconds) if found is None else found[1]
        try:
            yield connection, found is None
        except BaseException:
            connection.collect()
            raise
        with self._lock:
            if len(self._idle) < KEPT_CONNECTIONS:
                self._idle.append((place, connection))
                return
        connection.release()

    def left_behind(self) -> list[tuple[str, Connection]]:
        """Forget all connections without a word to the broker, and return them."""
        left, self._idle = self._idle, []
        self._lock = threading.Lock()
        return left


breaker = Breaker()
_senders = Senders()
# Kept for ever: closing them would end the parent's sessions, and so might the garbage collector.
_of_parents: list[tuple[str, Connection]] = []


def forget() -> None:
    """Leave all connections behind, and what is known of the broker: as a fork does, and a test."""
    global breaker
    _of_parents.extend(_senders.left_behind())
    # Its lock may have been held by a thread that is not here.
    breaker = Breaker()


os.register_at_fork(after_in_child=forget)
