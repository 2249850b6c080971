"""Starts one worker a pool, and uses it for many endings."""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu import Connection, Producer

from jobs.agent import attach, wire
from tests.agent import recorded, shop
from tests.servers import RedisServer, living_in_group, wait_until

ROOT = Path(__file__).resolve().parents[2]
# Nothing listens on port 1.
DEAD_BACKEND = "redis://127.0.0.1:1/0"
POOLS = ("prefork", "threads", "solo", "gevent")


class RecordingProducer(Producer):
    """A kombu producer that keeps the bytes it publishes."""

    bodies: list[bytes]

    def _publish(self, body: Any, *args: Any, **kwargs: Any) -> Any:
        self.bodies.append(body if isinstance(body, bytes) else body.encode())
        return super()._publish(body, *args, **kwargs)


# A test that waits for a record reads those of all tests before it again and again.
@functools.lru_cache(maxsize=5_000)
def _record(raw: bytes) -> wire.Record:
    return wire.decode(base64.b64decode(json.loads(raw)["body"]))


@dataclass
class Sent:
    """One message as it was published."""

    task_id: str
    body: bytes


@dataclass
class Worker:
    """A worker process with a queue and a database of Redis of its own, and the client's side of it."""

    pool: str
    broker_url: str
    directory: Path
    backend: str = ""
    concurrency: int = 2
    queue: str = "celery"
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    program: tuple[str, ...] = ("celery", "-A", "tests.agent.shop")

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = self.directory / "worker.log"
        self.spool = self.directory / "spool"
        self.process: subprocess.Popen[bytes] | None = None
        # A client without result backend: one that is down would stop the test's own publishing.
        self.app: Celery = shop.create(self.broker_url)
        attach(self.app)
        self._names = itertools.count()

    def start(self) -> Worker:
        env = {
            **os.environ,
            "BROKER_URL": self.broker_url,
            "RESULT_BACKEND": self.backend,
            "JOBS_SPOOL_DIRECTORY": str(self.spool),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            # Celery refuses to accept pickle as root, which is what a container's tests are.
            "C_FORCE_ROOT": "1",
            **self.environment,
        }
        env.pop("DJANGO_SETTINGS_MODULE", None)
        # Another interpreter runs the workers on another release of Celery.
        python = os.environ.get("JOBS_TEST_WORKER_PYTHON", sys.executable)
        command = [python, "-m", *self.program, "worker", "-P", self.pool]
        command += ["-c", str(self.concurrency), "-Q", self.queue, "-n", f"{uuid.uuid4().hex[:8]}@test"]
        command += ["-l", "INFO", "--without-gossip", "--without-mingle", *self.arguments]
        seen = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=env, stdout=output, stderr=output, cwd=self.directory, start_new_session=True
            )
        wait_until(
            lambda: b" ready." in self.log.read_bytes()[seen:] or not self.is_alive,
            seconds=90,
            what=f"the worker to be ready, see {self.log}",
        )
        return self

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, sig: int = signal.SIGTERM) -> None:
        """End the worker, its children with it."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=40)
        self.kill()

    def kill(self) -> None:
        """Kill the worker and its children at one moment, and wait until none of them is left.

        One that is still being taken down may still be connected: the broker would hand it the next message.
        """
        if self.process is None:
            return
        pid = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        self.process.wait(timeout=10)
        wait_until(lambda: not living_in_group(pid), what="the worker's children to be gone")
        self.process = None

    def path(self, name: str = "mark") -> Path:
        """Return a path that no other test uses."""
        return self.directory / f"{name}-{next(self._names)}"

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        with self.app.connection_for_write() as connection:
            yield connection

    def send(self, task: str, *args: Any, **options: Any) -> Sent:
        """Publish a job as an application does, and return its exact bytes."""
        kwargs = options.pop("kwargs", {})
        task_id = options.pop("task_id", str(uuid.uuid4()))
        with self.connection() as connection, connection.channel() as channel:
            producer = RecordingProducer(channel)
            producer.bodies = []
            self.app.send_task(
                task, args, kwargs, task_id=task_id, producer=producer, queue=self.queue, **options
            )
        return Sent(task_id, producer.bodies[-1])

    def send_raw(
        self,
        body: bytes | str,
        *,
        headers: dict[str, Any] | None = None,
        content_type: str = "application/json",
        content_encoding: str = "utf-8",
        **properties: Any,
    ) -> Sent:
        """Publish any message at all."""
        with self.connection() as connection, connection.channel() as channel:
            Producer(channel).publish(
                body,
                headers=headers or {},
                content_type=content_type,
                content_encoding=content_encoding,
                exchange="",
                routing_key=self.queue,
                **properties,
            )
        task_id = (headers or {}).get("id")
        return Sent(
            task_id if isinstance(task_id, str) else "", body if isinstance(body, bytes) else body.encode()
        )

    def records(self) -> list[wire.Record]:
        """Return every record that was ever put on ``jobs.dead``, oldest first; they stay there."""
        with self.redis() as client:
            raw = client.lrange(wire.DEAD_QUEUE, 0, -1)
        return [_record(each) for each in reversed(raw)]

    def records_of(self, task_id: str) -> list[wire.Record]:
        return [record for record in self.records() if record.task_id == task_id]

    def records_with_body(self, body: bytes) -> list[wire.Record]:
        return [record for record in self.records() if record.message and record.message.body == body]

    def record_of(self, sent: Sent, *, seconds: float = 60) -> wire.Record:
        """Wait for the record of a job, see that it stays the only one, and that the worker goes on."""

        def found() -> list[wire.Record]:
            return self.records_of(sent.task_id) if sent.task_id else self.records_with_body(sent.body)

        wait_until(found, seconds=seconds, what=f"a record of {sent} (see {self.log})")
        self.run_fence()
        assert len(found()) == 1, found()
        return found()[0]

    def state_of(self, sent: Sent) -> str:
        """Return the state of a job in the result backend."""
        with self.redis() as client:
            return str(json.loads(client.get(f"celery-task-meta-{sent.task_id}"))["status"])

    def run_fence(self, *, seconds: float = 60) -> None:
        """See that the worker is the same, still runs jobs, and holds no message back."""
        before = self.process.pid if self.process is not None else 0
        path = self.path("fence")
        self.send("shop.mark", str(path), "fence")
        wait_until(path.exists, seconds=seconds, what=f"the fence job (see {self.log})")
        wait_until(self.is_drained, seconds=seconds, what=f"the queue to be drained (see {self.log})")
        assert self.is_alive
        assert self.process is not None
        assert self.process.pid == before

    def is_drained(self) -> bool:
        with self.redis() as client:
            return not client.llen(self.queue) and not client.hlen("unacked")

    @contextlib.contextmanager
    def redis(self) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(self.broker_url, socket_timeout=10) as client:
            yield client

    def lines(self, path: Path) -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_line(self, path: Path, *, count: int = 1, seconds: float = 60) -> None:
        wait_until(lambda: len(self.lines(path)) >= count, seconds=seconds, what=f"{path} ({self.log})")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Give the worker a control command until it answers, and return the answer.

        It says that it is ready before it hears what is said to all workers.
        """
        replies: list[dict[str, Any]] = []

        def has_answered() -> list[dict[str, Any]]:
            replies[:] = (
                self.app.control.broadcast(command, arguments=arguments, reply=True, timeout=5, limit=1) or []
            )
            return replies

        wait_until(has_answered, seconds=60, what=f"an answer to {command} ({self.log})")
        ((answer,),) = (reply.values() for reply in replies)
        return answer

    def revoke(self, task_id: str) -> None:
        """Have the worker discard a job that comes later."""
        assert "ok" in self.ask("revoke", task_id=task_id)

    def wait_until_it_tells_of(self, *jobs: Sent) -> None:
        """Wait until a batch of the worker says that these jobs run.

        A child has begun a job before its parent knows of it, and a soft shutdown in between does not wait for it.
        """
        wanted = {job.task_id for job in jobs}

        def told() -> bool:
            with self.redis() as client:
                batches = recorded.batches_on(client)
            return any(wanted <= {job.task_id for job in batch.running} for batch in batches)

        wait_until(told, what=f"the worker to tell of its jobs ({self.log})")

    def restore_unacknowledged(self) -> None:
        """Let kombu give back what dead workers had fetched, as it does after the visibility timeout."""
        now = {"visibility_timeout": -1}
        with self.redis() as client:
            # One that was killed while it gave back what others left holds this for five minutes.
            client.delete("unacked_mutex")
        with (
            Connection(self.broker_url, transport_options=now) as connection,
            connection.channel() as channel,
        ):
            channel.qos.restore_visible(num=100, interval=1)


class Fleet:
    """Workers by pool, started when first asked for, each with a database of Redis of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: list[RedisServer] = []
        self._workers: dict[tuple[str, bool], Worker] = {}
        self._databases = itertools.count()
        self._names = itertools.count()

    def database_url(self) -> str:
        """Return a database that nothing else uses; a server has sixteen of them."""
        number = next(self._databases) % 16
        if number == 0:
            self._servers.append(RedisServer().start())
        return f"redis://127.0.0.1:{self._servers[-1].port}/{number}"

    def worker(self, pool: str, *, dead_backend: bool = False) -> Worker:
        """Return the pool's worker; start another when a test ended the last one."""
        key = (pool, dead_backend)
        worker = self._workers.get(key)
        if worker is None or not worker.is_alive:
            url = self.database_url()
            worker = Worker(
                pool=pool,
                broker_url=url,
                backend=DEAD_BACKEND if dead_backend else url,
                directory=self._directory / f"{pool}-{next(self._names)}",
            )
            self._workers[key] = worker
            worker.start()
        return worker

    def own(self, pool: str, **options: Any) -> Worker:
        """Return a worker of the test's own, not started."""
        options.setdefault("broker_url", self.database_url())
        return Worker(pool=pool, directory=self._directory / f"{pool}-own-{next(self._names)}", **options)

    def stop(self) -> None:
        """Kill the workers: nobody looks at how they end."""
        for worker in self._workers.values():
            worker.kill()
        for server in self._servers:
            server.remove()
