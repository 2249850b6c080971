"""What operators do to a queue: pause, resume, purge what waits, look at what waits. Audited where it changes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from jobs import audit
from jobs.audit import Actor
from jobs.broker import connect
from jobs.broker.queues import Meter
from jobs.core.cleaning import NAME_LENGTH, clean_line, clean_name
from jobs.core.words import QueueActionKind
from jobs.errors import BrokerUnavailable, QueueRefused
from jobs.models import QueueAction, QueuePause, StoppedConsumer
from jobs.queues import pausing
from jobs.queues.consumers import consumers_now, held_of, of_queue, unacknowledged_of
from jobs.queues.peeking import MOST_LOOKED_AT, Peek, WaitingMessage, read_waiting
from jobs.queues.purging import open_purge
from jobs.queues.reading import DELAYED, is_own

__all__ = ["MOST_LOOKED_AT", "Paused", "Peek", "WaitingMessage", "pause", "peek", "purge", "resume"]

WHY_LENGTH = 2_000
# Somebody waits for the page.
BROKER_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Paused:
    """What a pause or a resume came to at once; what is left is done as soon as the workers are there.

    ``told`` are workers that answered, ``silent`` those that consume the queue and did not. ``held`` counts the
    messages that workers had taken before: they still run. None is not known. ``trouble`` says why nobody was told.
    """

    queue: str
    told: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    held: int | None = None
    trouble: str = ""


def pause(queue: str, *, actor: Actor, why: str, now: datetime) -> Paused:
    """Have workers stop consuming from a queue, those that start later too, until it is resumed; audited.

    What they took before still runs. The pause counts from here on even when no worker can be told now.

    Raises:
        QueueRefused: when it is paused already, or no queue for operators; nothing was changed.
    """
    _check_name(queue, "pause")
    reason = _checked_why(why, "pause")
    try:
        with transaction.atomic():
            QueuePause.objects.create(queue=queue, paused_at=now, actor=str(actor), why=reason)
            audit.record(
                actor=actor,
                action="pause_queue",
                text=f"paused the queue {_short(queue)}",
                why=reason,
                details={"queue": queue},
                now=now,
            )
    except IntegrityError:
        known = QueuePause.objects.filter(queue=queue).first()
        by = f" by {known.actor} since {known.paused_at:%Y-%m-%d %H:%M} UTC" if known is not None else ""
        raise QueueRefused(
            f"Cannot pause the queue {_short(queue)}: it is paused already{by}. Resume it when it is to run again."
        ) from None
    consumers = consumers_now(now=now)
    wanted = of_queue(consumers, queue)
    held = unacknowledged_of(consumers, queue)
    if not wanted:
        return Paused(queue, held=held)
    names = [consumer.hostname for consumer in wanted]
    try:
        with connect(timeout_seconds=BROKER_SECONDS) as connection:
            told = pausing.stop(connection, queue, wanted, now=now)
    except BrokerUnavailable as away:
        return Paused(queue, silent=names, held=held, trouble=str(away))
    return Paused(queue, told=told, silent=[name for name in names if name not in told], held=held)


def resume(queue: str, *, actor: Actor, now: datetime) -> Paused:
    """Have the workers that were stopped consume a queue again; audited.

    Raises:
        QueueRefused: when it is not paused; nothing was changed.
    """
    _check_name(queue, "resume")
    with transaction.atomic():
        deleted, _ = QueuePause.objects.filter(queue=queue).delete()
        if not deleted:
            raise QueueRefused(
                f"Cannot resume the queue {_short(queue)}: it is not paused. Somebody may have resumed it already."
            )
        audit.record(
            actor=actor,
            action="resume_queue",
            text=f"resumed the queue {_short(queue)}",
            details={"queue": queue},
            now=now,
        )
    stopped = list(StoppedConsumer.objects.filter(queue=queue).order_by("hostname"))
    if not stopped:
        return Paused(queue)
    names = [row.hostname for row in stopped]
    try:
        with connect(timeout_seconds=BROKER_SECONDS) as connection:
            told = pausing.go_on(connection, queue, stopped, now=now)
    except BrokerUnavailable as away:
        return Paused(queue, silent=names, trouble=str(away))
    return Paused(queue, told=told, silent=[name for name in names if name not in told])


def purge(queue: str, *, expected: int, actor: Actor, why: str, now: datetime) -> QueueAction:
    """Have runops take up to ``expected`` waiting messages off a queue and keep them as purged letters; audited.

    What comes later stays; so do messages that were delivered already and those that wait for their time in the
    memory of workers: ``unacknowledged`` and ``held_by_workers`` of the action count these.

    Raises:
        QueueRefused: when nothing waits, or a purge of it goes on; nothing was changed.
        BrokerUnavailable: when the queue cannot be counted; nothing was changed.
    """
    _check_name(queue, "purge")
    reason = _checked_why(why, "purge")
    if expected < 1:
        raise QueueRefused(
            f"Cannot purge {expected} messages of the queue {_short(queue)}. Nothing would be done."
        )
    meter = Meter(connect(timeout_seconds=BROKER_SECONDS))
    try:
        measured = meter.measure([queue])[queue]
    finally:
        meter.close()
    if not measured.ready:
        raise QueueRefused(
            f"Cannot purge the queue {_short(queue)}: no message waits on it. {measured.trouble}".strip()
        )
    consumers = consumers_now(now=now)
    unacknowledged = measured.unacknowledged
    values = {
        "expected": min(expected, measured.ready),
        "sizes": _limited(measured.sizes or (measured.ready,), expected),
        "unacknowledged": unacknowledged_of(consumers, queue) if unacknowledged is None else unacknowledged,
        "held_by_workers": held_of(consumers, queue),
    }
    try:
        return _confirm_purge(queue, values, actor=actor, why=reason, now=now)
    except IntegrityError:
        going_on = open_purge(queue)
        of_whom = (
            "another one goes on"
            if going_on is None
            else f"a purge by {going_on.actor} goes on, with {going_on.taken:,} of {going_on.expected:,} messages taken"
        )
        raise QueueRefused(f"Cannot purge the queue {_short(queue)}: {of_whom}. Wait for its end.") from None


def _confirm_purge(
    queue: str, values: dict[str, Any], *, actor: Actor, why: str, now: datetime
) -> QueueAction:
    with transaction.atomic():
        action = QueueAction.objects.create(
            kind=QueueActionKind.PURGE,
            queue=queue,
            created_at=now,
            user_id=None if actor.user is None else actor.user.pk,
            actor=str(actor),
            why=why,
            **values,
        )
        count = f"{action.expected:,} waiting message{'' if action.expected == 1 else 's'}"
        audit.record(
            actor=actor,
            action="purge_queue",
            text=f"started the purge of {count} of the queue {_short(queue)}",
            why=why,
            details={"queue": queue, "count": action.expected, "purge": action.pk},
            now=now,
        )
    return action


def peek(queue: str, *, limit: int = 20) -> Peek:
    """Look at the messages that wait, the oldest first, without taking them. On Redis only.

    Raises:
        QueueRefused: when the broker cannot show them without delivering them.
        BrokerUnavailable: when it does not answer.
    """
    _check_name(queue, "look into")
    if not 1 <= limit <= MOST_LOOKED_AT:
        raise QueueRefused(
            f"Cannot look at {limit} messages at once. Ask for at least 1 and at most {MOST_LOOKED_AT}."
        )
    return read_waiting(queue, limit=limit, timeout_seconds=BROKER_SECONDS)


def _limited(sizes: Sequence[int], limit: int) -> list[int]:
    """Return how many of each list are within the limit, in the order in which workers take from them."""
    limits = []
    for size in sizes:
        limits.append(min(size, limit))
        limit -= limits[-1]
    return limits


def _check_name(queue: str, verb: str) -> None:
    if not queue or len(queue) > NAME_LENGTH or clean_name(queue) != queue:
        raise QueueRefused(
            f"Cannot {verb} the queue {_short(queue) or '(no name)'}: a name has 1 to {NAME_LENGTH} printable"
            " characters. Open the queue from the list."
        )
    if is_own(queue) or queue == DELAYED:
        raise QueueRefused(
            f"Cannot {verb} the queue {queue}: it is not one that workers consume."
            " Choose one of those in the list."
        )


def _checked_why(why: str, verb: str) -> str:
    if len(why) > WHY_LENGTH:
        raise QueueRefused(
            f"Cannot {verb} with a reason of {len(why):,} characters: at most {WHY_LENGTH:,} are kept. Shorten it."
        )
    return why.strip()


def _short(queue: str) -> str:
    return clean_line(queue, limit=120)
