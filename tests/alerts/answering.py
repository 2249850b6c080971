"""Other sides of a connection that say bytes as slowly as a test wants."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
# A record of TLS of 16,000 bytes, of which one comes at a time.
SLOW_TLS = [b"\x16\x03\x03\x3e\x80", *[b"\x02"] * 800]


@contextlib.contextmanager
def answering(*parts: bytes, every_seconds: float = 0.0, keeps_open: bool = False) -> Iterator[int]:
    """Listen, and answer each caller with these parts, one after the other; yield the port."""
    ended = threading.Event()
    listener = socket.create_server((LOOPBACK, 0))

    def answer() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(5)
                # All of the request, or of a greeting of TLS: closing before would reset the connection.
                asked = more = connection.recv(65_536)
                while more and not (asked.endswith(b"}") or asked.startswith(b"\x16")):
                    more = connection.recv(65_536)
                    asked += more
                for part in parts:
                    connection.sendall(part)
                    ended.wait(every_seconds)
                if keeps_open:
                    ended.wait(30)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        ended.set()
        # Wakes an accept that nobody came to.
        with contextlib.suppress(OSError):
            socket.create_connection((LOOPBACK, listener.getsockname()[1]), timeout=1).close()
        thread.join(timeout=10)
        listener.close()
