"""The statements of the ledger. Each change is one conditional statement whose count is checked.

They are written in SQL: a job waits for two of them, and the ORM's way to the same words costs as
much as the database's answer. Leases are measured by the database's clock, so that the clocks of
machines may differ.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import DateTimeField, Value
from django.db.models.functions import Now

from jobs.core.claims import MAX_TAKEOVERS, Claimant, KeyState
from jobs.core.words import LedgerState
from jobs.models import IdempotencyRecord

Clock = Callable[[], datetime]

_COLUMNS = (
    *("task", "key", "state", "task_id", "attempt", "replay", "holder", "lease_token", "lease_expires_at"),
    *("takeovers", "result", "created_at", "started_at", "completed_at", "updated_at"),
)
# Times are text there, of one length, so that they compare as they follow each other.
_SQLITE_NOW = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f000', 'NOW'"


@dataclass(frozen=True, slots=True)
class Row:
    """A key as it was read, with what a change of it has to find unchanged."""

    key: KeyState
    token: int
    result: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A key that this process runs, until its token is no longer the row's."""

    using: str
    task: str
    key: str
    task_id: str
    token: int
    lease_seconds: float
    now: Clock | None = None

    @property
    def ledger(self) -> Ledger:
        """Return the ledger, on the connection of the calling thread."""
        return Ledger(using=self.using, task=self.task, key=self.key, now=self.now)


class Ledger:
    """One key in one database, on the connection of the thread that made it.

    ``now`` takes the place of the database's clock, for tests.
    """

    def __init__(self, *, using: str, task: str, key: str, now: Clock | None = None) -> None:
        self.using = using
        self.connection: BaseDatabaseWrapper = connections[using]
        self._task = task
        self._key = key
        self._now = now
        self._table = self.connection.ops.quote_name(IdempotencyRecord._meta.db_table)

    def insert(
        self, claimant: Claimant, *, holder: str, lease_seconds: float, token: int | None = None
    ) -> int | None:
        """Claim a key that the ledger does not know; return the token, or None when it knows it.

        On PostgreSQL also None, and at once, while another transaction is changing the key. There,
        and outside a transaction, it does not wait for the disk: that is a third of what a key costs.
        A server that crashes within the next moment forgets the claim; its run then writes a new row
        at its end, and only a second copy in that very time could start beside it.
        """
        token = _first_token() if token is None else token
        now, now_values = self._moment()
        until, until_values = self._moment(lease_seconds)
        marks = ["%s"] * len(_COLUMNS)
        for column in ("created_at", "started_at", "updated_at"):
            marks[_COLUMNS.index(column)] = now
        marks[_COLUMNS.index("lease_expires_at")] = until
        values = [
            *(self._task, self._key, LedgerState.RUNNING.value),
            *(claimant.task_id, claimant.attempt, claimant.replay, holder, token),
            *until_values,
            *(0, None),
            *(*now_values, *now_values),
            None,
            *now_values,
        ]
        return token if self._insert(marks, values, waits_for_disk=self.connection.in_atomic_block) else None

    def read(self) -> Row | None:
        """Read the key, or None when there is none."""
        current = Now() if self._now is None else Value(self._now(), output_field=DateTimeField())
        found = (
            IdempotencyRecord.objects.using(self.using)
            .filter(task=self._task, key=self._key)
            .annotate(current=current)
            .values_list(
                *("state", "task_id", "attempt", "replay", "takeovers", "lease_token", "result"),
                *("lease_expires_at", "started_at", "updated_at", "holder", "current"),
            )
            .first()
        )
        if found is None:
            return None
        state, task_id, attempt, replay, takeovers, token, result = found[:7]
        expires_at, started_at, changed_at, last_holder, current = found[7:]
        left = 0.0 if expires_at is None else (expires_at - current).total_seconds()
        ran = max(0.0, (current - started_at).total_seconds())
        idle = max(0.0, (current - changed_at).total_seconds())
        # note_sent names no holder: the attempt that it tells of has had none yet.
        key = KeyState(state, task_id, attempt, replay, takeovers, left, ran, idle, bool(last_holder))
        return Row(key, token, result)

    def take(
        self, row: Row, claimant: Claimant, *, takeovers: int, holder: str, lease_seconds: float
    ) -> bool:
        """Claim a key that is free or whose lease has run out, with the next token.

        Return False when the row is no longer as it was read.
        """
        now, now_values = self._moment()
        until, until_values = self._moment(lease_seconds)
        return self._update(
            "state = %s, task_id = %s, attempt = %s, replay = %s, holder = %s, lease_token = lease_token + 1,"
            f" lease_expires_at = {until}, takeovers = %s, result = NULL, completed_at = NULL,"
            f" started_at = {now}, updated_at = {now}",
            [
                *(LedgerState.RUNNING.value, claimant.task_id, claimant.attempt, claimant.replay, holder),
                *(*until_values, takeovers, *now_values, *now_values),
            ],
            *self._unchanged(row),
        )

    def blame(self, row: Row) -> bool:
        """Free a key whose lease ran out under one job too often; the count stays with that job."""
        now, now_values = self._moment()
        return self._update(
            f"state = %s, takeovers = %s, lease_expires_at = NULL, updated_at = {now}",
            [LedgerState.FREE.value, MAX_TAKEOVERS, *now_values],
            *self._unchanged(row),
        )

    def complete(self, token: int, result: str | None, *, ago_seconds: float = 0.0) -> bool:
        """Write down that the holder of ``token`` is done; return False when it holds the key no longer.

        ``ago_seconds`` is how long ago that was.
        """
        now, now_values = self._moment()
        end, end_values = self._moment(-ago_seconds) if ago_seconds else (now, now_values)
        return self._update(
            f"state = %s, result = %s, lease_expires_at = NULL, completed_at = {end}, updated_at = {now}",
            [LedgerState.DONE.value, result, *end_values, *now_values],
            *self._held(token),
        )

    def free(self, token: int) -> bool:
        """Let others claim the key; return False when the holder of ``token`` holds it no longer."""
        now, now_values = self._moment()
        return self._update(
            f"state = %s, lease_expires_at = NULL, updated_at = {now}",
            [LedgerState.FREE.value, *now_values],
            *self._held(token),
        )

    def extend(self, token: int, *, lease_seconds: float) -> bool:
        """Move the end of the lease forward; return False when the holder of ``token`` has lost it."""
        now, now_values = self._moment()
        until, until_values = self._moment(lease_seconds)
        return self._update(
            f"lease_expires_at = {until}, updated_at = {now}",
            [*until_values, *now_values],
            *self._held(token),
        )

    def note_sent(self, claimant: Claimant) -> None:
        """Write down that an attempt was sent, so that an older copy of the same job is known as such.

        What the ledger knows of another job with this key is left alone.
        """
        now, now_values = self._moment()
        marks = ["%s"] * len(_COLUMNS)
        for column in ("created_at", "started_at", "updated_at"):
            marks[_COLUMNS.index(column)] = now
        values = [
            *(self._task, self._key, LedgerState.FREE.value),
            *(claimant.task_id, claimant.attempt, claimant.replay, "", _first_token()),
            *(None, 0, None),
            *(*now_values, *now_values),
            None,
            *now_values,
        ]
        # In atomic mode a failure has rolled the row back. PostgreSQL may refuse to wait for who changes it.
        if not self._insert(marks, values, waits_for_disk=True):
            self._update(
                f"attempt = %s, replay = %s, holder = %s, updated_at = {now}",
                [claimant.attempt, claimant.replay, "", *now_values],
                "task_id = %s AND state <> %s AND (replay < %s OR (replay = %s AND attempt < %s))",
                [
                    *(claimant.task_id, LedgerState.DONE.value),
                    *(claimant.replay, claimant.replay, claimant.attempt),
                ],
            )

    def note_ended(self, task_id: str) -> None:
        """Forget which attempts of a job are known; what is known of another job is left alone."""
        now, now_values = self._moment()
        self._update(
            f"attempt = 0, replay = 0, updated_at = {now}",
            now_values,
            "task_id = %s AND state = %s AND (attempt > 0 OR replay > 0)",
            [task_id, LedgerState.FREE.value],
        )

    def _moment(self, later_seconds: float | None = None) -> tuple[str, list[Any]]:
        """Return SQL for now, or so much later, and its values."""
        if self._now is None and self.connection.vendor == "postgresql":
            if later_seconds is None:
                return "STATEMENT_TIMESTAMP()", []
            return "STATEMENT_TIMESTAMP() + make_interval(secs => %s)", [later_seconds]
        if self._now is None:
            if later_seconds is None:
                return f"{_SQLITE_NOW})", []
            return f"{_SQLITE_NOW}, %s)", [f"{later_seconds:+.3f} seconds"]
        moment = self._now() + timedelta(seconds=later_seconds or 0)
        return "%s", [self.connection.ops.adapt_datetimefield_value(moment)]

    def _insert(self, marks: list[str], values: list[Any], *, waits_for_disk: bool) -> bool:
        ops = self.connection.ops
        columns = ", ".join(ops.quote_name(column) for column in _COLUMNS)
        turn, turn_values = self._turn()
        if self.connection.vendor == "postgresql" and not waits_for_disk:
            # For this statement's own transaction, without a round trip of its own.
            turn += " AND set_config('synchronous_commit', 'off', true) IS NOT NULL"
        # Not Django's own form for SQLite, INSERT OR IGNORE, which hides every other constraint's error too.
        sql = (
            f"INSERT INTO {self._table} ({columns}) SELECT {', '.join(marks)} WHERE {turn}"
            " ON CONFLICT DO NOTHING"
        )
        return self._run(sql, [*values, *turn_values]) == 1

    def _update(self, changes: str, values: list[Any], condition: str, terms: list[Any]) -> bool:
        key = self.connection.ops.quote_name("key")
        sql = f"UPDATE {self._table} SET {changes} WHERE task = %s AND {key} = %s AND {condition}"  # noqa: S608
        return self._run(sql, [*values, self._task, self._key, *terms]) == 1

    def _run(self, sql: str, values: list[Any]) -> int:
        cursor: CursorWrapper
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values)
            return int(cursor.rowcount)

    def _held(self, token: int) -> tuple[str, list[Any]]:
        return "lease_token = %s AND state = %s", [token, LedgerState.RUNNING.value]

    def _unchanged(self, row: Row) -> tuple[str, list[Any]]:
        key = row.key
        now, now_values = self._moment()
        turn, turn_values = self._turn()
        return (
            "lease_token = %s AND state = %s AND attempt = %s AND replay = %s"
            f" AND (lease_expires_at IS NULL OR lease_expires_at <= {now}) AND {turn}",
            [row.token, key.state, key.attempt, key.replay, *now_values, *turn_values],
        )

    def _turn(self) -> tuple[str, list[Any]]:
        """Return a condition that is false at once where a statement would wait for another transaction.

        PostgreSQL lets an INSERT wait until the transaction that inserted the same key has ended, and
        that one may run a body of minutes. The lock is let go with the transaction.
        """
        if self.connection.vendor != "postgresql":
            return "1 = 1", []
        return "pg_try_advisory_xact_lock(%s)", [_lock_number(self._task, self._key)]


def _first_token() -> int:
    """Return where the tokens of a new row begin: not where those of a deleted one of this key did."""
    return random.getrandbits(48)


def _lock_number(task: str, key: str) -> int:
    digest = hashlib.blake2b(f"jobs.key\0{task}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
