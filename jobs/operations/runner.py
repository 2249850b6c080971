"""Carries operations out: all that run, a batch of each in turn, so that none holds up another."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Protocol

from kombu import Connection

from jobs.core.words import OperationKind, OperationState
from jobs.errors import BrokerUnavailable, LeaseLost
from jobs.models import Operation, OperationBatch
from jobs.operations.batches import Batches
from jobs.operations.events import write_event
from jobs.operations.replaying import Replaying
from jobs.operations.walking import Walking

logger = logging.getLogger(__name__)


class HoldsDuty(Protocol):
    """What proves that this process may still change something: a ``leases.HeldLease``."""

    holder: str

    def check(self) -> None:
        """Raise ``LeaseLost`` when it may not."""
        ...


class Work(Protocol):
    """One operation as far as this process carries it out."""

    def step(self, operation: Operation, *, now: datetime, lease: HoldsDuty) -> float | None:
        """Do one batch; return the seconds until the next, or None when the operation has ended."""
        ...


class Runner:
    """Keeps what one process remembers of the operations it carries out; the rows hold all that counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._helper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="runops-messages")
        self._work: dict[int, Work] = {}
        self._needs_recovery = True

    def run_once(self, *, now: datetime, lease: HoldsDuty) -> float | None:
        """Do one batch of every running operation.

        Returns the seconds until there is more to do, 0 when at once, or None when nothing runs.
        Never blocks for longer than a batch of each.

        Raises:
            LeaseLost: when another process has the duty.
            BrokerUnavailable: when a batch could not be sent; call again, it is resumed then.
        """
        lease.check()
        troubles: list[Exception] = []
        if self._needs_recovery:
            # A batch that cannot be finished is tried again in the next round, and holds up no other operation.
            troubles += self._recover(now=now, lease=lease)
            self._needs_recovery = bool(troubles)
        running = list(Operation.objects.filter(state=OperationState.RUNNING).order_by("pk"))
        self._work = {pk: work for pk, work in self._work.items() if pk in {o.pk for o in running}}
        waits: list[float] = []
        for operation in running:
            try:
                seconds = self._work_of(operation).step(operation, now=now, lease=lease)
            except LeaseLost:
                self._forget()
                raise
            except Exception as error:  # noqa: BLE001 - raised below, once the others had their turn
                self._forget()
                troubles.append(error)
                continue
            if seconds is not None:
                waits.append(seconds)
        if troubles:
            raise troubles[0]
        return min(waits) if waits else None

    def _forget(self) -> None:
        """Trust only the rows: a batch may be half done, and is looked after first."""
        self._needs_recovery = True
        self._work.clear()

    def _work_of(self, operation: Operation) -> Work:
        if operation.pk not in self._work:
            is_replay = operation.kind == OperationKind.REPLAY
            self._work[operation.pk] = Replaying(self._connection, self._helper) if is_replay else Walking()
        return self._work[operation.pk]

    def _recover(self, *, now: datetime, lease: HoldsDuty) -> list[Exception]:
        """Finish the batches that a crash or a broken connection left between claim and sent.

        Returns what went wrong with some of them.

        Raises:
            BrokerUnavailable: when none can be finished now.
        """
        troubles: list[Exception] = []
        for batch in OperationBatch.objects.select_related("operation").order_by("operation", "number"):
            lease.check()
            operation = batch.operation
            try:
                result = Batches(self._connection, self._helper).finish(operation, batch, now=now)
            except (BrokerUnavailable, LeaseLost):
                raise
            except Exception as error:  # noqa: BLE001 - returned, and raised once the others had their turn
                troubles.append(error)
                continue
            text = f"Batch {batch.number} was cut off while it was sent: {result}"
            write_event(operation, at=now, actor=lease.holder, kind="resumed_after_crash", text=text)
            logger.warning("operation %s: batch %s was cut off: %s", operation.pk, batch.number, result)
        return troubles
