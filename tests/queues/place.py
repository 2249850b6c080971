"""Real workers on a real broker, and what runops does about their queues, round by round in the test."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path

from django.utils import timezone

from jobs.agent.wire import RUNS_QUEUE
from jobs.broker import connect
from jobs.broker.inbox import Inbox
from jobs.broker.queues import Meter
from jobs.leases import HeldLease, acquire
from jobs.metrics.collecting import RunsCollector
from jobs.queues import reading
from jobs.queues.pausing import enforce
from jobs.queues.purging import Purger
from jobs.queues.reading import QueueNow
from jobs.queues.sampling import Sampler
from jobs.workers import refresh_workers
from tests.agent.fleet import Worker
from tests.queues.messages import publisher
from tests.servers import wait_until


class QueuePlace:
    """Workers of the shop; queues of names of their own, since a broker is shared by tests."""

    def __init__(self, broker_url: str, directory: Path) -> None:
        self.broker_url = broker_url
        self.directory = directory
        suffix = uuid.uuid4().hex[:6]
        self.queue, self.other = f"critical-{suffix}", f"low-{suffix}"
        self.workers: list[Worker] = []
        self._numbers = itertools.count()
        self._publisher = publisher(broker_url)
        self.app = self._publisher.__enter__()
        self._inbox = Inbox(connect(), RUNS_QUEUE)
        self._collector = RunsCollector(self._inbox)
        self._meter = Meter(connect())
        self._sampler = Sampler(self._meter)
        self._control = connect()
        self.purger = Purger(connect())
        lease = acquire(duty=reading.DUTY, holder="runops-1", seconds=600)
        assert lease is not None
        self.lease: HeldLease = lease

    def start(
        self,
        *,
        pool: str = "threads",
        concurrency: int = 2,
        queues: str = "",
        application: str = "tests.agent.shop",
    ) -> Worker:
        """Start a worker, of both queues if none are given; it is told of once it has reported."""
        worker = Worker(
            pool=pool,
            broker_url=self.broker_url,
            directory=self.directory / f"worker-{next(self._numbers)}",
            concurrency=concurrency,
            program=("celery", "-A", application),
            queue=queues or f"{self.queue},{self.other}",
            environment={"JOBS_HEARTBEAT_SECONDS": "1"},
        )
        self.workers.append(worker)
        return worker.start()

    def send(self, queue: str, path: Path, *texts: str, **options: object) -> None:
        """Publish jobs that write a line each."""
        for text in texts:
            self.app.send_task("shop.mark", (str(path), text), queue=queue, **options)

    def round(self) -> None:
        """Do what runops does each 5 s, and what its duty of runs does."""
        self._collector.collect(wait_seconds=0, now=timezone.now())
        self._sampler.sample(now=timezone.now())
        enforce(self._control, now=timezone.now())
        self.purger.step(now=timezone.now(), lease=self.lease)

    def ask(self) -> None:
        """Ask the workers once, as runops does each 10 s."""
        refresh_workers(self._control, now=timezone.now())

    def now(self, queue: str | None = None) -> QueueNow:
        """Return a queue as it was counted last; nothing is known of one that never was."""
        name = queue or self.queue
        return reading.now_of(name, now=timezone.now()) or QueueNow(name, timezone.now())

    def until(self, condition: Callable[[], object], *, what: str, seconds: float = 30) -> None:
        """Run rounds until the condition holds."""

        def holds() -> object:
            self.round()
            return condition()

        wait_until(holds, seconds=seconds, what=f"{what} (see {self.directory})")

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
        self._inbox.close()
        self._meter.close()
        self._control.release()
        self.purger.close()
        self._publisher.__exit__(None, None, None)


def lines(path: Path) -> list[str]:
    """Return what jobs wrote."""
    return path.read_text().splitlines() if path.exists() else []
