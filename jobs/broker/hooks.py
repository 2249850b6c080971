"""Calls the project's own code when a Celery worker or beat of this process starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from celery import bootsteps, signals

from jobs.agent.install import is_attached

# A beat that has made no pass over its schedules for so many of its longest waits, and so long, does not tick.
TICKS_MISSED = 3
LEAST_TICK_AGE_SECONDS = 60.0
# Celery's own longest wait between two passes, where a scheduler names none.
_USUAL_INTERVAL_SECONDS = 300.0


class Examination(Protocol):
    """Looks at the broker of a worker; False when the broker is away. May raise SystemExit."""

    def __call__(
        self,
        app: Any,
        *,
        has_agent: bool,
        pool: Any,
        time_limit: float | None,
        soft_time_limit: float | None,
        may_refuse: bool,
    ) -> bool: ...


def on_worker_start(examine: Examination) -> None:
    """Have the broker looked at before a worker forks, and each time it has connected again."""

    def at_init(sender: Any = None, **_: Any) -> None:
        watch = BrokerWatch(sender, examine)
        sender.jobs_broker_watch = watch
        sender.app.steps["consumer"].add(WatchBroker)
        watch.starting()

    signals.worker_init.connect(at_init, weak=False, dispatch_uid="jobs.preflight.worker_init")


def on_beat_start(call: Callable[[Callable[[], bool]], None]) -> None:
    """Call ``call`` in every process in which a beat starts; for an embedded one twice.

    Its argument says whether that beat ticks.
    """

    def at_init(sender: Any = None, **_: Any) -> None:
        call(lambda: is_ticking(sender, at=time.monotonic()))

    signals.beat_init.connect(at_init, weak=False, dispatch_uid="jobs.preflight.beat_init")
    signals.beat_embedded_init.connect(at_init, weak=False, dispatch_uid="jobs.preflight.beat_embedded_init")


def is_ticking(service: Any, *, at: float) -> bool:
    """Say whether a beat goes through its schedules; ``at`` is a reading of the monotonic clock.

    Celery before 5.7 does not tell; such a beat is taken to tick while its process lives.
    """
    ticked_at = getattr(service, "_last_tick", None)
    if ticked_at is None:
        return True
    interval = getattr(service, "effective_max_interval", None) or _USUAL_INTERVAL_SECONDS
    return bool(at - ticked_at <= max(LEAST_TICK_AGE_SECONDS, TICKS_MISSED * interval))


class BrokerWatch:
    """Decides when the broker of one worker is looked at, and whether that may still end the worker."""

    def __init__(self, worker: Any, examine: Examination) -> None:
        self._worker = worker
        self._examine = examine
        self._is_examined = False
        self._has_connected = False

    def starting(self) -> None:
        """Look before there is a pool, and before anything is taken from a queue."""
        self._look(may_refuse=True)

    def connected(self) -> None:
        """Look at a broker that was away at the start, before the first job.

        And at what a later connection leads to, perhaps another server, without ending a worker that
        has worked: jobs run in it.
        """
        if self._has_connected or not self._is_examined:
            self._look(may_refuse=not self._is_examined)
        self._has_connected = True

    def _look(self, *, may_refuse: bool) -> None:
        worker = self._worker
        done = self._examine(
            worker.app,
            has_agent=is_attached(worker.app),
            pool=worker.pool_cls,
            time_limit=worker.time_limit,
            soft_time_limit=worker.soft_time_limit,
            may_refuse=may_refuse,
        )
        self._is_examined = self._is_examined or done


class WatchBroker(bootsteps.StartStopStep):
    """Tells the watch that the consumer has connected. SystemExit ends the worker as a warm shutdown does."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def start(self, consumer: Any) -> None:
        """Look, if it is time to."""
        watch = getattr(consumer.controller, "jobs_broker_watch", None)
        if watch is not None:
            watch.connected()
