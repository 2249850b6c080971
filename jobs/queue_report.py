"""How the queues are, in numbers and in a verdict, for scripts and cron."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from jobs import leases
from jobs.alerts import reading as alerts
from jobs.alerts.measuring import collector_lag
from jobs.alerts.reading import OpenAlert
from jobs.core.windows import Window
from jobs.core.words import AlertKind, LetterState
from jobs.metrics import reading, workers
from jobs.metrics.figures import Figures
from jobs.models import DeadLetter
from jobs.outbox import service as outbox
from jobs.queues import reading as queues
from jobs.queues.reading import QueueNow

# What rates and percentiles are of; whole minutes, the one that runs included.
LOOK_BACK = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
PERCENTILE = 95
# Without a report for so long nothing is known of what ran.
REPORTED_WITHIN = timedelta(minutes=2)
# What the numbers of this report come from.
_DUTIES = ("collector", "runs", "queues", "alerts")
_DUTY_WORDS = {
    "collector": "dead letters are not collected",
    "runs": "what workers report is not collected",
    "queues": "queues are not measured",
    "alerts": "alert rules are not judged",
}


@dataclass(frozen=True, slots=True)
class QueueHealth:
    """A queue in numbers: now, and of the attempts that ended in LOOK_BACK. What is not known is None."""

    queue: str
    depth: int | None
    oldest_age_seconds: float | None
    consumers: int | None
    is_paused: bool
    latency_p95_seconds: float | None
    attempts: int
    failure_rate: float | None


@dataclass(slots=True)
class QueueReport:
    """What ``manage.py queue_health`` tells. ``reasons`` say what is wrong, ``unknown`` what cannot be known."""

    at: datetime
    queues: list[QueueHealth] = field(default_factory=list)
    dead_letters: int = 0
    died_in_last_hour: int = 0
    outbox_lag_seconds: float = 0.0
    collector_lag_seconds: float | None = None
    workers_online: int = 0
    workers_lost: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def exit_status(self) -> int:
        """0 healthy, 1 degraded, 2 when that cannot be known."""
        if self.reasons:
            return 1
        return 2 if self.unknown else 0

    def as_json(self) -> dict[str, Any]:
        """Return it for scripts; durations in seconds, rates from 0 to 1."""
        return {
            "at": self.at.isoformat(),
            "status": ("healthy", "degraded", "unknown")[self.exit_status],
            "reasons": self.reasons,
            "unknown": self.unknown,
            "queues": [
                {name: getattr(each, name) for name in QueueHealth.__dataclass_fields__}
                for each in self.queues
            ],
            "dead_letters": self.dead_letters,
            "died_in_last_hour": self.died_in_last_hour,
            "outbox_lag_seconds": self.outbox_lag_seconds,
            "collector_lag_seconds": self.collector_lag_seconds,
            "workers_online": self.workers_online,
            "workers_lost": self.workers_lost,
        }


def queue_report(*, queue: str = "", now: datetime) -> QueueReport:
    """Read how the queues are, or one of them; a fixed number of queries.

    Degraded is what an enabled alert rule fires or is about to fire for, and a queue that nobody consumes.
    """
    report = QueueReport(now)
    found = queues.now_of_all(now=now)
    minute = now.replace(second=0, microsecond=0)
    start, end = minute - LOOK_BACK, minute + MINUTE
    figures = reading.by_queue(Window(start, end, 60), now=now)
    names = sorted({each.queue for each in found} | set(figures))
    by_name = {each.queue: each for each in found}
    report.queues = [
        _queue(name, by_name.get(name), figures.get(name, Figures()))
        for name in names
        if not queue or name == queue
    ]
    letters = DeadLetter.objects.filter(queue=queue) if queue else DeadLetter.objects.all()
    report.dead_letters = letters.filter(state=LetterState.DEAD).count()
    report.died_in_last_hour = _died_in_last_hour(queue, now=now)
    report.outbox_lag_seconds = outbox.overview(now=now).lag_seconds
    report.collector_lag_seconds = collector_lag(now=now)
    boots = workers.boots_now(now=now)
    online = {boot.hostname for boot in boots if boot.is_online}
    report.workers_online = len(online)
    report.workers_lost = sorted({boot.hostname for boot in boots if boot.state == workers.LOST} - online)
    report.reasons = _reasons(found, queue=queue, now=now)
    report.unknown = _unknown(found, queue=queue, is_heard_of=bool(report.queues), now=now)
    return report


def _queue(name: str, found: QueueNow | None, figures: Figures) -> QueueHealth:
    known = found if found is not None and not found.is_stale else None
    return QueueHealth(
        queue=name,
        depth=None if known is None else known.ready,
        oldest_age_seconds=None if known is None else known.oldest_age_seconds,
        consumers=None if known is None else known.consumers,
        is_paused=found is not None and found.is_paused,
        latency_p95_seconds=figures.latency_percentile(PERCENTILE),
        attempts=figures.attempts,
        failure_rate=figures.failure_rate,
    )


def _died_in_last_hour(queue: str, *, now: datetime) -> int:
    # All states by name, so that the index that begins with the state is used.
    states = [state.value for state in LetterState]
    died = DeadLetter.objects.filter(state__in=states, died_at__gte=now - HOUR, died_at__lte=now)
    return (died.filter(queue=queue) if queue else died).count()


def _reasons(found: list[QueueNow], *, queue: str, now: datetime) -> list[str]:
    """Say what enabled rules fire or are about to fire for, and which queues nobody consumes."""
    told, reasons = set(), []
    for alert in alerts.open_alerts(now=now, with_pending=True):
        if not alert.rule.is_enabled or not _concerns(alert, queue):
            continue
        state = "" if alert.is_firing else " (about to fire)"
        reasons.append(f"{alert.headline}{state}, since {alert.since:%Y-%m-%d %H:%M} UTC.")
        if alert.rule.kind == AlertKind.NO_CONSUMER:
            told.add(alert.alert.subject)
    reasons += [
        f"Nobody consumes the queue {each.queue}: {each.ready:,} messages wait."
        for each in found
        if each.is_unconsumed and not each.is_stale and each.queue not in told and queue in {"", each.queue}
    ]
    return reasons


def _concerns(alert: OpenAlert, queue: str) -> bool:
    """Say whether an alert is about a queue; one that is about all of them is."""
    if not queue:
        return True
    of_queues = {
        AlertKind.QUEUE_DEPTH,
        AlertKind.OLDEST_AGE,
        AlertKind.NO_CONSUMER,
        AlertKind.NOTHING_RECEIVED,
    }
    subject = alert.alert.subject if alert.rule.kind in of_queues else ""
    return {alert.rule.queue, subject} <= {"", queue}


def _unknown(found: list[QueueNow], *, queue: str, is_heard_of: bool, now: datetime) -> list[str]:
    """Say which numbers cannot be known now, and why."""
    unknown = [
        f"{_DUTY_WORDS[each.duty].capitalize()}: "
        f"{each.reason.rstrip('.') if each.trouble else 'no runops carries it out'}."
        for each in leases.undone(_DUTIES)
    ]
    if remark := leases.remark_of("runs"):
        unknown.append(f"{remark}.")
    if queue and not is_heard_of:
        unknown.append(f"No queue of the name {queue} was measured, and no worker took a job from one.")
    if not found:
        unknown.append("No queue has been measured yet.")
    elif found[0].is_stale:
        unknown.append(f"Queues were last measured at {found[0].at:%Y-%m-%d %H:%M:%S} UTC.")
    newest = reading.newest_report(now=now)
    if newest is None:
        unknown.append("No worker with the agent has reported yet: rates and latencies are not known.")
    elif now - newest > REPORTED_WITHIN:
        unknown.append(f"No worker has reported since {newest:%Y-%m-%d %H:%M} UTC.")
    return unknown
