"""A child of a prefork worker keeps none of its parent's connections to the broker.

The pool's first children are forked before the worker connects. One that takes the place of another, after
a crash, ``max_tasks_per_child`` or growth, inherits the open sockets. When the parent is then killed, its
connection stays open until the last such child is gone: Redis still sees a reader that waits, and hands it
the next message, which nobody has (FAILURE_MODES 69 with a much larger window).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

logger = logging.getLogger(__name__)


def close_inherited(connection: Any) -> None:
    """Close this process's copies of a kombu connection's sockets; the parent's own stay open.

    To be called in a child that has just been forked, which never uses that connection.
    """
    try:
        for sock in _sockets(connection):
            # Not shutdown(), which would end the connection for the parent too.
            with contextlib.suppress(OSError):
                sock.close()
    except Exception:
        # Internals of kombu's transports, between releases: the child works as Celery's own does.
        logger.exception("The broker's sockets of the parent could not be closed in this child.")


def _sockets(connection: Any) -> Iterator[Any]:
    # The public attributes would connect.
    for channel in tuple(getattr(getattr(connection, "_transport", None), "channels", None) or ()):
        # Redis: one connection waits for messages, another for broadcasts. Both are cached properties.
        for name in ("client", "subclient"):
            sock = getattr(getattr(vars(channel).get(name), "connection", None), "_sock", None)
            if sock is not None:
                yield sock
    # AMQP
    sock = getattr(getattr(getattr(connection, "_connection", None), "transport", None), "sock", None)
    if sock is not None:
        yield sock
