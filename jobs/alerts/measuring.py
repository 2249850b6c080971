"""The value of each rule now, from the database alone: it must be known when no worker and no broker answers.

What several rules ask for is read once. A value that cannot be known is None, never zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from django.db import DatabaseError, InterfaceError
from django.db.models import Max

from jobs import leases
from jobs.agent.wire import DEAD_QUEUE, RUNS_QUEUE
from jobs.alerts import letters
from jobs.core.windows import Window
from jobs.core.words import AlertKind, SampleLevel
from jobs.metrics import reading
from jobs.metrics.figures import Figures
from jobs.metrics.workers import LOST, ONLINE, BootNow, boots_now
from jobs.models import AlertRule, BeatProcess, QueueSample
from jobs.outbox import service as outbox
from jobs.queues.reading import QueueNow, now_of_all

logger = logging.getLogger(__name__)

MINUTE = timedelta(minutes=1)
# With more records than this the collector is behind, and not only busy.
BEHIND_RECORDS = 1_000
# A worker tells of itself each few seconds: without a report for so long nothing is known of what ran.
REPORTED_WITHIN = timedelta(minutes=2)


# Why there is no verdict where all is known, and only little of it.
TOO_FEW = "Too few jobs ended for a verdict"
NONE_ENDED = "No job ended in the window."
NONE_TOLD = "No job told when it was published."


@dataclass(frozen=True, slots=True)
class Measurement:
    """One subject's value in the rule's unit, None when it is not known.

    ``shown`` is what is said where that is another figure: of a growth that is younger than its window, the
    growth itself. ``since`` is when it began, where that can be told; ``name`` what people call the subject.
    """

    value: float | None
    shown: float | None = None
    since: datetime | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """The values of a rule by subject. ``trouble`` says why there are none, or none for some.

    A subject that is not among them has the value ``otherwise``: 0 where all are known, None else.
    """

    by_subject: Mapping[str, Measurement] = field(default_factory=dict)
    trouble: str = ""
    otherwise: float | None = 0.0

    def of(self, subject: str) -> Measurement:
        """Return the measurement of a subject."""
        return self.by_subject.get(subject, Measurement(self.otherwise))


def unknown(trouble: str) -> Measured:
    """Return that nothing is known, and why."""
    return Measured(trouble=trouble, otherwise=None)


def has_little_to_judge(trouble: str) -> bool:
    """Say whether a rule's trouble is only that too little happened, as on any quiet day."""
    return trouble.startswith(TOO_FEW) or trouble in {NONE_ENDED, NONE_TOLD}


def measure(rules: Iterable[AlertRule], *, now: datetime) -> dict[int, Measured]:
    """Measure each rule; the number of queries follows from the kinds and windows, not from the rules."""
    facts = Facts(now)
    return {rule.pk: _measured(rule, facts) for rule in rules}


def collector_lag(*, now: datetime) -> float | None:
    """Return for how many seconds records have waited to be collected, as its rule measures it; None when unknown."""
    return _collector_lag(AlertRule(kind=AlertKind.COLLECTOR_LAG), Facts(now)).of("").value


def _measured(rule: AlertRule, facts: Facts) -> Measured:
    try:
        return MEASURES[AlertKind(rule.kind)](rule, facts)
    except (DatabaseError, InterfaceError):
        raise
    except Exception as error:
        # One rule that cannot be measured must not keep the others from being judged.
        logger.exception("alert rule %s (%s) cannot be measured", rule.pk, rule.kind)
        return unknown(f"It could not be measured: {type(error).__name__}: {error}")


class Facts:
    """What the rules of one evaluation ask for, each read once."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self._figures: dict[tuple[int, str, str], Figures] = {}
        self._by_queue: dict[int, dict[str, Figures]] = {}

    @cached_property
    def queues(self) -> list[QueueNow]:
        """All queues as they were counted last."""
        return now_of_all(now=self.now)

    @cached_property
    def boots(self) -> list[BootNow]:
        """The workers that are online, lost or lately gone."""
        return boots_now(now=self.now)

    @cached_property
    def newest_report(self) -> datetime | None:
        """The newest minute of which a worker told."""
        return reading.newest_report(now=self.now)

    @cached_property
    def not_collected_since(self) -> datetime | None:
        """Since when dead letters are not read, None while they are."""
        missing = leases.undone(["collector"])
        return missing[0].since if missing else None

    def figures(self, rule: AlertRule) -> Figures:
        """Return what ended in a rule's window, of its task and queue; the minute that runs is in it."""
        key = (rule.window_minutes, rule.task, rule.queue)
        if key not in self._figures:
            window = self.window(rule.window_minutes)
            self._figures[key] = reading.totals(
                window.start, window.end, task=rule.task, queue=rule.queue, now=self.now
            )
        return self._figures[key]

    def figures_by_queue(self, minutes: int) -> dict[str, Figures]:
        """Return what each queue's workers took and ended in a window."""
        if minutes not in self._by_queue:
            self._by_queue[minutes] = reading.by_queue(self.window(minutes), now=self.now)
        return self._by_queue[minutes]

    def window(self, minutes: int) -> Window:
        """Return the whole minutes that a look back reaches into."""
        minute = letters.whole_minute(self.now)
        return Window(minute - MINUTE * minutes, minute + MINUTE, 60)


def _letters_growing(rule: AlertRule, facts: Facts) -> Measured:
    growth = letters.growth(
        window=MINUTE * rule.window_minutes,
        limit=rule.threshold,
        task=rule.task,
        queue=rule.queue,
        now=facts.now,
    )
    if growth.average <= rule.threshold and facts.not_collected_since is not None:
        # What is there may be less than has died; that there are too many would be true all the same.
        return unknown("Dead letters are not read now, so nobody knows how many there are.")
    return _one(Measurement(growth.average, shown=growth.current, since=growth.since))


def _group_failing(rule: AlertRule, facts: Facts) -> Measured:
    groups = letters.failing_groups(
        window=MINUTE * rule.window_minutes, task=rule.task, queue=rule.queue, now=facts.now
    )
    return Measured(
        {str(each.group_id): Measurement(each.died, since=each.since, name=each.name) for each in groups},
        otherwise=0.0 if facts.not_collected_since is None else None,
    )


def _of_queues(value: Callable[[QueueNow], float | None]) -> Callable[[AlertRule, Facts], Measured]:
    def measured(rule: AlertRule, facts: Facts) -> Measured:
        if not facts.queues:
            return unknown("No queue was counted yet.")
        stale = next((each for each in facts.queues if each.is_stale), None)
        if stale is not None:
            return unknown(stale.trouble or "Queues have not been counted lately.")
        watched = [each for each in facts.queues if not rule.queue or each.queue == rule.queue]
        return Measured(
            {each.queue: Measurement(value(each), name=each.queue) for each in watched},
            trouble=next((each.trouble for each in watched if value(each) is None and each.trouble), ""),
        )

    return measured


def _depth(queue: QueueNow) -> float | None:
    return queue.ready


def _age(queue: QueueNow) -> float | None:
    # Without a waiting message there is no oldest; that nobody can tell is something else.
    return 0.0 if queue.ready == 0 else queue.oldest_age_seconds


def _unconsumed(queue: QueueNow) -> float | None:
    if queue.ready is None or (queue.consumers is None and queue.ready):
        return None
    return float(queue.ready) if queue.is_unconsumed else 0.0


def _nothing_received(rule: AlertRule, facts: Facts) -> Measured:
    report = facts.newest_report
    if report is None or facts.now - report > REPORTED_WITHIN:
        return unknown("No worker tells what it takes: nothing was recorded in the last minutes.")
    figures = facts.figures_by_queue(rule.window_minutes)

    def untouched(queue: QueueNow) -> float | None:
        if not queue.ready or not queue.consumers or queue.is_paused:
            return 0.0
        told = figures.get(queue.queue)
        if told is not None and (told.received or told.attempts):
            return 0.0
        since = facts.now - MINUTE * rule.window_minutes
        idle = [boot for boot in facts.boots if _has_time_for(boot, queue.queue, since=since)]
        return float(queue.ready) if idle else 0.0

    return _of_queues(untouched)(rule, facts)


def _has_time_for(boot: BootNow, queue: str, *, since: datetime) -> bool:
    """Say whether a worker consumes a queue, did so all the time, and runs less than it could."""
    if boot.state != ONLINE or queue not in boot.queues or boot.started_at > since:
        return False
    return boot.concurrency is None or len(boot.running) < boot.concurrency


def _latency(rule: AlertRule, facts: Facts) -> Measured:
    figures = facts.figures(rule)
    if trouble := _too_few(figures.attempts, rule):
        return unknown(trouble)
    value = figures.latency_percentile(rule.percentile)
    return unknown(NONE_TOLD) if value is None else _one(Measurement(value))


def _failure_rate(rule: AlertRule, facts: Facts) -> Measured:
    figures = facts.figures(rule)
    if trouble := _too_few(figures.finished, rule):
        return unknown(trouble)
    rate = figures.failure_rate
    return unknown(NONE_ENDED) if rate is None else _one(Measurement(rate * 100))


def _retry_rate(rule: AlertRule, facts: Facts) -> Measured:
    figures = facts.figures(rule)
    if trouble := _too_few(figures.attempts, rule):
        return unknown(trouble)
    rate = figures.retry_rate
    return unknown(NONE_ENDED) if rate is None else _one(Measurement(rate * 100))


def _too_few(ended: int, rule: AlertRule) -> str:
    if ended >= rule.minimum_attempts:
        return ""
    return f"{TOO_FEW}: {ended:,} of at least {rule.minimum_attempts:,}."


def _worker_lost(rule: AlertRule, facts: Facts) -> Measured:
    found = {}
    for boot in facts.boots:
        # Of several lives of a hostname the newest counts: one that came back and ended in order is not lost.
        if boot.state != LOST or boot.is_followed or boot.lost_at is None:
            continue
        if rule.queue and rule.queue not in boot.queues:
            continue
        if facts.now - boot.lost_at <= MINUTE * rule.window_minutes:
            found[boot.hostname] = Measurement(1.0, since=boot.last_seen_at, name=boot.hostname)
    return Measured(found)


def _beat_silent(rule: AlertRule, facts: Facts) -> Measured:
    seen = BeatProcess.objects.aggregate(newest=Max("seen_at"))["newest"]
    # None was ever seen, or the last one ended in order: there is nothing to say.
    return Measured() if seen is None else _one(_age_of(seen, facts))


def _outbox_lag(rule: AlertRule, facts: Facts) -> Measured:
    found = outbox.overview(now=facts.now)
    return _one(Measurement(found.lag_seconds, since=found.oldest_due_at))


def _collector_lag(rule: AlertRule, facts: Facts) -> Measured:
    begun = [each.since for each in leases.undone(["collector", "runs"]) if each.since is not None]
    for queue in (DEAD_QUEUE, RUNS_QUEUE):
        samples = QueueSample.objects.filter(level=SampleLevel.SAMPLE.value, queue=queue).order_by("-at")
        newest = samples.values_list("ready", "at").first()
        if newest is not None and (newest[0] or 0) > BEHIND_RECORDS:
            level = samples.filter(ready__lte=BEHIND_RECORDS).values_list("at", flat=True).first()
            begun.append(newest[1] if level is None else level)
    return _one(_age_of(min(begun), facts) if begun else Measurement(0.0))


def _age_of(moment: datetime, facts: Facts) -> Measurement:
    return Measurement(max(0.0, (facts.now - moment).total_seconds()), since=moment)


def _one(measurement: Measurement) -> Measured:
    return Measured({"": measurement})


MEASURES: dict[AlertKind, Callable[[AlertRule, Facts], Measured]] = {
    AlertKind.LETTERS_GROWING: _letters_growing,
    AlertKind.GROUP_FAILING: _group_failing,
    AlertKind.QUEUE_DEPTH: _of_queues(_depth),
    AlertKind.OLDEST_AGE: _of_queues(_age),
    AlertKind.LATENCY: _latency,
    AlertKind.FAILURE_RATE: _failure_rate,
    AlertKind.RETRY_RATE: _retry_rate,
    AlertKind.NO_CONSUMER: _of_queues(_unconsumed),
    AlertKind.NOTHING_RECEIVED: _nothing_received,
    AlertKind.WORKER_LOST: _worker_lost,
    AlertKind.BEAT_SILENT: _beat_silent,
    AlertKind.OUTBOX_LAG: _outbox_lag,
    AlertKind.COLLECTOR_LAG: _collector_lag,
}
