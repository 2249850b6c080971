"""The other side of the broker for tests of operations: what lies in a queue, and what a worker reports."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from kombu import Connection

from jobs import leases
from jobs.agent.wire import Record, WireError, WireMessage
from jobs.broker import connect
from jobs.collector.storing import store
from jobs.core.words import OperationState, Reason
from jobs.models import Operation
from jobs.operations.runner import Runner
from tests.servers import RedisServer


@dataclass(frozen=True, slots=True)
class Queued:
    """A message in a Redis list, as a worker would receive it."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]

    @property
    def content(self) -> Any:
        return json.loads(self.body)


def queued(server: RedisServer, queue: str = "critical") -> list[Queued]:
    """Return what waits in a queue's list, oldest first, without taking it."""
    with server.client() as client:
        items = [json.loads(item) for item in reversed(client.lrange(queue, 0, -1))]
    return [
        Queued(
            base64.b64decode(item["body"]),
            item["content-type"],
            item["content-encoding"],
            item["headers"],
            item["properties"],
        )
        for item in items
    ]


def take_all(server: RedisServer, queue: str = "critical") -> list[Queued]:
    """Take what waits in a queue."""
    found = queued(server, queue)
    with server.client() as client:
        client.ltrim(queue, len(found), -1)
    return found


def report_done(message: Queued, *, now: datetime) -> None:
    """Let the job end well, as its worker's agent reports it."""
    store([_record(message, "outcome", "done", now)], now=now)


def report_death(message: Queued, *, now: datetime) -> None:
    """Let the job die again."""
    store([_record(message, "death", Reason.FAILED, now)], now=now)


def _record(message: Queued, kind: str, reason: str, now: datetime) -> Record:
    headers = message.headers
    return Record(
        kind=kind,
        reason=reason,
        publication_id=headers["jobs-publication"],
        attempt=0,
        at=now.timestamp(),
        task=headers.get("task", ""),
        task_id=headers.get("id", ""),
        worker="celery@web-1",
        boot_id="boot",
        message=WireMessage(
            message.body,
            message.content_type,
            message.content_encoding,
            headers,
            message.properties,
            "",
            "critical",
            "critical",
        )
        if kind == "death"
        else None,
        error=WireError("ValueError", "again", "") if kind == "death" else None,
        replay_of=headers["jobs-replay-of"],
        replay_item=headers["jobs-replay-item"],
    )


class Clock:
    """A time that only a test moves."""

    def __init__(self, start: datetime) -> None:
        self.now = start

    def advance(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now


class Carrier:
    """Carries operations out as runops does, at the test's time."""

    def __init__(self, clock: Clock, connection: Connection | None = None) -> None:
        self.clock = clock
        self.runner = Runner(connection or connect())
        self.lease = leases.acquire(duty="operations", holder="runops-1", seconds=60)
        assert self.lease is not None

    def once(self) -> float | None:
        return self.runner.run_once(now=self.clock.now, lease=self.lease)

    def until(self, condition: Callable[[], object], *, rounds: int = 500, step_seconds: float = 0.1) -> None:
        """Run rounds, moving the clock on, until the condition holds."""
        for _ in range(rounds):
            if condition():
                return
            self.once()
            self.clock.advance(step_seconds)
        raise AssertionError(f"not reached in {rounds} rounds")

    def until_ended(self, operation: Operation, *, work: Callable[[], object] = lambda: None) -> Operation:
        """Run rounds until the operation has ended or stopped; ``work`` is what workers do in between."""

        def has_ended() -> bool:
            work()
            operation.refresh_from_db()
            return operation.state in {
                OperationState.FINISHED,
                OperationState.STOPPED,
                OperationState.CANCELLED,
            }

        self.until(has_ended)
        return operation
