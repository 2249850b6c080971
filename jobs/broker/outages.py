"""Tells a broker that is away from a mistake of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import redis
from kombu import Connection
from kombu.exceptions import OperationalError

from jobs.errors import BrokerUnavailable


def outages(connection: Connection) -> tuple[type[BaseException], ...]:
    """Return what this connection raises when its broker is away or hangs up."""
    # Not kombu's recoverable errors as they are: its Redis transport lists KeyError among them.
    declared: Any = (*connection.connection_errors, *connection.channel_errors)
    broken = (each for each in declared if not issubclass(each, LookupError | TypeError | ValueError))
    # OperationalError is what opening a connection raises, whatever the transport.
    return (redis.exceptions.RedisError, OperationalError, OSError, *broken)


@contextlib.contextmanager
def translated(connection: Connection, doing: str, *, close: Callable[[], None]) -> Iterator[None]:
    """Raise BrokerUnavailable in place of what the connection raises; ``close`` lets go of it first.

    A half-read reply would answer the next command: what failed is never used again.
    """
    try:
        yield
    except outages(connection) as error:
        close()
        raise BrokerUnavailable(
            f"The broker {connection.as_uri()} failed while {doing}: {str(error).rstrip('.')}."
            " Nothing is lost; trying again is safe."
        ) from error
