"""Lets a worker that is shutting down go on telling that it lives.

Nothing runs the worker's timer then: the main thread waits for the pool until the last job is over, which may
take hours, and a worker that says nothing for half a minute counts as lost, with its early-acknowledged jobs.
This is the one thread that the agent starts in a worker, and it starts when no child is forked any more.

It has a connection of its own: the signal may have come amid a send, on top of which its handler waits, with the
agent's connection and what it counts held until then.
"""

from __future__ import annotations

import logging
import threading

from .recording import BATCH_SECONDS, Recorder
from .sender import Sender

logger = logging.getLogger(__name__)


class Beats:
    """Sends what there is to tell until it is stopped."""

    def __init__(self, recorder: Recorder, sender: Sender) -> None:
        self._recorder = recorder
        self._sender = sender
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; once more changes nothing."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="jobs-last-beats", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            logger.warning("This worker is silent until it has stopped: %r", error)

    def stop(self) -> None:
        """Let the thread end; it does not send anything new."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(BATCH_SECONDS):
            if not self._recorder.send(sender=self._sender):
                self._recorder.tell_state(self._sender)
        self._sender.close()
