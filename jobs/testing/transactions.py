"""The transaction of a test: what would be sent on its commit, though it never commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast
from unittest import mock

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobs.testing.standins import StoredMessage

logger = logging.getLogger(__name__)


def commit() -> None:
    """Run the on-commit callbacks of the test's transactions, in their order, each once.

    Django's TestCase rolls back what it never commits, so that they would not run at all. Outside of a
    transaction there is nothing to do: there Django has run them.

    Raises:
        RuntimeError: when the test is inside an atomic block of its own, which may still roll back.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            _refuse_open_block(connection)
            _run_callbacks(connection)


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


def _run_callbacks(connection: BaseDatabaseWrapper) -> None:
    pending = _callbacks(connection)
    position = 0
    # A callback may register another one.
    while position < len(pending):
        savepoints, callback, is_robust = pending[position]
        # In its place, so that the places of others stay.
        pending[position] = (savepoints, _ran_already, is_robust)
        position += 1
        if callback is _ran_already:
            continue
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

    def install(self, take: Callable[[StoredMessage], None]) -> None:
        """Give what the outbox publishes to ``take`` instead of to the broker."""

    def remove(self) -> None:
        """Let the outbox publish again."""

    def forget(self) -> None:
        """Leave the rows of earlier tests alone."""

    def pending(self) -> list[StoredMessage]:
        """Return what waits for the commit, or for its time."""
        return []

    def take(self) -> list[StoredMessage]:
        """Return what waits, and mark it as published."""
        return []
