"""A job that was handed to a child just before a warm shutdown runs once, not twice.

Celery's prefork pool forgets, when the consumer closes, every job of which no child has said yet that it
started. But a job that was already written to a child's pipe does start: then its result goes nowhere, its
message is not acknowledged, goes back to the queue and runs a second time, and the child waits 30 s for
somebody to read its result before it exits. The gap is as long as a child takes to answer, a few
milliseconds; under load one restart in ten met it (Celery 5.7, ``AsynPool.flush``).
"""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Iterator
from typing import Any

from celery.worker import state

logger = logging.getLogger(__name__)

# A child that reads nothing for so long is stuck or stopped; the shutdown goes on as Celery's own does.
PATIENCE_SECONDS = 5.0
_POLL_MILLISECONDS = 100


def is_shutting_down() -> bool:
    """Return whether the worker finishes its jobs and then ends."""
    return state.should_stop is not None and state.should_stop is not False


def let_children_answer(consumer: Any, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
    """On a warm shutdown, read what the children say until every job they were given has started.

    Does nothing for other pools, which run a job in the process that took it.
    """
    if not is_shutting_down():
        return
    pool = _prefork_pool(consumer)
    if pool is None:
        return
    deadline = time.monotonic() + patience_seconds
    try:
        while given := list(_given(pool)):
            if time.monotonic() > deadline:
                logger.warning(
                    "%d jobs were given to children that do not answer; they may run once more.", len(given)
                )
                return
            _go_on(pool, consumer.hub, given)
    except Exception:
        # Celery's internals, between releases. Its own shutdown goes on.
        logger.exception("Could not wait for the children to start their jobs; some may run once more.")


def _prefork_pool(consumer: Any) -> Any:
    pool = getattr(consumer.pool, "_pool", None)
    needed = ("_cache", "_fileno_to_outq", "_active_writers", "handle_result_event")
    return pool if consumer.hub is not None and all(hasattr(pool, name) for name in needed) else None


def _given(pool: Any) -> Iterator[Any]:
    """Yield the jobs that are written to a child that lives, or are being written, and have not started."""
    for job in list(pool._cache.values()):
        child = getattr(job, "_write_to", None)
        if child is not None and not job._accepted and child._is_alive():
            yield job


def _go_on(pool: Any, hub: Any, given: list[Any]) -> None:
    """Do for the children's pipes, and only for them, one round of what the event loop does."""
    writers = {}
    for job in given:
        # A job that is larger than its pipe, and written in part.
        writer = job._writer() if getattr(job, "_writer", None) is not None else None
        if writer in pool._active_writers:
            writers[job._write_to.inqW_fd] = writer
    poller = select.poll()
    for descriptor in pool._fileno_to_outq:
        poller.register(descriptor, select.POLLIN)
    for descriptor in writers:
        poller.register(descriptor, select.POLLOUT)
    for descriptor, _ in poller.poll(_POLL_MILLISECONDS):
        if descriptor in writers:
            _advance(writers[descriptor])
            continue
        callback, arguments = hub.readers.get(descriptor, (pool.handle_result_event, (descriptor,)))
        if hasattr(callback, "__next__"):
            # An answer that was read in part.
            _advance(callback)
        else:
            callback(*arguments)


def _advance(generator: Any) -> None:
    with contextlib.suppress(StopIteration):
        next(generator)
