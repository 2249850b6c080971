"""One supervisor for one data directory."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


class AlreadyRunning(Exception):
    """Another supervisor holds the data directory; the message names its process."""


class DataLock:
    """A file lock that lives as long as any process that inherited ``fd``.

    The guard inherits it, so the data stay locked until the programs of a killed supervisor are gone:
    two Redis servers must never write one append-only file.
    """

    def __init__(self, path: Path, *, holder_name: str = "`manage.py up`") -> None:
        self.path = path
        self.holder_name = holder_name
        self.fd = -1

    def acquire(self, *, wait_seconds: float = 0) -> None:
        """Take the lock, waiting for a dead holder's programs to go.

        Raises:
            AlreadyRunning: when a living process holds it, or the wait was in vain.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pid = self.holder()
                if is_alive(pid) or time.monotonic() >= deadline:
                    os.close(self.fd)
                    self.fd = -1
                    raise AlreadyRunning(
                        f"{self.holder_name} is already running on {self.path.parent} (process {pid}). "
                        "Stop that one, or give this one data of its own with JOBS_DATA_DIR."
                    ) from None
                time.sleep(0.1)
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)

    def holder(self) -> int:
        """Return the pid that the holder wrote, 0 when it wrote none yet."""
        text = os.pread(self.fd, 32, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else 0

    def release(self) -> None:
        """Let go; a guard that is still at work keeps the lock until it ends."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def is_alive(pid: int) -> bool:
    """Say whether a process runs; a zombie that nobody collects does not."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # "pid (name) state …"; the name may itself hold parentheses.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        # No /proc on this system: the signal above is all there is to know.
        return True
    return state not in {"Z", "X"}
