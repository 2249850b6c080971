"""Where records wait when the broker does not take them: files of one JSON record a line.

A file is locked while it is written and while it is sent, so two workers never send the same one,
and any worker may send the file of another: one that died needs nobody to know that it did.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)


class SpoolFull(Exception):
    """A record could not be written to the spool."""


def broker_directory(root: Path, broker_url: str) -> Path:
    """Return the directory of one broker: its records must not be sent to another one.

    The name holds a digest of the URL without user and password, which are changed now and then.
    """
    parts = urlsplit(broker_url.split(";")[0])
    place = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or ''}{parts.path}"
    return root / f"broker-{hashlib.sha256(place.encode()).hexdigest()[:16]}"


class Spool:
    """The spool of one broker, as one process sees it."""

    def __init__(self, directory: Path, boot_id: str) -> None:
        self._directory = directory
        self._boot_id = boot_id

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self._directory

    def append(self, record: bytes) -> None:
        """Write one record and wait until the disk has it. Never waits for a lock.

        Raises:
            SpoolFull: when it could not be written; nothing of it is left behind.
        """
        try:
            self._make_directory()
            for number in range(100):
                name = self._boot_id if number == 0 else f"{self._boot_id}-{number}"
                if self._append_to(self._directory / f"{name}.jsonl", record + b"\n"):
                    return
        except OSError as error:
            raise SpoolFull(f"{type(error).__name__}: {error}") from error
        raise SpoolFull("every file of this process is being sent")

    def drain(self, send: Callable[[bytes], None], *, limit: int, seconds: float) -> int:
        """Send what waits, oldest file first, and return how many records were sent.

        Stops after ``limit`` records or ``seconds``; what ``send`` raises stops it too and is
        raised. A record is forgotten only after ``send`` returned: a crash in between sends it
        again, and the reader knows a death by publication and attempt.
        """
        sent = 0
        deadline = time.monotonic() + seconds
        for path in self.files():
            with self._locked(path) as descriptor:
                if descriptor is None:
                    continue
                for record in self._unsent(descriptor, path):
                    if sent >= limit or time.monotonic() >= deadline:
                        return sent
                    send(record)
                    sent += 1
                # Still locked: nobody appends between the last record and this.
                path.unlink(missing_ok=True)
                self._progress_path(path).unlink(missing_ok=True)
        return sent

    def files(self) -> list[Path]:
        """Return the files that wait, oldest first."""

        def age(path: Path) -> float:
            try:
                return path.stat().st_mtime
            except OSError:
                return 0.0

        try:
            return sorted(self._directory.glob("*.jsonl"), key=age)
        except OSError:
            return []

    def _make_directory(self) -> None:
        if not self._directory.is_dir():
            # Messages may hold secrets: nobody else may read them.
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _append_to(self, path: Path, line: bytes) -> bool:
        """Append a line; return False when another process holds the file or has just removed it."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _try_lock(descriptor) or not _is_still_at(descriptor, path):
                return False
            before = os.fstat(descriptor).st_size
            try:
                written = os.write(descriptor, line)
                if written != len(line):
                    raise OSError(f"the disk took {written} of {len(line)} bytes")
                os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
            if before == 0:
                _sync_directory(self._directory)
            return True
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[int | None]:
        """Yield the locked file, or None when somebody else holds it or it is gone."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            is_ours = _try_lock(descriptor) and _is_still_at(descriptor, path)
            yield descriptor if is_ours else None
        finally:
            os.close(descriptor)

    def _unsent(self, descriptor: int, path: Path) -> Iterator[bytes]:
        """Yield the records not yet sent, and write down after each that it was."""
        progress = self._progress_path(path)
        try:
            position = int(progress.read_text())
        except (OSError, ValueError):
            position = 0
        with os.fdopen(os.dup(descriptor), "rb") as lines:
            lines.seek(position)
            for line in lines:
                if line.endswith(b"\n") and _is_record(line):
                    yield line[:-1]
                else:
                    self._keep_torn(path, line)
                position += len(line)
                with contextlib.suppress(OSError):
                    progress.write_text(str(position))

    def _keep_torn(self, path: Path, line: bytes) -> None:
        """Keep aside what a crash cut short: it cannot be sent, and a person may still read it."""
        torn = path.with_suffix(".torn")
        try:
            with torn.open("ab") as kept:
                kept.write(line if line.endswith(b"\n") else line + b"\n")
                kept.flush()
                os.fsync(kept.fileno())
        except OSError as error:
            raise SpoolFull(f"cannot keep the torn line of {path} aside: {error}") from error
        logger.error(
            "%s holds %d bytes that are no whole record: the process that wrote it was cut short. "
            "They are kept in %s.",
            path,
            len(line),
            torn,
        )

    @staticmethod
    def _progress_path(path: Path) -> Path:
        return path.with_suffix(".sent")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_still_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the one at the path: the sender of a file removes it."""
    try:
        there = path.stat()
    except OSError:
        return False
    mine = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
