"""The collector of runs: batches of 500 attempts from a real Redis into SQLite and PostgreSQL.

Forty batches a second is what a fleet of 20,000 attempts a second sends: 100 tasks, each on any of 10 queues, so
that each second touches 1,111 rollups a level, which is far more than a real fleet's.
Peer: the bare insert of the very attempts, already made, in transactions of the same size, without any count.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Any

from django.db import transaction

from benchmarks.collecting import envelope, leave_out_what_is_here, measured
from jobs.agent import batches
from jobs.agent.batches import Batch
from jobs.agent.wire import RUNS_QUEUE
from jobs.broker import connect
from jobs.broker.inbox import Inbox
from jobs.metrics.collecting import LIMIT, RunsCollector
from jobs.models import Rollup, Run
from tests.metrics.batches import NOW, make_batch, make_run
from tests.servers import RedisServer

TARGET_PER_SECOND = 20_000
RECORDS = 500
WORKERS = 40
TASKS, QUEUES = 100, 10


def run(quick: bool) -> list[dict[str, Any]]:
    """Return one row a database: attempts a second, the bare insert's, and their ratio."""
    made = [batch(number) for number in range(WORKERS * (4 if quick else 20))]
    return measured(
        "recording",
        unit="attempts/s",
        target_per_second=TARGET_PER_SECOND,
        ours=lambda redis: collected_per_second(redis, made),
        peer=inserted_per_second,
    )


def collected_per_second(redis: RedisServer, made: list[Batch]) -> float:
    """Fill ``jobs.runs``, then time the collector until it is empty."""
    with redis.client() as client:
        client.flushall()
        for one in made:
            body = batches.encode(one)
            client.lpush(
                RUNS_QUEUE,
                envelope(body, queue=RUNS_QUEUE, content_type=batches.CONTENT_TYPE, encoding="binary"),
            )
    collector = RunsCollector(Inbox(connect(), RUNS_QUEUE))
    collector.collect(limit=1, wait_seconds=0, now=NOW)
    leave_out_what_is_here()
    started = time.perf_counter()
    # As much at a time as comes in a second.
    while collector.collect(limit=min(WORKERS, LIMIT), wait_seconds=0, now=NOW):
        pass
    seconds = time.perf_counter() - started
    number = sum(len(one.runs) for one in made)
    assert Run.objects.count() == number
    assert sum(Rollup.objects.filter(level="day", scope="all").values_list("done", flat=True)) == number
    return (number - RECORDS) / seconds


def inserted_per_second() -> float:
    """Time a bulk insert of the attempts that are there, made anew."""
    rows = list(Run.objects.order_by("pk")[:40_000])
    Run.objects.all().delete()
    for row in rows:
        row.pk = None
    leave_out_what_is_here()
    started = time.perf_counter()
    for start in range(0, len(rows), RECORDS * WORKERS):
        with transaction.atomic():
            Run.objects.bulk_create(rows[start : start + RECORDS * WORKERS])
    return len(rows) / (time.perf_counter() - started)


def batch(number: int) -> Batch:
    """Return the batch of one second of one of WORKERS workers."""
    rng = random.Random(number)
    second, worker = divmod(number, WORKERS)
    at = NOW.timestamp() - 60 + second
    runs = []
    for _ in range(RECORDS):
        latency, runtime = rng.lognormvariate(-3, 1), rng.lognormvariate(-2, 1)
        runs.append(
            make_run(
                task_id=str(uuid.UUID(int=rng.getrandbits(128))),
                publication_id=uuid.UUID(int=rng.getrandbits(128)).hex,
                task=f"shop.tasks.step_{rng.randrange(TASKS)}",
                queue=f"queue-{rng.randrange(QUEUES)}",
                published_at=at - latency - runtime,
                started_at=at - runtime,
                finished_at=at,
                latency=latency,
                runtime=runtime,
            )
        )
    return make_batch(
        runs, boot_id=f"boot-{worker}", hostname=f"celery@pay-{worker}", sequence=second + 1, at=at
    )
