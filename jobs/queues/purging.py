"""Carries purges out: lifts what waited, archives it batch by batch, and only then removes it."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Protocol

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F
from kombu import Connection

from jobs import conf
from jobs.broker.inbox import Taken
from jobs.broker.lifting import Lifted
from jobs.core.words import OperationKind, OperationState, QueueActionKind, QueueActionState
from jobs.errors import BrokerUnavailable, LeaseLost
from jobs.models import Operation, QueueAction
from jobs.operations.events import write_event
from jobs.queues.archiving import Purge, archive, known

logger = logging.getLogger(__name__)

# Holds SQLite's write lock for 0.1 s.
BATCH = 500
_OPEN = (QueueActionState.WAITING.value, QueueActionState.RUNNING.value)
_ERROR_LENGTH = 2_000


class HoldsDuty(Protocol):
    """Whoever carries the duty out: a lease."""

    holder: str

    def check(self) -> None:
        """Raise LeaseLost when the duty is somebody else's."""
        ...


class Purger:
    """Carries out one purge at a time, the oldest first. What a crash left open is gone on with."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lifted: Lifted | None = None
        self._number = 0
        # Whether nothing was taken yet since it connected: then what a crash put back comes first.
        self._is_first = True

    def step(self, *, now: datetime, lease: HoldsDuty) -> bool:
        """Archive and remove one batch; return whether there was one.

        Raises:
            BrokerUnavailable: when the broker is away; nothing is lost.
            OperationalError: when the database is away or busy; the batch comes again.
            LeaseLost: when somebody else carries purges out now.
        """
        action = (
            QueueAction.objects.filter(state__in=_OPEN).select_related("operation").order_by("pk").first()
        )
        if action is None:
            self.close()
            return False
        try:
            self._carry_on(action, now=now, lease=lease)
        except (BrokerUnavailable, LeaseLost, OperationalError, InterfaceError):
            self.close()
            raise
        except Exception as error:
            logger.exception("A purge failed.", extra={"purge": action.pk, "queue": action.queue[:80]})
            if self._lifted is not None:
                self._lifted.give_back()
            self.close()
            _end(action, QueueActionState.FAILED, now=now, error=f"{type(error).__name__}: {error}")
        return True

    def close(self) -> None:
        """Let go of the broker; what is not archived is there again, or kept under the purge's name."""
        lifted, self._lifted = self._lifted, None
        if lifted is not None:
            lifted.close()

    def _carry_on(self, action: QueueAction, *, now: datetime, lease: HoldsDuty) -> None:
        if self._lifted is None or self._number != action.pk:
            self.close()
            self._number, self._is_first = action.pk, True
            self._lifted = Lifted(
                self._connection,
                queue=action.queue,
                name=f"jobs.purge.{action.created_at:%Y%m%d%H%M%S}.{action.pk}",
                until=action.created_at,
            )
        lease.check()
        if action.state == QueueActionState.WAITING:
            count = self._lifted.lift(action.sizes)
            if count:
                _begin(action, count, now=now, lease=lease)
            else:
                _end(action, QueueActionState.FINISHED, now=now)
            return
        operation = action.operation
        assert operation is not None  # noqa: S101 - it was made when the purge began
        purge = Purge(action.queue, operation, action.pk, action.actor, action.why)
        taken = self._take(self._lifted, action, purge, now=now)
        if not taken:
            self.close()
            _end(action, QueueActionState.FINISHED, now=now)
            return
        lease.check()
        with transaction.atomic():
            added = archive(taken, purge=purge, now=now)
            QueueAction.objects.filter(pk=action.pk).update(taken=F("taken") + added)
            Operation.objects.filter(pk=operation.pk).update(
                changed_count=F("changed_count") + added, ended_at=now
            )
        self._lifted.forget(taken)

    def _take(self, lifted: Lifted, action: QueueAction, purge: Purge, *, now: datetime) -> list[Taken]:
        """Take a batch: what the purge may still take, and what it has stored already and a crash put back."""
        if lifted.is_apart:
            return lifted.take(BATCH)
        left = max(action.expected - action.taken, 0)
        is_first, self._is_first = self._is_first, False
        taken = lifted.take(BATCH if is_first else min(BATCH, left))
        if len(taken) <= left:
            return taken
        wanted: list[Taken] = []
        unwanted: list[Taken] = []
        for one, is_known in zip(taken, known(taken, purge=purge, now=now), strict=True):
            left -= not is_known
            (unwanted if left < 0 and not is_known else wanted).append(one)
        lifted.put_back(unwanted)
        return wanted


def _begin(action: QueueAction, count: int, *, now: datetime, lease: HoldsDuty) -> None:
    """Make the operation of which the letters are purged: finished for the runner, there for a restore."""
    with transaction.atomic():
        action.operation = Operation.objects.create(
            kind=OperationKind.PURGE,
            state=OperationState.FINISHED,
            created_at=action.created_at,
            created_by=action.user,
            actor=action.actor,
            why=action.why,
            selection_words=f"Messages that waited on the queue {action.queue}",
            selected_count=count,
            is_materialised=True,
            started_at=now,
            ended_at=now,
            outcome="The messages that waited were taken off their queue and are kept as purged letters.",
            carried_out_by=lease.holder,
            delete_after=now + conf.current().purge_deadline,
        )
        write_event(
            action.operation,
            at=now,
            actor=lease.holder,
            kind="started",
            text=f"Took {count:,} waiting messages off the queue {action.queue}"[:500],
        )
        action.state = QueueActionState.RUNNING
        action.save(update_fields=["state", "operation"])


def _end(action: QueueAction, state: QueueActionState, *, now: datetime, error: str = "") -> None:
    """End a purge that is open."""
    with transaction.atomic():
        ended = QueueAction.objects.filter(pk=action.pk, state__in=_OPEN).update(
            state=state, finished_at=now, error=error[:_ERROR_LENGTH]
        )
        if ended and action.operation is not None:
            taken = QueueAction.objects.values_list("taken", flat=True).get(pk=action.pk)
            write_event(
                action.operation,
                at=now,
                actor=action.operation.carried_out_by,
                kind="finished" if state == QueueActionState.FINISHED else "failed",
                text=f"{taken:,} messages are purged letters now" if not error else f"Failed: {error}"[:500],
            )


def open_purge(queue: str) -> QueueAction | None:
    """Return the purge of a queue that has not ended yet."""
    return QueueAction.objects.filter(kind=QueueActionKind.PURGE, queue=queue, state__in=_OPEN).first()
