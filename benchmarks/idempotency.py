"""What an idempotency key costs a worker: ``Job`` with one, against a task that writes one row itself.

Real workers, prefork with two processes, Redis, and a PostgreSQL that writes to disk. Ours writes the row
of its key in the ledger, and keeps its result there; the peer writes a row of its own, as an application
does. Then both write that row: in one transaction with the key, and under a lease, which costs a second
commit that waits for the disk. Beside them django-celery-results stores the result of a plain task in the
same database. Rounds alternate, and the figure is the median of their ratios.

Celery closes a task's database connection after each task, and the workers keep to that. "Reused" is with
CELERY_DB_REUSE_MAX, where a connection costs nothing and the statements count most.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
import psycopg
import redis
from celery import Celery
from kombu import Connection

if not os.environ.get("DJANGO_SETTINGS_MODULE"):
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
django.setup()

from django.contrib.sessions.models import Session  # noqa: E402 - needs Django's settings
from django.db import connection  # noqa: E402
from django.test.utils import CaptureQueriesContext  # noqa: E402
from django.utils import timezone  # noqa: E402

from jobs import Job  # noqa: E402
from jobs.agent.wire import IDEMPOTENCY_HEADER  # noqa: E402
from jobs.idempotency import run as run_once  # noqa: E402
from tests.postgres import PostgresServer  # noqa: E402
from tests.servers import RedisServer  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
QUEUE = "bench"
FILLED = "bench.filled"
TARGET = 0.6
BARE, KEYED = "bench.bare", "bench.keyed"
PLAIN, LEASED, ATOMIC = "bench.plain", "bench.leased", "bench.atomic"
# Where each task leaves its row: a round counts only when all are there.
TABLES = {
    BARE: "django_celery_results_taskresult",
    KEYED: "jobs_idempotencyrecord WHERE state = 'done'",
    PLAIN: "django_session",
    LEASED: "django_session",
    ATOMIC: "django_session",
}

app = Celery("bench-idempotency", broker=os.environ.get("BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=4,
    task_acks_late=True,
    task_ignore_result=not os.environ.get("BENCH_RESULTS"),
    result_backend="django-db" if os.environ.get("BENCH_RESULTS") else None,
)
if os.environ.get("BENCH_REUSE"):
    app.conf.update(CELERY_DB_REUSE_MAX=1_000_000)


def write_row(number: str) -> None:
    """Write the row that every job here writes, as an application does."""
    Session.objects.create(session_key=number, session_data="sent", expire_date=timezone.now())


@app.task(name=BARE)
def bare(number: str) -> None:
    """Do nothing, and leave the result to be stored."""


@app.task(name=KEYED, base=Job, idempotency_key="row:{number}", queue=QUEUE)
def keyed(number: str) -> None:
    """Do nothing, once a key."""


@app.task(name=PLAIN)
def plain(number: str) -> None:
    """Write a row, and trust that the message comes once."""
    write_row(number)


@app.task(name=LEASED, base=Job, idempotency_key="row:{number}", queue=QUEUE)
def leased(number: str) -> None:
    """Write a row once a key, under a lease."""
    write_row(number)


@app.task(name=ATOMIC, base=Job, idempotency_key="row:{number}", atomic=True, queue=QUEUE)
def atomic(number: str) -> None:
    """Write a row once a key, in one transaction with it."""
    write_row(number)


@dataclass(frozen=True)
class Setup:
    """A worker's kind: what differs is in its environment."""

    name: str
    stores_results: bool = False
    reuses: bool = False


class BenchWorker:
    """One worker on a database of Redis and one of PostgreSQL of its own, alive for all rounds."""

    def __init__(
        self, setup: Setup, number: int, server: RedisServer, database: str, directory: Path
    ) -> None:
        self.url = f"redis://127.0.0.1:{server.port}/{number}"
        self.client = redis.Redis.from_url(self.url)
        env = {
            **os.environ,
            "BROKER_URL": self.url,
            "DATABASE_URL": database,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "JOBS_PREFLIGHT": "off",
            "PYTHONPATH": str(ROOT),
        }
        if setup.stores_results:
            env.update(BENCH_RESULTS="1", JOBS_APPS="django_celery_results")
        if setup.reuses:
            env["BENCH_REUSE"] = "1"
        migrate = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
        subprocess.run(migrate, env=env, cwd=ROOT, check=True, timeout=300)
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.idempotency", "worker"]
        command += ["-P", "prefork", "-c", "2", "-Q", QUEUE, "-l", "CRITICAL"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        self.log = directory / f"worker-{setup.name}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=ROOT)
        self._database = database

    def rate(self, task: str, *, count: int) -> float:
        """Return jobs a second of one round: from a queue that is filled at once until it is empty."""
        self._fill(task, count)
        before = self._rows(task)
        begun = time.perf_counter()
        self.client.rename(FILLED, QUEUE)
        deadline = time.monotonic() + 300
        while self.client.llen(QUEUE) or self.client.hlen("unacked"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{task}: see {self.log}: {self.log.read_text()[-2000:]}")
            time.sleep(0.01)
        took = time.perf_counter() - begun
        written = self._rows(task) - before
        if written != count:
            raise RuntimeError(f"{task} wrote {written} rows of {count}: {self.log.read_text()[-2000:]}")
        return count / took

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.client.close()

    def _rows(self, task: str) -> int:
        with psycopg.connect(self._database) as database:
            found = database.execute(f"SELECT count(*) FROM {TABLES[task]}").fetchone()  # noqa: S608
            assert found is not None
            return int(found[0])

    def _fill(self, task: str, count: int) -> None:
        sending = Celery("bench", broker=self.url, set_as_current=False)
        with Connection(self.url) as broker, broker.channel() as channel:
            producer = sending.amqp.Producer(channel)
            for _ in range(count):
                number = uuid.uuid4().hex
                headers = {} if task in (BARE, PLAIN) else {IDEMPOTENCY_HEADER: f"row:{number}"}
                sending.send_task(task, (number,), queue=FILLED, producer=producer, headers=headers)
        sending.close()


def run(quick: bool) -> list[dict[str, Any]]:
    """Return a row for each mode and peer: both rates, their median ratio and the target."""
    rounds, count = (3, 400) if quick else (5, 1_000)
    postgres = PostgresServer(is_durable=True).start()
    server = RedisServer().start()
    setups = (Setup("closing"), Setup("reusing", reuses=True), Setup("results", stores_results=True))
    with tempfile.TemporaryDirectory(prefix="bench-idempotency-") as directory:
        workers: list[BenchWorker] = []
        try:
            for number, setup in enumerate(setups, start=1):
                url = postgres.create_database(f"bench_{setup.name}")
                workers.append(BenchWorker(setup, number, server, url, Path(directory)))
            for worker in workers:
                worker.rate(PLAIN, count=100)
            closing, reusing, results = workers
            itself = "a task that writes one row itself"
            # What it is called, the two workers and their tasks, and the target.
            comparisons: tuple[tuple[str, BenchWorker, str, BenchWorker, str, float | None], ...] = (
                (f"Job with a key, against {itself}", closing, KEYED, closing, PLAIN, TARGET),
                ("the same, connections reused", reusing, KEYED, reusing, PLAIN, TARGET),
                ("both write the row, Job atomic", closing, ATOMIC, closing, PLAIN, TARGET),
                ("the same, connections reused", reusing, ATOMIC, reusing, PLAIN, TARGET),
                ("both write the row, Job under a lease", closing, LEASED, closing, PLAIN, None),
                ("the same, connections reused", reusing, LEASED, reusing, PLAIN, None),
                ("Job with a key, against django-celery-results", closing, KEYED, results, BARE, None),
            )
            return [
                _compare(
                    name,
                    functools.partial(ours.rate, our_task, count=count),
                    functools.partial(theirs.rate, their_task, count=count),
                    rounds,
                    target=target,
                )
                for name, ours, our_task, theirs, their_task, target in comparisons
            ]
        finally:
            for worker in workers:
                worker.stop()
            server.remove()
            postgres.remove()


def _compare(
    name: str,
    ours: Callable[[], float],
    peer: Callable[[], float],
    rounds: int,
    *,
    target: float | None,
) -> dict[str, Any]:
    """Measure the two one right after the other, each first every other time."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            theirs = peer()
            pairs.append((ours(), theirs))
        else:
            mine = ours()
            pairs.append((mine, peer()))
    ratio = statistics.median(mine / theirs for mine, theirs in pairs)
    row: dict[str, Any] = {
        "name": name,
        "ours": statistics.median(mine for mine, _ in pairs),
        "peer": statistics.median(theirs for _, theirs in pairs),
        "ratio": ratio,
        "unit": "jobs/s",
    }
    if target is None:
        return {**row, "target": "beside it", "is_met": True}
    return {**row, "target": target}


def count_statements() -> dict[str, int]:
    """Return the statements that a key adds to a job, by mode, on the default database."""
    counts = {}
    for is_atomic in (False, True):
        with CaptureQueriesContext(connection) as captured:
            run_once(
                task="bench.count",
                key=uuid.uuid4().hex,
                task_id=uuid.uuid4().hex,
                attempt=0,
                body=lambda: None,
                atomic=is_atomic,
                using="default",
                lease_seconds=60.0,
                has_successors=False,
            )
        counts["atomic" if is_atomic else "lease"] = len(captured)
    return counts


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(row)
