"""Who consumes which queues, as far as workers told lately: with the agent by their batches, else when they were asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from jobs.metrics.workers import BootNow, boots_now, lost_after
from jobs.models import Worker

# A worker is asked each 10 s.
ASKED_WITHIN = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Consumer:
    """A worker that is there. Messages in its memory count by queue; nobody knows them of one that does not report."""

    hostname: str
    boot_id: str
    queues: frozenset[str]
    told_at: datetime
    reports: bool
    # Waiting for their time.
    held: dict[str, int] = field(default_factory=dict)
    # Delivered and not acknowledged, those that are held among them.
    unacknowledged: dict[str, int] = field(default_factory=dict)


def consumers_now(*, boots: Iterable[BootNow] | None = None, now: datetime) -> list[Consumer]:
    """Return the workers that are there now. Two queries; ``boots`` that were read already spare one."""
    found: dict[str, Consumer] = {}
    left: dict[str, datetime] = {}
    for boot in boots_now(now=now) if boots is None else boots:
        if not boot.is_online or now - boot.last_seen_at > lost_after(boot.pool):
            left.setdefault(boot.hostname, boot.goodbye_at or boot.last_seen_at)
            continue
        found.setdefault(
            boot.hostname,
            Consumer(
                hostname=boot.hostname,
                boot_id=boot.boot_id,
                queues=frozenset(boot.queues),
                told_at=boot.last_seen_at,
                reports=True,
                held=boot.held,
                unacknowledged=taken_by(boot),
            ),
        )
    asked = Worker.objects.filter(seen_at__gte=now - ASKED_WITHIN).values_list(
        "hostname", "boot_id", "queues", "seen_at"
    )
    for hostname, boot_id, queues, seen_at in asked:
        # One that said goodbye after it was asked is not there any more.
        if hostname not in found and seen_at > left.get(hostname, seen_at - ASKED_WITHIN):
            found[hostname] = Consumer(hostname, boot_id, frozenset(queues), seen_at, reports=False)
    return sorted(found.values(), key=lambda consumer: consumer.hostname)


def taken_by(boot: BootNow) -> dict[str, int]:
    """Count by queue what a worker had taken and not acknowledged when it reported last, what it held among it."""
    taken = dict(boot.held)
    late = [str(job.get("queue", "")) for job in boot.running if not job.get("is_acknowledged")]
    for queue, number in (*boot.reserved.items(), *((queue, 1) for queue in late)):
        taken[queue] = taken.get(queue, 0) + number
    return taken


def of_queue(consumers: Iterable[Consumer], queue: str) -> list[Consumer]:
    """Return those which consume a queue."""
    return [consumer for consumer in consumers if queue in consumer.queues]


def held_of(consumers: Iterable[Consumer], queue: str) -> int | None:
    """Count what waits for its time in the memory of workers; None when one of them does not report."""
    return _sum(consumers, queue, "held")


def unacknowledged_of(consumers: Iterable[Consumer], queue: str) -> int | None:
    """Count what workers have of a queue, by their own word; None when one of them does not report."""
    return _sum(consumers, queue, "unacknowledged")


def _sum(consumers: Iterable[Consumer], queue: str, name: str) -> int | None:
    total = 0
    for consumer in consumers:
        if not consumer.reports and queue in consumer.queues:
            return None
        # One that does not consume it any more may still have some.
        total += getattr(consumer, name).get(queue, 0)
    return total
