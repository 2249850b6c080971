"""The workers that report: online, lost, and lately gone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q

from jobs.models import WorkerBoot

# A worker that says nothing for so long, and did not say goodbye, is lost. It says something each 5 s.
LOST_AFTER = timedelta(seconds=30)
# In the pool "solo" the job runs in the worker's own loop, which says nothing meanwhile.
SOLO_LOST_AFTER = timedelta(hours=1)
LOST_SHOWN = timedelta(hours=24)
GONE_SHOWN = timedelta(hours=1)

ONLINE, LOST, GONE = "online", "lost", "gone"


@dataclass(frozen=True, slots=True)
class BootNow:
    """One life of a worker as it last told of itself. Times are aware; what it did not tell is None.

    ``running`` are ``agent.batches.RunningJob`` as mappings; ``held`` and ``reserved`` count messages by queue.
    """

    hostname: str
    boot_id: str
    state: str
    pool: str
    concurrency: int | None
    queues: list[str]
    load: float | None
    memory_bytes: int | None
    started_at: datetime
    last_seen_at: datetime
    lost_at: datetime | None
    goodbye_at: datetime | None
    # Finished attempts, how many of these came without their record, and jobs that were lost with it.
    attempts: int
    dropped: int
    jobs_lost: int
    running: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)
    # Whether a later life of its hostname was heard of, or another one is online.
    is_followed: bool = False

    @property
    def is_online(self) -> bool:
        """Say whether it is there, as far as is known."""
        return self.state == ONLINE

    @property
    def held_total(self) -> int:
        """How many messages wait for their time in its memory."""
        return sum(self.held.values())

    @property
    def reserved_total(self) -> int:
        """How many messages it took and has not started."""
        return sum(self.reserved.values())


def boots_now(*, hostname: str = "", now: datetime) -> list[BootNow]:
    """Return who is online, who was lost in the last day, and who said goodbye in the last hour.

    By hostname, the newest life first. One that is gone is left out when its hostname is online again.
    With ``hostname`` only the lives of that one. One query.
    """
    online = Q(goodbye_at=None, lost_at=None)
    lost = Q(lost_at__gt=now - LOST_SHOWN)
    # Those that said goodbye earlier tell that a life before theirs, which was lost, was followed by one.
    gone = Q(goodbye_at__gt=now - LOST_SHOWN, lost_at=None)
    # Of the time in which they can be one of these.
    recent = Q(last_seen_at__gt=now - LOST_SHOWN - SOLO_LOST_AFTER)
    rows = WorkerBoot.objects.filter(recent, online | lost | gone).order_by("hostname", "-started_at", "-pk")
    if hostname:
        rows = rows.filter(hostname=hostname)
    found = [_boot_now(row) for row in rows]
    living = {boot.hostname for boot in found if boot.state == ONLINE}
    boots: list[BootNow] = []
    for boot in found:
        # The newest life of a hostname comes first.
        is_older = bool(boots) and boots[-1].hostname == boot.hostname
        is_back = boot.state != ONLINE and boot.hostname in living
        boots.append(replace(boot, is_followed=is_older or is_back))
    return [
        boot
        for boot in boots
        if boot.state != GONE
        or (
            boot.hostname not in living and boot.goodbye_at is not None and boot.goodbye_at > now - GONE_SHOWN
        )
    ]


def state_of(row: WorkerBoot) -> str:
    """Return whether a boot is online, lost or gone."""
    if row.lost_at is not None:
        return LOST
    return GONE if row.goodbye_at is not None else ONLINE


def lost_after(pool: str) -> timedelta:
    """Return how long a worker of this pool may say nothing."""
    return SOLO_LOST_AFTER if pool == "solo" else LOST_AFTER


def _boot_now(row: WorkerBoot) -> BootNow:
    return BootNow(
        hostname=row.hostname,
        boot_id=row.boot_id,
        state=state_of(row),
        pool=row.pool,
        concurrency=row.concurrency,
        queues=row.queues,
        load=row.load,
        memory_bytes=row.memory_bytes,
        started_at=row.started_at,
        last_seen_at=row.last_seen_at,
        lost_at=row.lost_at,
        goodbye_at=row.goodbye_at,
        attempts=row.attempts,
        dropped=row.dropped,
        jobs_lost=row.jobs_lost,
        running=row.running,
        held=row.held,
        reserved=row.reserved,
    )
