"""Keeps workers from consuming paused queues, and has them go on afterwards.

Celery's commands ``cancel_consumer`` and ``add_consumer`` reach whoever is connected at that moment, and a worker
that starts later consumes all of its queues. So each round compares what workers report with what is paused.
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kombu import Connection

from jobs.broker import control
from jobs.models import QueuePause, StoppedConsumer
from jobs.queues.consumers import Consumer, consumers_now, of_queue

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0
# A worker that was told is not told again before it can have reported.
_REPORTS_WITHIN = timedelta(seconds=4)
# Commands of one round at most: a worker that does not answer costs ANSWER_SECONDS.
_MOST_COMMANDS = 10
_NEVER = datetime.min.replace(tzinfo=UTC)


def enforce(connection: Connection, *, now: datetime) -> int:
    """Tell workers that consume a paused queue to stop, and those that were stopped to go on; return how many.

    Raises:
        BrokerUnavailable: when workers cannot be told; trying again is safe.
    """
    paused = set(QueuePause.objects.values_list("queue", flat=True))
    stopped: dict[str, dict[str, StoppedConsumer]] = defaultdict(dict)
    for row in StoppedConsumer.objects.all():
        stopped[row.queue][row.hostname] = row
    if not paused and not stopped:
        return 0
    consumers = consumers_now(now=now)
    commands: list[_Command] = []
    for queue in paused:
        rows = stopped[queue]
        still = [
            consumer
            for consumer in of_queue(consumers, queue)
            if _is_to_be_told(rows.get(consumer.hostname), consumer, now=now)
        ]
        if still:
            told_at = min(rows[each.hostname].told_at if each.hostname in rows else _NEVER for each in still)
            tell = functools.partial(stop, connection, queue, still, now=now)
            commands.append(_Command(told_at, queue, len(still), tell))
    for queue in stopped.keys() - paused:
        waiting = _waiting(stopped[queue].values(), consumers)
        if waiting:
            told_at = min(row.resumed_at or _NEVER for row in waiting)
            tell = functools.partial(go_on, connection, queue, waiting, now=now)
            commands.append(_Command(told_at, queue, len(waiting), tell))
    # Who was told longest ago comes first: workers that never answer must not keep the others from being told.
    commands.sort(key=lambda command: (command.told_at, command.queue))
    for command in commands[:_MOST_COMMANDS]:
        command.tell()
    return sum(command.workers for command in commands[:_MOST_COMMANDS])


@dataclass(frozen=True, slots=True)
class _Command:
    """What is to be said to the workers of a queue, and when that was said last."""

    told_at: datetime
    queue: str
    workers: int
    tell: Callable[[], list[str]]


def _is_to_be_told(row: StoppedConsumer | None, consumer: Consumer, *, now: datetime) -> bool:
    if row is None or (row.boot_id and consumer.boot_id and row.boot_id != consumer.boot_id):
        return True
    return now - row.told_at >= _REPORTS_WITHIN


def stop(connection: Connection, queue: str, consumers: Collection[Consumer], *, now: datetime) -> list[str]:
    """Tell workers not to consume a queue; remember them, then tell them; return who answered."""
    StoppedConsumer.objects.bulk_create(
        [
            StoppedConsumer(
                queue=queue, hostname=each.hostname, boot_id=each.boot_id, told_at=now, resumed_at=None
            )
            for each in consumers
        ],
        update_conflicts=True,
        unique_fields=["queue", "hostname"],
        update_fields=["boot_id", "told_at", "resumed_at"],
    )
    answered = _tell(connection, "cancel_consumer", queue, [each.hostname for each in consumers])
    logger.info("%s workers stopped consuming from the queue %s", len(answered), queue[:80])
    return answered


def go_on(connection: Connection, queue: str, rows: Sequence[StoppedConsumer], *, now: datetime) -> list[str]:
    """Tell workers to consume a queue again; return who answered. Each knows the queue by its own configuration."""
    answered = _tell(connection, "add_consumer", queue, [row.hostname for row in rows])
    StoppedConsumer.objects.filter(pk__in=[row.pk for row in rows]).update(resumed_at=now)
    return answered


def _waiting(rows: Iterable[StoppedConsumer], consumers: Iterable[Consumer]) -> list[StoppedConsumer]:
    """Return those that do not consume the queue again; forget the others, and who is gone."""
    online = {consumer.hostname: consumer for consumer in consumers}
    waiting: list[StoppedConsumer] = []
    over: list[StoppedConsumer] = []
    for row in rows:
        consumer = online.get(row.hostname)
        # Another life of the worker began with all of its queues.
        is_another = consumer is None or bool(
            row.boot_id and consumer.boot_id and row.boot_id != consumer.boot_id
        )
        has_resumed = (
            consumer is not None
            and row.queue in consumer.queues
            and row.resumed_at is not None
            and consumer.told_at > row.resumed_at
        )
        (over if is_another or has_resumed else waiting).append(row)
    StoppedConsumer.objects.filter(pk__in=[row.pk for row in over]).delete()
    return waiting


def _tell(connection: Connection, command: str, queue: str, hostnames: Sequence[str]) -> list[str]:
    answers = control.command(
        connection,
        command,
        arguments={"queue": queue},
        hostnames=hostnames,
        timeout_seconds=ANSWER_SECONDS,
    )
    return [answer.hostname for answer in answers if not answer.error]
