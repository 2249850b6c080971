"""One way to open a connection."""

from __future__ import annotations

from kombu import Connection

from jobs import conf

# Seconds. A black-holed Redis blocks for ever with kombu's default of none.
SOCKET_TIMEOUT_SECONDS = 5


def connect() -> Connection:
    """Return an unopened connection to ``BROKER_URL`` that gives up instead of hanging."""
    current = conf.current()
    options = {
        "socket_timeout": SOCKET_TIMEOUT_SECONDS,
        "socket_connect_timeout": SOCKET_TIMEOUT_SECONDS,
        "confirm_publish": True,
        **current.broker_transport_options,
    }
    return Connection(current.broker_url, connect_timeout=SOCKET_TIMEOUT_SECONDS, transport_options=options)
