"""What runops does, one process at a time: each duty opens what it needs and returns its round."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from django.utils import timezone

from jobs import conf, retention
from jobs.agent.wire import RUNS_QUEUE
from jobs.alerts.evaluating import evaluate
from jobs.alerts.sending import send_due
from jobs.broker import connect
from jobs.broker.inbox import Inbox
from jobs.collector import Collector
from jobs.leases import HeldLease
from jobs.metrics import lost, states
from jobs.metrics.collecting import RunsCollector
from jobs.operations.outcomes import give_up_overdue
from jobs.operations.runner import Runner
from jobs.outbox.relay import relay_batch
from jobs.outbox.service import relay_duty_name
from jobs.queues.watching import Watcher
from jobs.workers import refresh_workers

logger = logging.getLogger(__name__)

# How long the collector waits for a record at a time; also what a stop waits for at most.
COLLECT_WAIT_SECONDS = 1.0
# An operation starts within so long of its confirmation.
IDLE_SECONDS = 0.25
WORKERS_EVERY_SECONDS = 10.0
WORKERS_SOON_SECONDS = 2.0
RETENTION_EVERY_SECONDS = 60.0
# A round that deleted so many may have left some. One that deleted a few has not: where jobs run all the time
# there is always one more that is past its time, and asking again at once would never end.
RETENTION_FULL_ROUND = 20 * retention.BATCH
OUTCOMES_EVERY_SECONDS = 30.0
RELAY_EVERY_SECONDS = 0.5
NOTIFICATIONS_EVERY_SECONDS = 1.0
# Batches that come within it are counted in one transaction: numbers are a second old at most, and SQLite's
# one writer has two of these a second, however many workers there are.
RUNS_EVERY_SECONDS = 0.5
LOST_EVERY_SECONDS = 2.0
SETTLE_EVERY_SECONDS = 30.0

# Does one round of a duty; returns the seconds until the next.
Round = Callable[[HeldLease], float]


@dataclass(frozen=True, slots=True)
class Duty:
    """Something one process at a time does. ``begin`` opens what it needs and returns its round.

    It is called again after an error, so that broken connections are left behind.
    """

    name: str
    begin: Callable[[], Round]


def collector_duty() -> Round:
    """Write what agents report, as soon as it is there."""
    collector = Collector(Inbox(connect()))

    def collect(_lease: HeldLease) -> float:
        collector.collect(wait_seconds=COLLECT_WAIT_SECONDS, now=timezone.now())
        return 0.0

    return collect


def runs_duty() -> Round:
    """Count what workers report, and give up on those that fell silent."""
    collector = RunsCollector(Inbox(connect(), RUNS_QUEUE))
    looked_at = settled_at = time.monotonic()

    def collect(lease: HeldLease) -> float:
        nonlocal looked_at, settled_at
        collector.collect(wait_seconds=COLLECT_WAIT_SECONDS, now=timezone.now())
        lease.hindrance = collector.hindrance
        lease.tell_remark(collector.remark)
        now = timezone.now()
        if time.monotonic() - looked_at >= LOST_EVERY_SECONDS and collector.has_heard_all(now=now):
            looked_at = time.monotonic()
            lease.check()
            lost.declare_lost(now=now)
        if time.monotonic() - settled_at >= SETTLE_EVERY_SECONDS:
            settled_at = time.monotonic()
            lost.settle(now=now)
        return 0.0 if collector.is_behind else RUNS_EVERY_SECONDS

    return collect


def operations_duty() -> Round:
    """Carry out replays, purges and restores."""
    runner = Runner(connect())

    def run(lease: HeldLease) -> float:
        seconds = runner.run_once(now=timezone.now(), lease=lease)
        return IDLE_SECONDS if seconds is None else min(seconds, IDLE_SECONDS)

    return run


def queues_duty() -> Round:
    """Count what waits on the queues, keep paused ones paused, and purge."""
    watcher = Watcher()

    def watch(lease: HeldLease) -> float:
        return watcher.round(now=timezone.now(), lease=lease)

    return watch


def workers_duty() -> Round:
    """Keep the table of workers."""
    broker = connect()

    def refresh(_lease: HeldLease) -> float:
        answered = refresh_workers(broker, now=timezone.now())
        # Soon again while nobody answers: a worker that starts now should not be missed for long.
        return WORKERS_EVERY_SECONDS if answered else WORKERS_SOON_SECONDS

    return refresh


def relay_duty(using: str) -> Callable[[], Round]:
    """Return the duty that publishes what the outbox of a database keeps."""

    def begin() -> Round:
        broker = connect()

        def relay(lease: HeldLease) -> float:
            lease.check()
            relayed = relay_batch(broker, using=using, now=timezone.now())
            if relayed.gave_up or relayed.expired:
                logger.error(
                    "outbox of %s: %s given up, %s expired; they are dead letters now",
                    *(using, f"{relayed.gave_up:,}", f"{relayed.expired:,}"),
                )
            return 0.0 if relayed.total else RELAY_EVERY_SECONDS

        return relay

    return begin


def retention_duty() -> Round:
    """Delete what is past its time."""

    def prune(lease: HeldLease) -> float:
        lease.check()
        deleted = retention.delete_letters(now=timezone.now())
        retention.age_groups(now=timezone.now())
        sent = retention.delete_outbox(now=timezone.now())
        sent += retention.delete_ledger(now=timezone.now())
        old = retention.delete_numbers(now=timezone.now())
        if deleted:
            logger.info("deleted %s purged or resolved letters past their time", f"{deleted:,}")
        return 0.0 if max(deleted, sent, old) >= RETENTION_FULL_ROUND else RETENTION_EVERY_SECONDS

    return prune


def outcomes_duty() -> Round:
    """Give up on outcomes that do not come."""

    def give_up(lease: HeldLease) -> float:
        lease.check()
        if given_up := give_up_overdue(now=timezone.now()):
            logger.warning("gave up on the outcome of %s replayed letters", f"{given_up:,}")
        return OUTCOMES_EVERY_SECONDS

    return give_up


def states_duty() -> Round:
    """Write down what stands open, which nobody can count afterwards."""

    def write(lease: HeldLease) -> float:
        lease.check()
        states.write_state(now=timezone.now())
        return states.EVERY_SECONDS

    return write


def alerts_duty() -> Round:
    """Judge the alert rules."""
    every_seconds = conf.current().alert_every_seconds

    def judge(lease: HeldLease) -> float:
        lease.check()
        evaluate(now=timezone.now())
        return every_seconds

    return judge


def notifications_duty() -> Round:
    """Send what is to be told of alerts."""

    def send(lease: HeldLease) -> float:
        send_due(uniform=random.uniform, clock=timezone.now, check=lease.check)
        return NOTIFICATIONS_EVERY_SECONDS

    return send


DUTIES = (
    Duty("collector", collector_duty),
    Duty("runs", runs_duty),
    Duty("operations", operations_duty),
    Duty("workers", workers_duty),
    Duty("queues", queues_duty),
    Duty("retention", retention_duty),
    Duty("outcomes", outcomes_duty),
    Duty("alerts", alerts_duty),
    Duty("notifications", notifications_duty),
    Duty(states.DUTY, states_duty),
)


def all_duties() -> tuple[Duty, ...]:
    """Return the duties of this configuration: DUTIES, and a relay for each database with an outbox."""
    relays = tuple(
        Duty(relay_duty_name(using), relay_duty(using)) for using in conf.current().outbox_databases
    )
    return DUTIES + relays
