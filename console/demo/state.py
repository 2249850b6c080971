"""What the demo's processes and the console share: a directory with a flag, a lock and two ports.

Standard library only, as the shop's worker reads it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from console.ports import free_port, is_free
from console.supervisor.lock import DataLock, is_alive

DIRECTORY_VARIABLE = "SHOP_DIRECTORY"


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the shop's mail relay and its payment provider listen."""

    mail: int
    payments: int


@dataclass(frozen=True, slots=True)
class Demo:
    """The demo that belongs to a data directory."""

    directory: Path

    @classmethod
    def of(cls, data_directory: Path) -> Demo:
        """Return the demo of a data directory; nothing is created."""
        return cls(data_directory / "demo")

    @property
    def flag(self) -> Path:
        """The file that exists while the bugs are fixed; the shop's worker restarts when it changes."""
        return self.directory / "fixed"

    @property
    def is_fixed(self) -> bool:
        """Whether the shop's bugs are fixed."""
        return self.flag.exists()

    @property
    def is_running(self) -> bool:
        """Whether the shop sends jobs now."""
        try:
            pid = self.lock().path.read_text().strip()
        except FileNotFoundError:
            return False
        return pid.isdigit() and is_alive(int(pid))

    def lock(self) -> DataLock:
        """Return the lock that the process which sends the jobs holds."""
        return DataLock(self.directory / "traffic.lock", holder_name="the demo")

    def switch(self, *, fixed: bool) -> bool:
        """Fix the bugs or bring them back; return False when that was so already."""
        if self.is_fixed == fixed:
            return False
        self.directory.mkdir(parents=True, exist_ok=True)
        if fixed:
            self.flag.touch()
        else:
            self.flag.unlink(missing_ok=True)
        return True

    def ports(self) -> Ports:
        """Return the ports of the last time where they are free, others where not, and write them down."""
        path = self.directory / "ports.json"
        try:
            ports = Ports(**json.loads(path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            ports = Ports(mail=free_port(), payments=free_port())
        if not (is_free(ports.mail) and is_free(ports.payments)):
            ports = Ports(mail=free_port(), payments=free_port())
        self.directory.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(ports)))
        return ports
