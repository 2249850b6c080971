"""Writes down that a beat lives and ticks, so that none and two of them are noticed."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from collections.abc import Callable
from datetime import datetime, timedelta

from django.db import connection
from django.utils import timezone

from jobs.core.cleaning import clean_name
from jobs.models import BeatProcess

logger = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
KEPT = timedelta(days=1)
# At its end a beat waits so long at most for its row to be removed.
GOODBYE_SECONDS = 1.0


class Sightings(threading.Thread):
    """Writes this process's row every ten seconds while its beat ticks, and removes it at a clean end."""

    def __init__(
        self,
        *,
        hostname: str,
        pid: int,
        every_seconds: float = EVERY_SECONDS,
        is_ticking: Callable[[], bool] = lambda: True,
    ) -> None:
        # A daemon: a database that hangs must not keep beat from ending.
        super().__init__(name="beat-sightings", daemon=True)
        self.hostname = clean_name(hostname)
        self.pid = pid
        self._every_seconds = every_seconds
        self._is_ticking = is_ticking
        self._has_ticked = True
        self._started_at = timezone.now()
        # Not _stop: threading.Thread has a method of that name.
        self._ending = threading.Event()
        self._trouble = ""

    def run(self) -> None:
        """Write until told to end. No error ends the thread: the database may come back."""
        while not self._ending.is_set():
            self._try(lambda: self.look(now=timezone.now()))
            self._ending.wait(self._every_seconds)
        self._try(self.remove)

    def look(self, *, now: datetime) -> None:
        """Write the row if the beat ticks. One that hangs is not seen: it sends as little as one that is dead."""
        is_ticking = self._is_ticking()
        if is_ticking != self._has_ticked:
            self._has_ticked = is_ticking
            words = (
                "ticks again" if is_ticking else "does not go through its schedules any more, nothing is sent"
            )
            logger.warning("This beat %s.", words)
        if is_ticking:
            self.write(now=now)

    def write(self, *, now: datetime) -> None:
        """Write the row, and delete those of processes not seen for a day."""
        BeatProcess.objects.update_or_create(
            hostname=self.hostname,
            pid=self.pid,
            defaults={"started_at": self._started_at, "seen_at": now},
        )
        BeatProcess.objects.filter(seen_at__lt=now - KEPT).delete()

    def remove(self) -> None:
        """Delete the row: this beat ends, and its successor is not a second one."""
        BeatProcess.objects.filter(hostname=self.hostname, pid=self.pid, started_at=self._started_at).delete()

    def end(self) -> None:
        """Ask the thread to say goodbye, and wait a moment for it."""
        self._ending.set()
        self.join(timeout=GOODBYE_SECONDS)

    def _try(self, work: object) -> None:
        assert callable(work)  # noqa: S101 (for the type checker)
        try:
            work()
        except Exception as error:  # noqa: BLE001 - logged once; beat sends schedules all the same
            if type(error).__name__ != self._trouble:
                self._trouble = type(error).__name__
                logger.warning("That this beat lives cannot be written down: %s. It is tried again.", error)
        else:
            self._trouble = ""
        finally:
            # Ten seconds apart, and the one held would be broken after an outage.
            connection.close()


_started: dict[int, Sightings] = {}


def start(is_ticking: Callable[[], bool] = lambda: True) -> None:
    """Start writing in this process, once: an embedded beat sends two signals."""
    pid = os.getpid()
    if pid in _started:
        return
    # A forked process inherits its parent's entry, whose thread it does not have.
    _started.clear()
    _started[pid] = Sightings(hostname=socket.gethostname(), pid=pid, is_ticking=is_ticking)
    _started[pid].start()
    atexit.register(_started[pid].end)
