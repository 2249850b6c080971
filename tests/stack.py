"""The whole product as separate processes: broker, web, a worker, runops, on a data directory of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from celery import Celery

from tests.commands import Commands
from tests.migrated import migrated_database
from tests.rabbit import RabbitServer
from tests.servers import RedisServer, free_port, running, wait_until

ROOT = Path(__file__).resolve().parent.parent


class Stack:
    """Starts and stops the parts; each can be killed and started again alone."""

    def __init__(self, broker: RedisServer | RabbitServer | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-stack-"))
        self.broker = RedisServer() if broker is None else broker
        self.port = free_port()
        self.parts = contextlib.ExitStack()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.commands = Commands(lambda: {**os.environ, **self.env})
        self.parts.callback(self.commands.end)
        self.app = Celery("publisher", broker=self.broker.url)
        self.app.conf.task_ignore_result = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        return {
            "JOBS_DATA_DIR": str(self.directory),
            "BROKER_URL": self.broker.url,
            "CONSOLE_URL": self.url,
            "SECRET_KEY": "only for tests",
            "SHOP_SWITCH": str(self.switch),
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "PYTHONPATH": str(ROOT),
            "JOBS_LEASE_SECONDS": "3",
        }

    @property
    def switch(self) -> Path:
        """The file that, while it exists, makes the shop's jobs succeed."""
        return self.directory / "fixed"

    def start(self) -> Stack:
        self.parts.callback(self.broker.remove)
        self.broker.start()
        migrated_database(self.directory / "console.sqlite3")
        self.run(
            *("worker", "-m", "celery", "-A", "tests.journeys.shop", "worker", "-c", "2", "-l", "INFO"),
            # There is no other worker to wait for.
            *("--without-mingle", "--without-gossip"),
        )
        self.run("runops", "manage.py", "runops")
        self.run(
            *("web", "-m", "gunicorn", "console.wsgi", "--bind", f"127.0.0.1:{self.port}"),
            *("--workers", "1", "--threads", "4"),
        )
        wait_until(self.answers, seconds=60, what="the web page")
        wait_until(lambda: b"ready." in self.log("worker"), seconds=60, what="the worker to be ready")
        return self

    def run(self, name: str, *arguments: str) -> None:
        """Start a part, or start it again."""
        self.processes[name] = self.parts.enter_context(
            running([sys.executable, *arguments], env=self.env, log=self.directory / f"{name}.log", cwd=ROOT)
        )

    def kill(self, name: str) -> None:
        """Kill a part with signal 9, with all its children."""
        process = self.processes[name]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)

    def log(self, name: str) -> bytes:
        path = self.directory / f"{name}.log"
        return path.read_bytes() if path.exists() else b""

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/healthz", timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True

    def command(
        self, *arguments: str, check: bool = True, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a management command to its end."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            env={**os.environ, **self.env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            input=text,
            timeout=120,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"manage.py {' '.join(arguments)} ended {done.returncode}:\n{done.stderr}")
        return done

    def letters(self, query: str = "state:any") -> list[dict[str, Any]]:
        """Return dead letters as the command shows them."""
        printed = self.commands.run("dead_letters", "list", "--query", query, "--json", "--limit", "100000")
        return [json.loads(line) for line in printed.splitlines() if line.strip()]

    def add_user(self, name: str, *, password: str, role: str) -> None:
        """Make a user with one of the three roles."""
        code = (
            "from django.contrib.auth.models import User, Group;"
            f"u = User.objects.create_user({name!r}, password={password!r});"
            f"u.groups.add(Group.objects.get(name={role!r}))"
        )
        self.commands.run("shell", "-v", "0", "-c", code)

    def stop(self) -> None:
        self.parts.close()
