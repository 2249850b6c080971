"""What was read for one open tab serves the others for a few seconds, in this process.

Only polls ask here: somebody who loads a page sees what is so at that moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

_T = TypeVar("_T")

# What the age of what is kept is measured by.
clock: Callable[[], float] = time.monotonic

_MOST = 100
_lock = threading.Lock()
_kept: dict[Hashable, tuple[float, Any]] = {}


def recent(key: Hashable, seconds: float, read: Callable[[], _T]) -> _T:
    """Return what was read under this key within so many seconds, else read it. Two may read at once."""
    with _lock:
        found = _kept.get(key)
    if found is not None and clock() - found[0] < seconds:
        value: _T = found[1]
        return value
    return keep(key, read())


def keep(key: Hashable, value: _T) -> _T:
    """Keep what was read, for the polls that follow; the oldest makes room."""
    with _lock:
        _kept.pop(key, None)
        _kept[key] = (clock(), value)
        while len(_kept) > _MOST:
            del _kept[next(iter(_kept))]
    return value


def forget() -> None:
    """Drop everything, as between tests."""
    with _lock:
        _kept.clear()
