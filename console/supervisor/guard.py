"""Stops the programs when their supervisor was killed without a chance to do it itself.

Runs as a process of its own in a session of its own. The supervisor holds the only writing end of
the guard's standard input: when it closes without a goodbye, the supervisor is dead. Chosen over
PR_SET_PDEATHSIG, which reaches direct children only (not the pool processes of a Celery worker),
knows no order (Redis must go last) and exists on Linux alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import TextIO

from console.supervisor.lock import is_alive
from console.supervisor.stopping import StopPlan, StopRule

# Longer than any plan takes; only a process that the kernel cannot end makes it this long.
LIMIT_SECONDS = 30


class Guard:
    """The supervisor's end: starts the guard, and tells it what runs.

    ``is_lost`` once the guard died: then nothing would stop the programs of a killed supervisor.
    """

    def __init__(self, *, pass_fds: tuple[int, ...] = ()) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            pass_fds=pass_fds,
            start_new_session=True,
            text=True,
        )

    @property
    def is_lost(self) -> bool:
        """Whether the guard died."""
        return self._process.poll() is not None

    def announce(self, name: str, pid: int, rule: StopRule) -> None:
        """Tell of a program that started."""
        self._tell({"started": name, "pid": pid, "rule": asdict(rule)})

    def retract(self, name: str) -> None:
        """Tell that a program is gone."""
        self._tell({"gone": name})

    def dismiss(self) -> None:
        """Say goodbye and wait for the guard's end, so that it holds no lock any more."""
        self._tell({"goodbye": True})
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, message: dict[str, object]) -> None:
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        # A guard that died is seen by is_lost; what runs must still be stopped.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()


def signal_program(pid: int, number: signal.Signals) -> None:
    """Send a signal to a program; SIGKILL goes to its whole process group, which it leads.

    SIGTERM goes to the leader alone: the pool processes of a Celery worker would die of it mid-job.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if number == signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def watch(stream: TextIO) -> dict[str, tuple[int, StopRule]]:
    """Follow the supervisor until it ends; return what it left running."""
    programs: dict[str, tuple[int, StopRule]] = {}
    for line in stream:
        try:
            message = json.loads(line)
        except ValueError:
            # The supervisor was killed in the middle of a line.
            break
        if "started" in message:
            programs[message["started"]] = (message["pid"], StopRule(**message["rule"]))
        elif "gone" in message:
            programs.pop(message["gone"], None)
        elif "goodbye" in message:
            return {}
    return programs


def stop(programs: dict[str, tuple[int, StopRule]]) -> None:
    """Stop what was left, in order, and kill what remains of each process group."""
    plan = StopPlan((name, rule) for name, (_, rule) in programs.items())
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        alive = {name for name, (pid, _) in programs.items() if is_alive(pid)}
        if not alive:
            break
        for name, number in plan.step(time.monotonic(), alive):
            signal_program(programs[name][0], number)
        time.sleep(0.05)
    for pid, _ in programs.values():
        signal_program(pid, signal.SIGKILL)


def main() -> None:
    """Watch standard input."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if programs := watch(sys.stdin):
        with contextlib.suppress(OSError):
            print(  # noqa: T201
                "`manage.py up` was killed; stopping what it started.", file=sys.stderr, flush=True
            )
        stop(programs)
