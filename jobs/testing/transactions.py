"""The transaction of a test: what would be sent on its commit, though it never commits."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from jobs.core.words import OutboxState
from jobs.testing.standins import StoredMessage

if TYPE_CHECKING:
    from jobs import conf
    from jobs.broker.publish import PublishResult
    from jobs.models import OutboxMessage
    from jobs.outbox.rows import NewRow

logger = logging.getLogger(__name__)


def waiting_callbacks() -> list[Callable[[], Any]]:
    """Return the on-commit callbacks that are there already when a test begins.

    They are of setUpTestData, whose transaction goes on over all tests of its class.
    """
    return [
        callback
        for connection in connections.all(initialized_only=True)
        for _savepoints, callback, _is_robust in _callbacks(connection)
    ]


def commit(*, without: Sequence[Callable[[], Any]] = ()) -> None:
    """Run the on-commit callbacks of the test's transactions, in their order, each once.

    Django's TestCase rolls back what it never commits, so that they would not run at all. Outside of a
    transaction there is nothing to do: there Django has run them.

    Raises:
        RuntimeError: when the test is inside an atomic block of its own, which may still roll back.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            _refuse_open_block(connection)
            _run_callbacks(connection, without)


def _refuse_open_block(connection: BaseDatabaseWrapper) -> None:
    # Django marks the blocks that its test case opened.
    if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
        raise RuntimeError(
            "Cannot run jobs inside an atomic block: nothing is sent before it commits. "
            "Call run_jobs() after the block."
        )


def _callbacks(connection: BaseDatabaseWrapper) -> list[tuple[Any, Callable[[], Any], bool]]:
    """Return Django's own list of savepoints, callback, and whether its errors are only logged."""
    found: Any = connection.run_on_commit
    return cast(list[tuple[Any, Callable[[], Any], bool]], found)


def _run_callbacks(connection: BaseDatabaseWrapper, without: Sequence[Callable[[], Any]]) -> None:
    pending = _callbacks(connection)
    position = 0
    # A callback may register another one.
    while position < len(pending):
        savepoints, callback, is_robust = pending[position]
        position += 1
        if callback is _ran_already or any(callback is other for other in without):
            continue
        # In its place, so that the places of others stay.
        pending[position - 1] = (savepoints, _ran_already, is_robust)
        try:
            callback()
        except Exception:
            if not is_robust:
                raise
            logger.exception("A robust on-commit callback failed; the others run.")


def _ran_already() -> None:
    """Stand where a callback was that has run."""


def remembering_captured() -> AbstractContextManager[Any]:
    """Let ``captureOnCommitCallbacks(execute=True)`` mark what it ran, so that ``commit`` does not run it again."""
    # Imported here: it needs the settings, and a plugin is loaded before them.
    from django.test import TestCase

    original = TestCase.captureOnCommitCallbacks

    @contextmanager
    def capture(*, using: str = DEFAULT_DB_ALIAS, execute: bool = False) -> Iterator[list[Callable[[], Any]]]:
        start = len(connections[using].run_on_commit)
        with original(using=using, execute=execute) as callbacks:
            yield callbacks
        if execute:
            pending = _callbacks(connections[using])
            pending[start:] = [
                (savepoints, _ran_already, robust) for savepoints, _, robust in pending[start:]
            ]

    return mock.patch.object(TestCase, "captureOnCommitCallbacks", staticmethod(capture))


class OutboxRows:
    """The messages that this test put into the outbox and that nobody has published yet."""

    def __init__(self, take: Callable[[StoredMessage], None]) -> None:
        self._take = take
        self._stack: ExitStack | None = None
        # By database: the rows that this test wrote, rolled back or not.
        self._written: dict[str, list[uuid.UUID]] = {}

    def install(self) -> None:
        """Let what is sent at commit go to the test instead of to the broker."""
        # Imported here: the tables come after Django's settings.
        from jobs.outbox import commit, producer

        write = commit.write

        def note(using: str, rows: Sequence[NewRow]) -> None:
            self._written.setdefault(using, []).extend(row.id for row in rows)
            write(using, rows)

        stack = ExitStack()
        stack.enter_context(mock.patch.object(producer, "write", note))
        stack.enter_context(mock.patch.object(commit, "_send", self._send))
        stack.enter_context(remembering_captured())
        self._stack = stack

    def remove(self) -> None:
        """Let the outbox publish again."""
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def forget(self) -> None:
        """Leave the rows of earlier tests alone."""
        self._written.clear()

    def pending(self) -> list[StoredMessage]:
        """Return what waits for the commit, or for its time. One query a database that was written to."""
        return [_stored(row) for row in self._rows()]

    def send(self) -> None:
        """Publish what waits: rows that a commit did not send, and those held for their time."""
        from jobs.outbox import rows

        for row in self._rows():
            rows.mark_published(str(row._state.db), [row.uuid], by=rows.RELAY, now=timezone.now())
            self._take(_stored(row))

    def _rows(self) -> Iterator[OutboxMessage]:
        from jobs.models import OutboxMessage

        for using, ids in self._written.items():
            yield from (
                OutboxMessage.objects.using(using)
                .filter(uuid__in=ids, state=OutboxState.PENDING)
                .order_by("id")
            )

    def _send(
        self, _claim: uuid.UUID, chosen: Sequence[NewRow], _current: conf.JobsSettings
    ) -> PublishResult:
        from jobs.broker.publish import PublishResult
        from jobs.outbox import rows

        for row in chosen:
            message = rows.outgoing(row, now=timezone.now()).opened()
            self._take(
                StoredMessage(
                    body=message.body,
                    content_type=message.content_type,
                    content_encoding=message.content_encoding,
                    headers=message.headers,
                    properties=_with_priority(message.properties, message.priority),
                    queue=row.queue or row.routing_key,
                    exchange=message.exchange,
                    routing_key=message.routing_key,
                )
            )
        return PublishResult()


def _stored(row: OutboxMessage) -> StoredMessage:
    return StoredMessage(
        body=bytes(row.body),
        content_type=row.content_type,
        content_encoding=row.content_encoding,
        headers=row.headers,
        properties=_with_priority(row.properties, row.priority),
        queue=row.queue or row.routing_key,
        exchange=row.exchange,
        routing_key=row.routing_key,
    )


def _with_priority(properties: dict[str, Any], priority: int | None) -> dict[str, Any]:
    return properties if priority is None else {**properties, "priority": priority}
