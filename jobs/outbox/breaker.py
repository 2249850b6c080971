"""Keeps a broker that does not answer from costing every request its timeout."""

from __future__ import annotations

import threading
import time

FIRST_SECONDS = 5.0
LAST_SECONDS = 30.0


class Breaker:
    """Lets everybody through until something fails; then nobody for a while, then one to try again.

    Each failed try doubles the while, from FIRST_SECONDS up to LAST_SECONDS. Threads may share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open_until: float | None = None
        self._seconds = FIRST_SECONDS
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Say whether nobody would get through now; asking does not use up the try."""
        until = self._open_until
        return until is not None and time.monotonic() < until

    def lets_through(self) -> bool:
        """Say whether the caller may try; whoever is told so reports with ``succeeded`` or ``failed``."""
        with self._lock:
            if self._open_until is None:
                return True
            if time.monotonic() < self._open_until:
                return False
            # Only this one; should it never report, the next one may try after the same while.
            self._open_until = time.monotonic() + self._seconds
            self._is_trying = True
            return True

    def succeeded(self) -> bool:
        """Let everybody through; return whether that is news."""
        with self._lock:
            is_news = self._open_until is not None
            self._open_until, self._seconds, self._is_trying = None, FIRST_SECONDS, False
            return is_news

    def failed(self) -> bool:
        """Let nobody through for a while; return whether that is news."""
        with self._lock:
            is_news = self._open_until is None
            # Not for each of the threads that were under way when the first one failed.
            if self._is_trying:
                self._is_trying = False
                self._seconds = min(LAST_SECONDS, self._seconds * 2)
            self._open_until = time.monotonic() + self._seconds
            return is_news
