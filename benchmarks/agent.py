"""What the agent costs a worker: jobs a second with it, against the same worker without it.

With it means captured and recorded: each attempt counted and told on ``jobs.runs``. Beside it stand Celery's
own events (``-E``), with which other consoles are fed.
Prefork, two processes, Redis. Rounds alternate and the figure is the median of their ratios, so that
whatever else the machine does falls on both sides.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from kombu import Connection

from tests.servers import RedisServer

ROOT = Path(__file__).resolve().parents[1]
QUEUE = "bench"
FILLED = "bench.filled"
TARGETS = {"bench.succeed": 0.97, "bench.fail": 0.75}
BARE, AGENT, EVENTS = "bare", "agent", "events"
KINDS = (BARE, AGENT, EVENTS)

app = Celery("bench", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=4,
)
if os.environ.get("BENCH_AGENT"):
    from jobs.agent import attach

    attach(app)


@app.task(name="bench.succeed")
def succeed(number: int) -> None:
    """Do nothing."""


@app.task(name="bench.fail")
def fail(number: int) -> None:
    """Fail, as a job does whose mail relay is down."""
    raise ConnectionError(f"mail relay refused {number}")


class BenchWorker:
    """One worker on a database of its own, alive for all rounds: starting one costs more than a round."""

    def __init__(self, server: RedisServer, directory: Path, *, kind: str) -> None:
        self.url = f"redis://127.0.0.1:{server.port}/{KINDS.index(kind)}"
        self.kind = kind
        self.client = redis.Redis.from_url(self.url)
        env = {**os.environ, "BROKER_URL": self.url, "PYTHONPATH": str(ROOT)}
        env.pop("DJANGO_SETTINGS_MODULE", None)
        if kind == AGENT:
            env.update(BENCH_AGENT="1", JOBS_SPOOL_DIRECTORY=str(directory / "spool"))
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "benchmarks.agent",
            "worker",
            "-P",
            "prefork",
            "-c",
            "2",
        ]
        command += [
            "-Q",
            QUEUE,
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "-l",
            "CRITICAL",
        ]
        if kind == EVENTS:
            command.append("-E")
        log = directory / f"worker-{kind}.log"
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=ROOT)

    def rate(self, task: str, *, count: int) -> float:
        """Return jobs a second of one round: from a queue that is filled at once until it is empty."""
        self._fill(task, count)
        begun = time.perf_counter()
        self.client.rename(FILLED, QUEUE)
        # The agent's round lasts until the last death is captured.
        dead = count if self.kind == AGENT and task == "bench.fail" else 0
        self._wait_until_done(dead)
        took = time.perf_counter() - begun
        # As long as there is a console, no longer than this.
        self.client.delete("jobs.dead", "jobs.runs")
        return count / took

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)
        self.client.close()

    def _fill(self, task: str, count: int) -> None:
        # Prepared once by kombu, the same for every round and both workers, but for the ids.
        sending = Celery("bench", broker=self.url, set_as_current=False)
        with Connection(self.url) as connection, connection.channel() as channel:
            producer = sending.amqp.Producer(channel)
            for number in range(count):
                headers = {"jobs-publication": uuid.uuid4().hex, "jobs-published-at": time.time()}
                sending.send_task(task, (number,), queue=FILLED, producer=producer, headers=headers)
        sending.close()

    def _wait_until_done(self, dead: int) -> None:
        deadline = time.monotonic() + 300
        while self.client.llen(QUEUE) or self.client.hlen("unacked") or self.client.llen("jobs.dead") != dead:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.url}: {self.client.llen('jobs.dead')} of {dead} captured")
            time.sleep(0.01)


def run(quick: bool) -> list[dict[str, Any]]:
    """Return one row a task: both rates, their median ratio and its target; and one of Celery's events."""
    rounds, count = (5, 1_500) if quick else (9, 3_000)
    rows: list[dict[str, Any]] = []
    server = RedisServer().start()
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as directory:
        workers = [BenchWorker(server, Path(directory), kind=kind) for kind in KINDS]
        try:
            for worker in workers:
                worker.rate("bench.succeed", count=200)
            for task, target in TARGETS.items():
                measured = [_measure(workers, task, count, turn=number) for number in range(rounds)]
                name = f"{task.removeprefix('bench.')}, prefork 2, Redis"
                rows.append(_row(f"agent: {name}", measured, AGENT, target=target))
                rows.append(
                    _row(f"Celery's events (-E): {name}", measured, EVENTS, target="beside it", is_met=True)
                )
        finally:
            for worker in workers:
                worker.stop()
            server.remove()
    return rows


def _measure(workers: list[BenchWorker], task: str, count: int, *, turn: int) -> dict[str, float]:
    """Return the rate of each kind, measured one right after the other, each first in turn."""
    first = turn % len(workers)
    return {worker.kind: worker.rate(task, count=count) for worker in workers[first:] + workers[:first]}


def _row(name: str, measured: list[dict[str, float]], kind: str, **verdict: Any) -> dict[str, Any]:
    return {
        "name": name,
        "ours": statistics.median(each[kind] for each in measured),
        "peer": statistics.median(each[BARE] for each in measured),
        "ratio": statistics.median(each[kind] / each[BARE] for each in measured),
        "unit": "jobs/s",
        **verdict,
    }


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(row)
