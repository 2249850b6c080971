"""A worker of the shop with a database of its own, and what its jobs wrote down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery
from celery.result import AsyncResult
from kombu import pools

from jobs.agent import wire
from tests.agent.fleet import Worker
from tests.base import shop
from tests.migrated import migrated_database
from tests.servers import wait_until


class Place(Worker):
    """A worker of ``tests.base.shop``; ``shop`` is its application as a client has it."""

    shop: Celery

    def prepare(self) -> Place:
        """Make the database, and the client's side."""
        self.environment.update(self.variables)
        self.backend = self.broker_url
        self.program = ("celery", "-A", "tests.base.shop")
        self.queue = "celery,critical,news"
        self.shop = shop.create(self.broker_url, self.broker_url)
        migrated_database(self.directory / "db.sqlite3")
        return self

    @property
    def variables(self) -> dict[str, str]:
        return {
            "SECRET_KEY": "only for tests",
            "JOBS_DATA_DIR": str(self.directory),
            "JOBS_PREFLIGHT": "off",
            "DATABASE_URL": f"sqlite:///{self.directory / 'db.sqlite3'}",
            "BROKER_URL": self.broker_url,
        }

    def task(self, name: str) -> Any:
        return self.shop.tasks[f"base.{name}"]

    def said(self, what: str = "", *, of: str = "") -> list[dict[str, Any]]:
        """Return the lines that jobs wrote, of one job or all, in order."""
        with self.redis() as client:
            lines = [json.loads(line) for line in client.lrange(shop.LINES, 0, -1)]
        return [line for line in lines if (not what or line["what"] == what) and (not of or line["id"] == of)]

    def outcome(self, result: AsyncResult[Any], *, seconds: float = 60) -> Any:
        """Wait for a job's end; return its result, or the exception that it ended with."""
        self._wait_for(result.ready, result, seconds=seconds, what="end")
        return result.result

    def told_of(self, result: AsyncResult[Any]) -> str:
        """Say all that is known of a job now, for the message of a test that waited for it in vain."""
        with self.redis() as client:
            queues = {name: client.llen(name) for name in self.queue.split(",")}
            unacked = client.hgetall("unacked")
            scores = client.zrange("unacked_index", 0, -1, withscores=True)
        its_lines = [f"{line['what']} of attempt {line['attempt']}" for line in self.said(of=result.id)]
        return "\n".join(
            (
                f"It is {result.state}. Its attempts wrote: {its_lines}. The worker is alive: {self.is_alive}.",
                f"Queues: {queues}. Fetched and not acknowledged: {[raw[:2000] for raw in unacked.values()]}, {scores}",
                f"The end of {self.log}:",
                *self.log.read_text(errors="replace").splitlines()[-60:],
            )
        )

    def death_of(self, result: AsyncResult[Any], *, seconds: float = 60) -> wire.Record:
        """Wait for the job's death; there is one."""
        self._wait_for(lambda: self.records_of(result.id), result, seconds=seconds, what="die")
        (record,) = self.records_of(result.id)
        assert record.kind == "death"
        return record

    def _wait_for(
        self, condition: Callable[[], object], result: AsyncResult[Any], *, seconds: float, what: str
    ) -> None:
        try:
            wait_until(condition, seconds=seconds, what=f"job {result.id} to {what}")
        except AssertionError as gave_up:
            # Looked up now: what was known before the wait tells nothing of its end.
            raise AssertionError(f"{gave_up}\n{self.told_of(result)}") from None

    def settle(self, *, seconds: float = 60) -> None:
        """Wait until the broker has nothing left: no job waits or runs."""

        def is_empty() -> bool:
            with self.redis() as client:
                return not any(client.llen(name) for name in self.queue.split(",")) and not client.hlen(
                    "unacked"
                )

        wait_until(is_empty, seconds=seconds, what=f"the broker to be empty ({self.log})")


def close(app: Celery) -> None:
    """Close an application and its connections; results that are still around then go without asking a server."""
    consumer: Any = getattr(app.backend, "result_consumer", None)
    if consumer is not None:
        backend: Any = app.backend
        consumer.stop()
        consumer._pubsub = None
        backend.client.connection_pool.disconnect()
    # kombu's pools are of the process, one a broker; an application that comes later gets another.
    connection = app.connection_for_write()
    for kind in (pools.producers, pools.connections):
        kind[connection].force_close_all()
        del kind[connection]
    app.close()


def place(directory: Path, broker_url: str, pool: str) -> Place:
    """Return a running worker with the pool."""
    made = Place(pool=pool, broker_url=broker_url, directory=directory)
    made.prepare().start()
    return made
