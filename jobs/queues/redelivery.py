"""Messages that workers had taken and not acknowledged when they went: how many, and when the broker has them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from jobs import conf
from jobs.broker.queues import on_redis
from jobs.metrics import workers
from jobs.metrics.workers import BootNow
from jobs.queues.consumers import Consumer, taken_by, unacknowledged_of
from jobs.queues.reading import QueueNow

# kombu's, where nothing is set.
VISIBILITY_SECONDS = 3600.0
_AMQP = frozenset({"amqp", "amqps", "pyamqp"})


@dataclass(frozen=True, slots=True)
class Redelivery:
    """When what a lost worker had taken is handed out again. ``by`` is set on Redis: the last of it is back then.

    ``is_at_once`` on RabbitMQ, which sees that the connection is gone. Of other brokers neither is known.
    """

    by: datetime | None = None
    is_at_once: bool = False


def of_lost(boot: BootNow) -> Redelivery:
    """Return when the broker has the messages of a lost worker again."""
    url = conf.current().broker_url
    if on_redis(url):
        return Redelivery(by=boot.last_seen_at + _visibility())
    return Redelivery(is_at_once=url.partition(":")[0].partition("+")[0].lower() in _AMQP)


def left_behind(
    queues: Iterable[QueueNow], boots: Sequence[BootNow], consumers: Sequence[Consumer], *, now: datetime
) -> dict[str, int]:
    """Count by queue the delivered messages that lost workers had, as far as that is known.

    Only where the broker itself counts what is delivered, and keeps it until a visibility timeout is over;
    never more than workers that are there do not account for.
    """
    lost: dict[str, int] = {}
    for boot in boots:
        if boot.state == workers.LOST and boot.last_seen_at + _visibility() > now:
            for name, number in taken_by(boot).items():
                lost[name] = lost.get(name, 0) + number
    found = {}
    for queue in queues:
        known = unacknowledged_of(consumers, queue.queue)
        if queue.is_told_by_workers or queue.is_stale or queue.unacknowledged is None or known is None:
            continue
        number = min(queue.unacknowledged - known, lost.get(queue.queue, 0))
        if number > 0:
            found[queue.queue] = number
    return found


def _visibility() -> timedelta:
    given = conf.current().broker_transport_options.get("visibility_timeout")
    return timedelta(seconds=VISIBILITY_SECONDS if given is None else float(given))
