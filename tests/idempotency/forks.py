"""Children of the test's process that use the database by themselves and may be killed."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from django.db import connections

from jobs.idempotency.heartbeat import heart


def fork(work: Callable[[], object]) -> int:
    """Run ``work`` in a child; return its process id."""
    # SQLite's locks and PostgreSQL's sockets must not be shared.
    heart().stop()
    connections.close_all()
    # Playwright leaves an event loop running in this thread, under which Django keeps connections of their own;
    # in the child there is none.
    wrappers = {alias: connections[alias] for alias in connections}
    pid = os.fork()
    if pid:
        return pid
    try:
        for alias, wrapper in wrappers.items():
            connections[alias] = wrapper
        work()
    except BaseException:  # noqa: BLE001 - the child must never return into the test
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def wait(pid: int) -> int:
    """Return the exit status of a child: 0, 1 with its traceback on stderr, or minus the signal."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def kill_self() -> None:
    """End this process as the out-of-memory killer does."""
    os.kill(os.getpid(), signal.SIGKILL)
