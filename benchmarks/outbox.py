"""How fast the relay publishes what waits, against a loop of ``apply_async`` on the same broker.

Ours is the whole way: claims, messages and marks, in SQLite, until the last row is on the broker and marked.
Theirs sends as many fresh jobs and stores nothing. Once for rows that were collected, and once for rows of
one transaction each whose own process should have sent them: those are guarded one by one.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any

import redis
from celery import Celery
from django.db import transaction
from django.utils import timezone

from benchmarks.place import Place
from benchmarks.replay import Loop
from jobs.broker import connect
from jobs.core.words import OutboxState
from jobs.models import OutboxMessage
from jobs.outbox import OutboxProducer, collecting, commit
from jobs.outbox.relay import relay_batch
from jobs.runops import SWITCH_SECONDS

TARGET_RATIO = 5.0
QUEUE = "relayed"


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure in a place of its own; return the figures with their targets."""
    count = 10_000 if quick else 100_000
    with Place() as place:
        write_rows(place.broker_url, count)
        peer = Loop(place.broker_url)
        rate = count / _relay(count, place.redis, peer)
        rows = [_row(f"relay of {count:,} outbox messages", rate, peer)]
    count //= 10
    with Place() as place:
        write_transactions(place.broker_url, count)
        peer = Loop(place.broker_url)
        rate = count / _relay(count, place.redis, peer)
        rows.append(_row(f"relay of {count:,} transactions whose processes died", rate, peer))
    return rows


def _row(name: str, rate: float, peer: Loop) -> dict[str, Any]:
    return {
        "name": f"{name}, against a loop of apply_async",
        "ours": rate,
        "peer": peer.per_second,
        "ratio": rate / peer.per_second,
        "target": TARGET_RATIO,
        "unit": "messages/s",
    }


def shop(broker_url: str) -> Any:
    """Return a task that nobody runs."""
    app = Celery("outbox", broker=broker_url, set_as_current=False)
    app.conf.task_ignore_result = True

    @app.task(name="shop.tasks.send_receipt", shared=False)
    def send(**_: Any) -> None: ...

    return send


def enqueue(task: Any, number: int, **options: Any) -> None:
    """Send the job that the peer sends."""
    task.apply_async(
        kwargs={"order_id": number, "email": f"customer-{number}@example.org", "total": "48.20"},
        queue=QUEUE,
        **options,
    )


def write_rows(broker_url: str, count: int) -> None:
    """Fill the outbox with rows that are due."""
    task = shop(broker_url)
    for start in range(0, count, 10_000):
        with transaction.atomic(), collecting():
            for number in range(start, min(start + 10_000, count)):
                enqueue(task, number, producer=OutboxProducer())


def write_transactions(broker_url: str, count: int) -> None:
    """Fill the outbox with rows that their processes left, all due."""
    task = shop(broker_url)
    leave, commit._leave = commit._leave, lambda *_, **__: None
    try:
        with transaction.atomic():
            for number in range(count):
                # As if each had been a transaction: a callback that has run makes the next a new departure.
                enqueue(task, number, producer=OutboxProducer())
                transaction.get_connection().run_on_commit.pop()[1]()
    finally:
        commit._leave = leave
    OutboxMessage.objects.update(available_at=timezone.now() - timedelta(seconds=1))


def _relay(count: int, redis_client: redis.Redis, peer: Loop) -> float:
    """Relay them all; return the seconds it took. The peer runs a slice after each tenth."""
    broker = connect()
    sys.setswitchinterval(SWITCH_SECONDS)
    peer.run(count // 100)
    seconds = 0.0
    sent = slices = 0
    while sent < count:
        started = time.perf_counter()
        relayed = relay_batch(broker, now=timezone.now())
        seconds += time.perf_counter() - started
        assert relayed.sent == relayed.total > 0, relayed
        sent += relayed.sent
        if sent * 10 // count > slices:
            slices += 1
            peer.run(count // 100)
    on_broker = redis_client.llen(QUEUE)
    marked = OutboxMessage.objects.filter(state=OutboxState.PUBLISHED).count()
    assert (on_broker, marked) == (count, count), f"{on_broker} on the broker, {marked} marked, of {count}"
    broker.release()
    return seconds
