"""What one process of a test run makes and the others use, in a directory that all of them know."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

# Names the directory to the processes of pytest-xdist, which inherit the environment.
PLACE = "JOBS_TEST_SHARED"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the directory that ``make`` has filled; the first process that asks makes it, the others wait."""
    directory = _place() / name
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            unfinished = Path(tempfile.mkdtemp(dir=_place()))
            make(unfinished)
            unfinished.rename(directory)
    return directory


def find(name: str) -> Path | None:
    """Return the directory of that name if a process has made it."""
    directory = _place() / name
    return directory if directory.exists() else None


def begin() -> None:
    """Make the directory, before other processes start."""
    os.environ[PLACE] = tempfile.mkdtemp(prefix="jobs-shared-")


def end() -> None:
    """Remove it with all that is in it, when the other processes have ended."""
    shutil.rmtree(os.environ.pop(PLACE), ignore_errors=True)


def _place() -> Path:
    return Path(os.environ[PLACE]) if PLACE in os.environ else _own_place()


@functools.cache
def _own_place() -> Path:
    """Outside pytest, as in a benchmark, nobody else needs it."""
    directory = Path(tempfile.mkdtemp(prefix="jobs-shared-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
