"""One way to open a connection."""

from __future__ import annotations

from typing import Any

from kombu import Connection

from jobs import conf

# Seconds. A black-holed Redis blocks for ever with kombu's default of none.
SOCKET_TIMEOUT_SECONDS = 5


def connect(*, timeout_seconds: float | None = None) -> Connection:
    """Return an unopened connection to ``BROKER_URL`` that gives up instead of hanging.

    ``timeout_seconds`` is for somebody who cannot wait: it is shorter than whatever the settings say.
    """
    current = conf.current()
    seconds = SOCKET_TIMEOUT_SECONDS if timeout_seconds is None else timeout_seconds
    # Redis's names and RabbitMQ's; each transport leaves the other's alone.
    names = ("socket_timeout", "socket_connect_timeout", "read_timeout", "write_timeout")
    timeouts: dict[str, Any] = dict.fromkeys(names, seconds)
    options = {**timeouts, "confirm_publish": True, **current.broker_transport_options}
    if timeout_seconds is not None:
        # Not a second time after a timeout either.
        options |= {**timeouts, "retry_on_timeout": False}
    return Connection(current.broker_url, connect_timeout=seconds, transport_options=options)
