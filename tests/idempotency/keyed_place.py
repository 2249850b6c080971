"""Workers with keyed jobs on a broker and a database of their own, and ways to kill them."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from celery import Celery
from django.db import connection

from jobs.agent.wire import Record
from tests.agent.fleet import Worker
from tests.idempotency import shop
from tests.postgres import default_database
from tests.servers import RedisServer, wait_until


@dataclass(frozen=True)
class Line:
    """What a job wrote down."""

    what: str
    number: int
    task_id: str
    rest: tuple[str, ...]
    pid: int
    at: float


class KeyedPlace:
    """A Redis, a migrated database and one worker of ``tests.idempotency.shop``."""

    def __init__(self, directory: Path, database_url: str, **environment: str) -> None:
        self.directory = directory
        self.database_url = database_url
        self.server = RedisServer().start()
        self.notes = directory / "notes"
        self.environment = {
            "DATABASE_URL": database_url,
            "SHOP_NOTES": str(self.notes),
            "SHOP_SWITCH": str(directory / "switch"),
            "SECRET_KEY": "only for tests",
            "JOBS_DATA_DIR": str(directory),
            "JOBS_PREFLIGHT": "off",
            **environment,
        }
        self.worker: Worker | None = None
        self.killed: dict[int, float] = {}
        self.lost_workers = 0
        self.app = Celery("publisher", broker=self.server.url, set_as_current=False)
        self.app.conf.task_ignore_result = True

    def start(self, pool: str = "prefork", concurrency: int = 2) -> Worker:
        self.worker = Worker(
            pool=pool,
            broker_url=self.server.url,
            directory=self.directory / "worker",
            concurrency=concurrency,
            environment={**self.environment, "SHOP_POOL": pool},
            program=("celery", "-A", "tests.idempotency.shop"),
        ).start()
        return self.worker

    def close(self) -> None:
        if self.worker is not None:
            self.worker.kill()
        self.server.remove()

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Publish a job as ``Job`` does outside a transaction; return its id."""
        job = shop.app.tasks[task]
        headers = {"jobs-idempotency-key": f"effect:{args[0]}"} if task != "keys.fence" else {}
        with self.app.connection_for_write() as broker:
            sent = self.app.send_task(
                job.name, args, connection=broker, queue="celery", headers=headers, **options
            )
        return str(sent.id)

    def lines(self, what: str = "") -> list[Line]:
        if not self.notes.exists():
            return []
        found = []
        for text in self.notes.read_text().splitlines():
            kind, number, task_id, *rest, pid, at = text.split()
            if what in ("", kind):
                found.append(Line(kind, int(number), task_id, tuple(rest), int(pid), float(at)))
        return found

    def effects(self) -> Counter[int]:
        return Counter(line.number for line in self.lines("effect"))

    # Kills

    def kill_child(self, dice: random.Random) -> None:
        """The out-of-memory killer takes a process of the pool."""
        assert self.worker is not None
        assert self.worker.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.worker.process.pid).children()
            if children:
                victim = dice.choice(children)
                self.killed[victim.pid] = time.time()
                victim.kill()

    def kill_worker(self) -> None:
        """The whole worker goes, its children with it; what it had fetched comes back."""
        assert self.worker is not None
        assert self.worker.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [
                *psutil.Process(self.worker.process.pid).children(),
                psutil.Process(self.worker.process.pid),
            ]
            for victim in family:
                self.killed[victim.pid] = time.time()
                victim.kill()
        self.worker.process.wait(timeout=30)
        self._start_again()

    def start_again_if_dead(self) -> None:
        """Start a worker again that gave up: its children were killed before it had started them all."""
        if self.worker is not None and not self.worker.is_alive:
            self._start_again()

    def _start_again(self) -> None:
        assert self.worker is not None
        worker = self.worker
        self.lost_workers += 1
        worker.stop()
        worker.restore_unacknowledged()
        worker.start()

    # What is left

    def is_idle(self) -> bool:
        with self.server.client() as client:
            return not client.llen("celery") and not client.hlen("unacked")

    def wait_until_idle(self, *, seconds: float) -> None:
        def is_idle() -> bool:
            self.start_again_if_dead()
            return self.is_idle()

        wait_until(is_idle, seconds=seconds, what=f"the queue to be empty, see {self.directory}")

    def records(self) -> list[Record]:
        assert self.worker is not None
        return self.worker.records()

    @contextlib.contextmanager
    def database(self) -> Any:
        """Make the workers' database the test's default one."""
        with default_database(self.database_url):
            try:
                yield
            finally:
                connection.close()
