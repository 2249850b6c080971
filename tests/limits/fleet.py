"""Several workers on one queue, and what they wrote into the ledger."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from celery import Celery

from jobs.agent.wire import DEAD_QUEUE
from tests.agent.fleet import Worker
from tests.servers import RedisServer, wait_until

LEDGER = "test:ledger"


class LimitedFleet:
    """Workers of an application of tests, each a process with one child, on a Redis of their own."""

    def __init__(self, directory: Path, *, application: str = "tests.limits.shop") -> None:
        self.server = RedisServer().start()
        self.directory = directory
        self.application = application
        self.workers: list[Worker] = []
        self.publisher = Celery("publisher", broker=self.server.url, set_as_current=False)
        self.publisher.conf.task_ignore_result = True

    def start(self, count: int, *, pool: str = "prefork", concurrency: int = 1) -> LimitedFleet:
        """Start workers, one beside the other."""
        added = [self.add(pool=pool, concurrency=concurrency) for _ in range(count)]
        for worker in added:
            worker.start()
        return self

    def add(self, *, pool: str = "prefork", concurrency: int = 1) -> Worker:
        """Return a worker that is not started yet; ``stop`` ends it."""
        number = len(self.workers)
        worker = Worker(
            pool=pool,
            broker_url=self.server.url,
            directory=self.directory / f"worker-{number}",
            concurrency=concurrency,
            environment={
                "SECRET_KEY": "only for tests",
                "JOBS_DATA_DIR": str(self.directory),
                "JOBS_PREFLIGHT": "off",
            },
            program=("celery", "-A", self.application),
        )
        self.workers.append(worker)
        return worker

    def send(self, task: str, arguments: Iterable[tuple[Any, ...]]) -> int:
        """Publish a job for each tuple; return how many."""
        count = 0
        with self.publisher.connection_for_write() as connection:
            producer = self.publisher.amqp.Producer(connection)
            for each in arguments:
                self.publisher.send_task(task, each, producer=producer, queue="celery")
                count += 1
        return count

    def ledger(self, *, since: int = 0) -> list[dict[str, Any]]:
        """Return what the jobs wrote, in order."""
        with self.server.client() as client:
            return [json.loads(line) for line in client.lrange(LEDGER, since, -1)]

    def ledger_length(self) -> int:
        with self.server.client() as client:
            return int(client.llen(LEDGER))

    def waiting(self) -> int:
        """Return how many messages the broker has: in the queue, and delivered and not acknowledged."""
        with self.server.client() as client:
            pipe = client.pipeline()
            pipe.llen("celery")
            pipe.hlen("unacked")
            return sum(pipe.execute())

    def wait_until_drained(self, *, seconds: float = 60) -> None:
        wait_until(
            lambda: not self.waiting(), seconds=seconds, what=f"the queue to be empty ({self.directory})"
        )

    def dead(self) -> int:
        with self.server.client() as client:
            return int(client.llen(DEAD_QUEUE))

    def asked(self) -> int:
        """Return how often a script of the limits was called."""
        with self.server.client() as client:
            return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    def clear(self) -> None:
        with self.server.client() as client:
            client.flushall()
            client.config_resetstat()

    def stop(self) -> None:
        for worker in self.workers:
            if worker.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, 15)
        for worker in self.workers:
            worker.stop()
        self.publisher.close()
        self.server.remove()


@contextlib.contextmanager
def limited_fleet(directory: Path, count: int, **options: Any) -> Iterator[LimitedFleet]:
    """Give a running fleet, and end it."""
    fleet = LimitedFleet(directory, **options)
    try:
        yield fleet.start(count)
    finally:
        fleet.stop()
