"""Management commands without a start of Python for each: one process runs them, one after another.

For what tests ask many times, as in a loop that waits. What a command does with its process (its exit status, its
terminal, its signals) is tested where each run is a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Commands:
    """A process with an environment of its own; it starts with the first command."""

    def __init__(self, env: Callable[[], dict[str, str]], *, directory: Path = ROOT) -> None:
        self.env = env
        self.directory = directory
        self.process: subprocess.Popen[str] | None = None

    def run(self, *arguments: str) -> str:
        """Return what a command that ends well printed."""
        printed, error, text = self._answer(arguments)
        assert not error, f"{arguments}: {error}: {text}"
        return printed

    def refused(self, *arguments: str) -> str:
        """Return the sentence of a command that refuses."""
        printed, error, text = self._answer(arguments)
        assert error == "CommandError", f"{arguments}: {error or 'no error'}: {text or printed}"
        return text

    def _answer(self, arguments: tuple[str, ...]) -> list[str]:
        if self.process is None:
            env = self.env()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.commands"],
                env={**env, "PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])},
                cwd=self.directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"it ended at {arguments}: {self.process.wait(timeout=10)}"
        return list(json.loads(answer))

    def end(self) -> None:
        if self.process is not None:
            self.process.communicate(timeout=20)  # the end of its input is its end
            self.process = None


def serve() -> None:
    """Answer each line of arguments with a line: what was printed, and the error's class and text if there was one."""
    import django
    from django.core.management import call_command
    from django.db import connections

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    django.setup()
    answers = sys.stdout
    for line in sys.stdin:
        out, error, text = io.StringIO(), "", ""
        try:
            with contextlib.redirect_stdout(out):
                call_command(*json.loads(line), stdout=out, no_color=True)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - told to the test, which fails
            error, text = type(raised).__name__, str(raised)
        # No lock, no snapshot and no file of a database outlives a command, as with a process.
        connections.close_all()
        answers.write(json.dumps([out.getvalue(), error, text]) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
