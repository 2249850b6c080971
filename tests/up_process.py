"""``manage.py up`` as a user starts it: in a process of its own, on free ports and data of its own."""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import redis

from console.redis_server import URL_FILE, EmbeddedRedis
from tests.commands import Commands
from tests.migrated import migrated_database
from tests.servers import free_port, wait_until

ROOT = Path(__file__).resolve().parent.parent
# Of a loaded machine with two cores; a start takes about six seconds on an idle one.
START_SECONDS = 90


class Up:
    """One ``up``. Its embedded Redis gets a free port, so that several may run beside each other.

    Its database has its tables already, unless it is to be the first on its data.
    """

    def __init__(self, directory: Path, *, is_first: bool = False, **environment: str) -> None:
        self.directory = directory
        self.log = directory / "up.log"
        self.environment = environment
        self.process: subprocess.Popen[bytes] | None = None
        self.commands = Commands(lambda: self.env)
        directory.mkdir(parents=True, exist_ok=True)
        if not is_first and "DATABASE_URL" not in environment:
            migrated_database(directory / "console.sqlite3")
        if "BROKER_URL" not in environment and not (directory / URL_FILE).exists():
            (directory / URL_FILE).write_text(f"redis://127.0.0.1:{free_port()}/0\n")

    @property
    def env(self) -> dict[str, str]:
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("JOBS_", "CELERY_", "DJANGO_", "BROKER_", "DATABASE_", "SECRET_"))
        }
        return {**kept, "JOBS_DATA_DIR": str(self.directory), "HOME": str(self.directory), **self.environment}

    def launch(self, *arguments: str) -> Up:
        """Start it and return at once."""
        self.log.write_text("")
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", *arguments],
                cwd=ROOT,
                env=self.env,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self

    def start(self, *arguments: str) -> Up:
        """Start it and wait until it says where the console is."""
        self.launch("--port", "0", *arguments)
        wait_until(
            lambda: "Ctrl-C stops everything." in self.text() or self.exit_status() is not None,
            seconds=START_SECONDS,
            what="`manage.py up` to be up",
        )
        assert self.exit_status() is None, self.text()
        return self

    def text(self) -> str:
        return self.log.read_text()

    def exit_status(self) -> int | None:
        assert self.process is not None
        return self.process.poll()

    @property
    def url(self) -> str:
        """The printed address of the page."""
        return re.search(r"The console answers at\s+(\S+)/\n", self.text())[1]  # type: ignore[index]

    @property
    def broker_url(self) -> str:
        """The printed address of the broker."""
        return re.search(r"The broker is\s+(\S+)\n", self.text())[1]  # type: ignore[index]

    def family(self) -> list[psutil.Process]:
        """Every process that it started, the guard and pool processes too."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, words: str) -> psutil.Process:
        """The child whose command line contains ``words``."""
        assert self.process is not None
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                if words in " ".join(child.cmdline()):
                    found.append(child)
        assert len(found) == 1, found
        return found[0]

    def stop(self, number: signal.Signals = signal.SIGINT) -> tuple[int, float]:
        """Send Ctrl-C; return the exit status and the seconds it took."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(number)
        status = self.process.wait(timeout=30)
        return status, time.monotonic() - began

    def end(self) -> None:
        """Leave nothing behind, whatever a test did."""
        self.commands.end()
        if self.process is None:
            return
        family = self.family() if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in alive(family):
            process.kill()

    def manage(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command beside it, as in a second terminal."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def letters(self, query: str = "state:any") -> list[dict[str, Any]]:
        """Return dead letters as the command shows them."""
        printed = self.commands.run("dead_letters", "list", "--query", query, "--json", "--limit", "100000")
        return [json.loads(line) for line in printed.splitlines() if line.strip()]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that nobody collected does not."""
    return [
        process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


@contextlib.contextmanager
def embedded_redis(directory: Path) -> Iterator[redis.Redis]:
    """The embedded Redis alone, on the data that an ``up`` left."""
    server = EmbeddedRedis(port=free_port(), directory=directory / "redis")
    process = subprocess.Popen(server.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        assert process.stdin is not None
        process.stdin.write(server.configuration.encode())
        process.stdin.close()
        wait_until(server.answers, what="the embedded Redis")
        with redis.Redis.from_url(server.url) as client:
            yield client
    finally:
        process.terminate()
        process.wait(timeout=10)


def client() -> urllib.request.OpenerDirector:
    """A browser's manners: cookies and redirects."""
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))


def token(page: str) -> str:
    """Return the CSRF token of a form on the page."""
    return re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[1]  # type: ignore[index]


def log_in(browser: urllib.request.OpenerDirector, up: Up, password: str) -> str:
    """Log in as the first user and return the page that follows."""
    page = browser.open(f"{up.url}/login/", timeout=20).read().decode()
    form = {"username": "operator", "password": password, "csrfmiddlewaretoken": token(page)}
    request = urllib.request.Request(
        f"{up.url}/login/", urllib.parse.urlencode(form).encode(), headers={"Origin": up.url}
    )
    return browser.open(request, timeout=20).read().decode()  # type: ignore[no-any-return]


def password_of(up: Up) -> str:
    return re.search(r"Sign in as 'operator' with the password  (\S+)", up.text())[1]  # type: ignore[index]
