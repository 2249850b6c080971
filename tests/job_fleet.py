"""Several workers on one queue, each a process of its own, and what their jobs wrote into a ledger."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from celery import Celery

from jobs.agent.wire import DEAD_QUEUE
from tests.agent.fleet import Worker
from tests.job_ledger import LEDGER
from tests.rabbit import VirtualHost
from tests.servers import RedisServer, wait_until

QUEUE = "celery"


class JobFleet:
    """Workers of an application of tests, on a broker of their own: a Redis, which also has ledger and limits,
    or RabbitMQ beside that Redis."""

    def __init__(
        self,
        directory: Path,
        *,
        application: str,
        rabbit: VirtualHost | None = None,
        limits_url: str | None = None,
    ) -> None:
        self.server = RedisServer().start()
        self.limits_url = self.server.url if limits_url is None else limits_url
        self.rabbit = rabbit
        self.directory = directory
        self.application = application
        self.workers: list[Worker] = []
        self._numbers = itertools.count()
        self.publisher = Celery("publisher", broker=self.broker_url, set_as_current=False)
        self.publisher.conf.task_ignore_result = True

    @property
    def broker_url(self) -> str:
        return self.server.url if self.rabbit is None else self.rabbit.url

    def start(self, count: int, *, pool: str = "prefork", concurrency: int = 1) -> list[Worker]:
        """Start workers side by side; return them once all are ready."""
        added = [self._new_worker(pool=pool, concurrency=concurrency) for _ in range(count)]
        self.workers += added
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(Worker.start, added))

    def terminate(self, workers: Sequence[Worker], *, seconds: float = 60) -> list[int]:
        """Send SIGTERM to the parents, wait, and return how they ended."""
        processes = [worker.process for worker in workers if worker.process is not None]
        for process in processes:
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(timeout=seconds) for process in processes]
        for worker in workers:
            worker.stop()
        return codes

    def _new_worker(self, *, pool: str, concurrency: int) -> Worker:
        return Worker(
            pool=pool,
            broker_url=self.broker_url,
            directory=self.directory / f"worker-{next(self._numbers)}",
            concurrency=concurrency,
            queue=QUEUE,
            environment={
                "REDIS_URL": self.limits_url,
                "LEDGER_URL": self.server.url,
                "SECRET_KEY": "only for tests",
                "JOBS_DATA_DIR": str(self.directory),
                "JOBS_PREFLIGHT": "off",
            },
            program=("celery", "-A", self.application),
        )

    def send(self, task: str, arguments: Iterable[tuple[Any, ...]], *, queue: str = QUEUE) -> int:
        """Publish a job for each tuple; return how many."""
        count = 0
        with self.publisher.connection_for_write() as connection:
            producer = self.publisher.amqp.Producer(connection)
            for each in arguments:
                self.publisher.send_task(task, each, producer=producer, queue=queue)
                count += 1
        return count

    def ledger(self) -> list[dict[str, Any]]:
        """Return what the jobs wrote, in order."""
        with self.server.client() as client:
            return [json.loads(line) for line in client.lrange(LEDGER, 0, -1)]

    def ledger_length(self) -> int:
        with self.server.client() as client:
            return int(client.llen(LEDGER))

    def waiting(self) -> int:
        """Return how many messages the broker has; of RabbitMQ's only those that no worker has fetched."""
        if self.rabbit is not None:
            return self._ready(QUEUE)
        with self.server.client() as client:
            pipe = client.pipeline()
            pipe.llen(QUEUE)
            pipe.hlen("unacked")
            return sum(pipe.execute())

    def dead(self) -> int:
        """Return how many records of dead letters there are."""
        if self.rabbit is not None:
            return self._ready(DEAD_QUEUE)
        with self.server.client() as client:
            return int(client.llen(DEAD_QUEUE))

    def _ready(self, queue: str) -> int:
        with self.publisher.connection_for_read() as connection, connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:
                # Nobody has declared it yet.
                return 0

    def wait_until_drained(self, *, seconds: float = 60) -> None:
        wait_until(
            lambda: not self.waiting(), seconds=seconds, what=f"the queue to be empty ({self.directory})"
        )

    def asked(self) -> int:
        """Return how often a script of the limits was called."""
        with self.server.client() as client:
            return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))

    def clear(self) -> None:
        """Forget all messages, the ledger and the limits of this fleet's Redis."""
        with self.server.client() as client:
            client.flushall()
            client.config_resetstat()

    def stop(self) -> None:
        """Kill the workers: nobody looks at how they end."""
        for worker in self.workers:
            worker.kill()
        self.publisher.close()
        self.server.remove()


@contextlib.contextmanager
def job_fleet(directory: Path, count: int, **options: Any) -> Iterator[JobFleet]:
    """Give a fleet with so many running workers, and end it; options are those of ``JobFleet``."""
    fleet = JobFleet(directory, **options)
    try:
        if count:
            fleet.start(count)
        yield fleet
    finally:
        fleet.stop()
