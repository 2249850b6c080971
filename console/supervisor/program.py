"""What the supervisor runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from console.supervisor.stopping import StopRule


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    ``once``: it does its work and exits with status 0; any other program that exits has died.
    ``is_ready`` is asked until it answers true, at most ``ready_seconds`` long; the next phase waits for it.
    It may block for a moment only. ``restart_on`` is a file: when it changes, the program is stopped
    as its rule says and started again.
    """

    name: str
    command: tuple[str, ...]
    stop: StopRule
    environment: Mapping[str, str]
    once: bool = False
    # Its output is kept for the case that it dies, and not shown.
    is_quiet: bool = False
    is_ready: Callable[[], bool] | None = None
    ready_seconds: float = 60
    restart_on: Path | None = None
    # Written to its standard input, which is then closed.
    input: str = ""
    # File descriptors that it inherits, such as a listening socket.
    pass_fds: tuple[int, ...] = field(default=())

    @property
    def restart_stamp(self) -> int:
        """Return the time of the last change of ``restart_on`` in nanoseconds, 0 without such a file."""
        if self.restart_on is None:
            return 0
        try:
            return self.restart_on.stat().st_mtime_ns
        except FileNotFoundError:
            return 0
