"""What the agent costs a worker: jobs a second with it, against the same worker without it.

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

    def __init__(self, server: RedisServer, directory: Path, *, with_agent: bool) -> None:
        self.url = f"redis://127.0.0.1:{server.port}/{1 if with_agent else 2}"
        self.with_agent = with_agent
        self.client = redis.Redis.from_url(self.url)
        env = {**os.environ, "BROKER_URL": self.url, "PYTHONPATH": str(ROOT)}
        env.pop("DJANGO_SETTINGS_MODULE", None)
        if with_agent:
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
        log = directory / f"worker-{'agent' if with_agent else 'bare'}.log"
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output, cwd=ROOT)

    def rate(self, task: str, *, count: int) -> float:
        """Return jobs a second of one round: from a queue that is filled at once until it is empty."""
        self._fill(task, count)
        begun = time.perf_counter()
        self.client.rename(FILLED, QUEUE)
        # The agent's round lasts until the last death is captured.
        dead = count if self.with_agent and task == "bench.fail" else 0
        self._wait_until_done(dead)
        took = time.perf_counter() - begun
        self.client.delete("jobs.dead")
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
                headers = {"jobs-publication": uuid.uuid4().hex}
                sending.send_task(task, (number,), queue=FILLED, producer=producer, headers=headers)
        sending.close()

    def _wait_until_done(self, dead: int) -> None:
        deadline = time.monotonic() + 300
        while self.client.llen(QUEUE) or self.client.hlen("unacked") or self.client.llen("jobs.dead") != dead:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.url}: {self.client.llen('jobs.dead')} of {dead} captured")
            time.sleep(0.01)


def run(quick: bool) -> list[dict[str, Any]]:
    """Return one row a task: both rates, their median ratio and its target."""
    rounds, count = (5, 1_500) if quick else (9, 3_000)
    rows: list[dict[str, Any]] = []
    server = RedisServer().start()
    with tempfile.TemporaryDirectory(prefix="bench-agent-") as directory:
        workers = [BenchWorker(server, Path(directory), with_agent=each) for each in (True, False)]
        try:
            for worker in workers:
                worker.rate("bench.succeed", count=200)
            for task, target in TARGETS.items():
                pairs = [
                    _measure_pair(workers, task, count, reverse=number % 2 == 1) for number in range(rounds)
                ]
                rows.append(
                    {
                        "name": f"agent: {task.removeprefix('bench.')}, prefork 2, Redis",
                        "ours": statistics.median(ours for ours, _ in pairs),
                        "peer": statistics.median(peer for _, peer in pairs),
                        "ratio": statistics.median(ours / peer for ours, peer in pairs),
                        "target": target,
                        "unit": "jobs/s",
                    }
                )
        finally:
            for worker in workers:
                worker.stop()
            server.remove()
    return rows


def _measure_pair(workers: list[BenchWorker], task: str, count: int, *, reverse: bool) -> tuple[float, float]:
    """Return (with agent, without), measured one right after the other, each first every other time."""
    measured = {
        worker.with_agent: worker.rate(task, count=count) for worker in workers[:: -1 if reverse else 1]
    }
    return measured[True], measured[False]


if __name__ == "__main__":
    for row in run(quick="--quick" in sys.argv):
        print(row)
