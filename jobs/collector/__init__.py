"""Records on ``jobs.dead`` → rows, before they are acknowledged.

A batch is one transaction. A crash between the commit and the acknowledgement delivers it again,
and adds nothing: a death is known by its publication and attempt.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import InterfaceError, OperationalError

from jobs.agent.wire import Record
from jobs.broker.inbox import Inbox, Taken
from jobs.collector.reading import checked, read, unreadable
from jobs.collector.storing import Stored, store
from jobs.core.cleaning import clean_name

__all__ = ["BATCH", "Collector", "Stored", "insert_letters"]

logger = logging.getLogger(__name__)

# Twice as many gain nothing measurable; a batch this size holds SQLite's write lock for 0.1 s.
BATCH = 500


class Collector:
    """Moves records from an inbox into the tables."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def collect(self, *, limit: int = BATCH, wait_seconds: float = 1.0, now: datetime) -> int:
        """Take one batch, write it, acknowledge it; return how many records that were.

        Raises:
            BrokerUnavailable: when the broker is away; nothing is lost.
            OperationalError: when the database is away or busy; the batch is delivered again.
        """
        taken = self._inbox.take(limit, 0)
        if not taken and wait_seconds > 0:
            began = time.monotonic()
            taken = self._inbox.take(limit, wait_seconds)
            # A letter that dies while this waits must not look as if it had died before: a selection
            # that was frozen meanwhile would take it in.
            now += timedelta(seconds=time.monotonic() - began)
        if not taken:
            return 0
        self._write(taken, now=now)
        self._inbox.ack(taken)
        return len(taken)

    def _write(self, taken: Sequence[Taken], *, now: datetime) -> None:
        try:
            store([read(one, now=now) for one in taken], now=now)
        except (OperationalError, InterfaceError):
            raise
        except Exception:
            # One of them is refused, or another collector wrote some at the same moment.
            logger.warning(
                "A batch of %s records was refused; each is written by itself.", len(taken), exc_info=True
            )
            for one in taken:
                self._write_alone(one, now=now)

    def _write_alone(self, taken: Taken, *, now: datetime) -> None:
        try:
            store([read(taken, now=now)], now=now)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            logger.exception("A record was refused by the database; it is kept as a malformed letter.")
            # Its bytes alone, so that whatever was refused is not refused again.
            bare = Taken(body=taken.body, content_type=clean_name(taken.content_type))
            store([unreadable(bare, f"the database refused it ({type(error).__name__})", now=now)], now=now)


def insert_letters(
    records: Sequence[Record], *, now: datetime, uuids: Sequence[uuid.UUID | None] = ()
) -> Stored:
    """Write deaths that come from elsewhere than the broker, an import for instance, in one transaction.

    ``uuids`` are the ids that new letters get. A death that is here already adds nothing.

    Raises:
        ValueError: when a record is not what an agent would send; nothing is written.
    """
    return store([checked(record) for record in records], now=now, uuids=uuids)
