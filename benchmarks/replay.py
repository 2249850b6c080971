"""How fast letters are replayed, against a loop of ``apply_async`` on the same broker.

Ours is the whole way: the operation's items, the claims, the messages and their marks, in SQLite, until
the last letter is on the broker. Theirs sends as many fresh jobs and stores nothing.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import uuid
from datetime import timedelta
from typing import Any

import psutil
import redis
from celery import Celery
from django.db import transaction
from django.utils import timezone

from benchmarks.place import Place
from jobs import leases
from jobs.audit import Actor
from jobs.broker import connect
from jobs.core.words import ItemState, LetterState, Reason
from jobs.models import DeadLetter, FailureGroup, LetterMessage, OperationItem
from jobs.operations import Selection, start_replay
from jobs.operations.runner import Runner
from jobs.runops import SWITCH_SECONDS

TARGET_RATIO = 8.0
# Growth of the process from the first tenth of the replay to its end, in MB.
TARGET_GROWTH_MB = 30.0
QUEUE = "replayed"
TASK = "shop.tasks.send_receipt"


def run(quick: bool) -> list[dict[str, Any]]:
    """Measure in a place of its own; return the figures with their targets."""
    letters = 10_000 if quick else 100_000
    with Place() as place:
        write_letters(letters)
        peer = Loop(place.broker_url)
        ours, growth_mb = _replay(letters, place.redis, peer)
    rate = letters / ours
    return [
        {
            "name": f"replay of {letters:,} letters, against a loop of apply_async",
            "ours": rate,
            "peer": peer.per_second,
            "ratio": rate / peer.per_second,
            "target": TARGET_RATIO,
            "unit": "messages/s",
        },
        {
            "name": f"growth of the process over a replay of {letters:,} letters",
            "ours": growth_mb,
            "peer": None,
            "ratio": None,
            "target": f"<= {TARGET_GROWTH_MB:g} MB",
            "unit": "MB",
            "is_met": growth_mb <= TARGET_GROWTH_MB,
        },
    ]


def write_letters(count: int) -> None:
    """Store letters as a mail relay that is down leaves them: one task, small JSON bodies."""
    now = timezone.now() - timedelta(minutes=5)
    group = FailureGroup.objects.create(
        fingerprint=uuid.uuid4().hex,
        task=TASK,
        title="ConnectionRefusedError",
        first_seen_at=now,
        last_seen_at=now,
    )
    callbacks = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    for start in range(0, count, 5_000):
        letters: list[DeadLetter] = []
        messages: list[LetterMessage] = []
        for number in range(start, min(start + 5_000, count)):
            task_id = str(uuid.uuid4())
            kwargs = {"order_id": number, "email": f"customer-{number}@example.org", "total": "48.20"}
            letters.append(
                DeadLetter(
                    task=TASK,
                    task_id=task_id,
                    root_id=task_id,
                    queue=QUEUE,
                    routing_key=QUEUE,
                    content_type="application/json",
                    content_encoding="utf-8",
                    priority=0,
                    state=LetterState.DEAD,
                    state_changed_at=now,
                    reason=Reason.RETRIES_EXHAUSTED,
                    group=group,
                    error_type="ConnectionRefusedError",
                    error="[Errno 111] Connection refused",
                    worker="celery@web-1",
                    first_died_at=now,
                    died_at=now,
                    arguments_preview=f"order_id={number}",
                    arguments_text=f"\norder_id={number}\n",
                )
            )
            messages.append(
                LetterMessage(
                    letter=letters[-1],
                    body=json.dumps([[], kwargs, callbacks]).encode(),
                    headers={
                        "lang": "py",
                        "task": TASK,
                        "id": task_id,
                        "shadow": None,
                        "eta": None,
                        "expires": None,
                        "group": None,
                        "group_index": None,
                        "retries": 5,
                        "timelimit": [None, None],
                        "root_id": task_id,
                        "parent_id": None,
                        "argsrepr": "()",
                        "kwargsrepr": repr(kwargs),
                        "origin": "gen7@web-1",
                        "ignore_result": False,
                        "replaced_task_nesting": 0,
                        "stamped_headers": None,
                        "stamps": {},
                        "jobs-publication": uuid.uuid4().hex,
                        "jobs-published-at": 1.0,
                    },
                    properties={
                        "correlation_id": task_id,
                        "reply_to": str(uuid.uuid4()),
                        "delivery_mode": 2,
                        "delivery_info": {"exchange": "", "routing_key": QUEUE},
                        "priority": 0,
                        "body_encoding": "base64",
                        "delivery_tag": str(uuid.uuid4()),
                    },
                )
            )
        with transaction.atomic():
            DeadLetter.objects.bulk_create(letters, batch_size=1_000)
            LetterMessage.objects.bulk_create(messages, batch_size=1_000)


class Loop:
    """Sends jobs one by one, as a script would, and measures itself."""

    def __init__(self, broker_url: str) -> None:
        app = Celery("peer", broker=broker_url, set_as_current=False)

        @app.task(name=TASK)
        def send(**_: Any) -> None: ...

        self._send = send
        self.count = 0
        self.seconds = 0.0
        send.apply_async(kwargs={"order_id": 0}, queue="looped")

    def run(self, count: int) -> None:
        """Send so many."""
        started = time.perf_counter()
        for number in range(count):
            self._send.apply_async(
                kwargs={"order_id": number, "email": f"customer-{number}@example.org", "total": "48.20"},
                queue="looped",
            )
        self.seconds += time.perf_counter() - started
        self.count += count

    @property
    def per_second(self) -> float:
        """Jobs a second so far."""
        return self.count / self.seconds


def _replay(count: int, redis_client: redis.Redis, peer: Loop) -> tuple[float, float]:
    """Replay them all; return the seconds it took and the growth of this process in MB.

    The peer runs a slice after each tenth, so that whatever else the machine does falls on both.
    """
    process = psutil.Process()
    broker = connect()
    # As the process runops does.
    sys.setswitchinterval(SWITCH_SECONDS)
    lease = leases.acquire(duty="operations", holder="benchmark", seconds=3600)
    assert lease is not None
    peer.run(count // 100)
    started = time.perf_counter()
    now = timezone.now()
    operation = start_replay(
        selection=Selection.of_query("", now=now), actor=Actor(name="benchmark"), why="to measure", now=now
    )
    runner = Runner(broker)
    # This one too; the peer's slices run without it, as a script would.
    gc.freeze()
    first_mb = highest_mb = 0.0
    seconds = 0.0
    sent = slices = 0
    while sent < count:
        runner.run_once(now=timezone.now(), lease=lease)
        sent = redis_client.llen(QUEUE)
        if sent * 10 // count > slices:
            slices += 1
            seconds += time.perf_counter() - started
            gc.unfreeze()
            peer.run(count // 100)
            gc.freeze()
            size_mb = process.memory_info().rss / 1e6
            first_mb = first_mb or size_mb
            highest_mb = max(highest_mb, size_mb)
            started = time.perf_counter()
    runner.run_once(now=timezone.now(), lease=lease)
    seconds += time.perf_counter() - started
    marked = OperationItem.objects.filter(operation=operation, state=ItemState.SENT).count()
    assert (sent, marked) == (count, count), (
        f"{sent} of {count} letters are on the broker, {marked} are marked"
    )
    broker.release()
    return seconds, max(0.0, highest_mb - first_mb)
