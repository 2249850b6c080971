"""Ends a conversation over a network when its time is over, whatever the other side does.

The time-out of a socket counts anew for each byte: who sends one each nine seconds would hold a sender for ever,
and nobody else would be told of anything meanwhile.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

# Family, kind, protocol and address of a socket.
Target = tuple[int, int, int, Any]


class Cutoff:
    """The time of one conversation and its one connection; close it in the end.

    ``until`` is when it is over at the latest, by ``time.monotonic``. Both go on while a process is stopped: ask
    ``is_over`` before anything is sent that somebody else may have sent meanwhile.
    """

    def __init__(self, *, seconds: float, until: float = math.inf) -> None:
        self._until = until
        self._ends_at = min(time.monotonic() + seconds, until)
        self._socket: socket.socket | None = None
        self._timer: threading.Timer | None = None
        self._is_cut = False

    @property
    def is_over(self) -> bool:
        """Say whether the time is over, or was and the connection is cut off."""
        return self._is_cut or time.monotonic() >= self._ends_at

    @property
    def has_ended_connection(self) -> bool:
        """Say whether there was a connection when the time was over."""
        return self._socket is not None and self.is_over

    def allow(self, seconds: float) -> None:
        """Count so many seconds from now on, for the next part of the conversation."""
        self._ends_at = min(time.monotonic() + seconds, self._until)
        if self._socket is not None:
            self._watch()

    def connect(self, targets: Iterable[Target], *, timeout: float) -> socket.socket:
        """Connect to the first target that answers, within the time; it is cut off when that is over."""
        failure = OSError("it took too long")
        for family, kind, protocol, address in targets:
            left = self._ends_at - time.monotonic()
            if left <= 0:
                break
            found = socket.socket(family, kind, protocol)
            try:
                found.settimeout(min(timeout, left))
                found.connect(address)
            except OSError as error:
                found.close()
                failure = error
                continue
            found.settimeout(timeout)
            # A second handle on the same connection: TLS takes the first one over.
            self._socket = found.dup()
            self._watch()
            return found
        raise failure

    def close(self) -> None:
        """End the watch over the connection."""
        self._unwatch()
        if self._socket is not None:
            self._socket.close()

    def _watch(self) -> None:
        self._unwatch()
        self._timer = threading.Timer(max(0.0, self._ends_at - time.monotonic()), self._cut_off)
        self._timer.daemon = True
        self._timer.start()

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def _cut_off(self) -> None:
        self._is_cut = True
        with contextlib.suppress(OSError):
            assert self._socket is not None  # noqa: S101 - it was set before the timer was started
            # Whoever waits for the other side reads its end.
            self._socket.shutdown(socket.SHUT_RDWR)
