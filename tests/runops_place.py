"""A database and a broker that runops processes share with the test, which may kill them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dj_database_url
from django.conf import settings
from django.db import connections
from django.utils import timezone
from kombu import Connection, Producer

from console.settings import SQLITE_OPTIONS
from jobs.agent.wire import CONTENT_TYPE, DEAD_QUEUE, Record, encode
from tests.factories import make_copies, make_group, make_letter
from tests.migrated import migrated_database
from tests.servers import RedisServer, running

ROOT = Path(__file__).resolve().parent.parent
LEASE_SECONDS = 1.0


class RunopsPlace:
    """Runs ``manage.py runops`` and other commands on a database with tables: SQLite in a file if none is given."""

    def __init__(self, database_url: str = "") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="jobs-runops-"))
        if not database_url:
            database_url = f"sqlite:///{migrated_database(self.directory / 'console.sqlite3')}"
        self.database_url = database_url
        self.redis = RedisServer()
        self._stack = contextlib.ExitStack()
        self.count = 0

    @property
    def env(self) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "console.settings",
            "JOBS_DATA_DIR": str(self.directory),
            "DATABASE_URL": self.database_url,
            "BROKER_URL": self.redis.url,
            "SECRET_KEY": "only for tests",
            "JOBS_LEASE_SECONDS": str(LEASE_SECONDS),
            "PYTHONPATH": str(ROOT),
        }

    @contextlib.contextmanager
    def entered(self) -> Iterator[RunopsPlace]:
        """Make this place's database and broker those of the test process as well."""
        self.redis.start()
        self._stack.callback(self.redis.remove)
        former_settings, former, broker_url = (
            connections.settings["default"],
            connections["default"],
            settings.BROKER_URL,
        )
        parsed = dj_database_url.parse(self.database_url)
        options = dict(SQLITE_OPTIONS) if "sqlite" in parsed["ENGINE"] else {}
        configured = {**former_settings, "OPTIONS": options, **parsed, "CONN_MAX_AGE": 0}
        connections.settings["default"] = configured
        connections["default"] = connections.create_connection("default")
        settings.BROKER_URL = self.redis.url
        try:
            yield self
        finally:
            self._stack.close()
            connections["default"].close()
            connections.settings["default"], connections["default"] = former_settings, former
            settings.BROKER_URL = broker_url
            shutil.rmtree(self.directory, ignore_errors=True)

    def start_runops(self) -> subprocess.Popen[bytes]:
        """Start one more process; the output of each goes to a file of its own."""
        self.count += 1
        log = self.directory / f"runops-{self.count}.log"
        return self._stack.enter_context(
            running([sys.executable, "manage.py", "runops"], env=self.env, log=log, cwd=ROOT)
        )

    def log(self, number: int = 1) -> str:
        return (self.directory / f"runops-{number}.log").read_text()

    def command(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a management command to its end, without a terminal."""
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            env={**os.environ, **self.env},
            cwd=ROOT,
            capture_output=True,
            text=True,
            input=text,
            timeout=120,
            check=False,
        )

    def queued(self, queue: str = "critical") -> list[dict[str, Any]]:
        """Return the messages in a queue, oldest first."""
        with self.redis.client() as client:
            return [json.loads(item) for item in reversed(client.lrange(queue, 0, -1))]

    def queue_length(self, queue: str = "critical") -> int:
        with self.redis.client() as client:
            return int(client.llen(queue))

    def report(self, records: list[Record]) -> None:
        """Put records on ``jobs.dead``, as an agent does."""
        with Connection(self.redis.url) as connection:
            producer = Producer(connection)
            for record in records:
                producer.publish(
                    encode(record),
                    exchange="",
                    routing_key=DEAD_QUEUE,
                    content_type=CONTENT_TYPE,
                    content_encoding="utf-8",
                )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process as the out-of-memory killer does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


def write_letters(count: int) -> None:
    """Store dead letters of one group, a minute old."""
    died_at = timezone.now() - timedelta(minutes=1)
    group = make_group(first_seen_at=died_at, last_seen_at=died_at)
    pattern = make_letter(group=group, death=False, died_at=died_at)
    make_copies(pattern, count - 1)


def outcome(message: dict[str, Any], reason: str = "done") -> Record:
    """Return what an agent reports of a replayed job that ended well."""
    headers = message["headers"]
    return Record(
        kind="outcome",
        reason=reason,
        publication_id=headers["jobs-publication"],
        attempt=0,
        at=timezone.now().timestamp(),
        task=headers["task"],
        task_id=headers["id"],
        worker="celery@web-1",
        boot_id="boot",
        replay_of=headers["jobs-replay-of"],
        replay_item=headers["jobs-replay-item"],
    )
