"""The numbers as Prometheus reads them: from the database alone, a fixed number of queries a scrape.

Counters and histograms begin anew with each month (UTC), which Prometheus sees as a restart: summed up over all
time they would fall by a whole day's count whenever the oldest day is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Literal

from django.db.models import Count, Min, QuerySet, Sum
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from jobs import leases, search
from jobs.alerts.measuring import collector_lag
from jobs.core import histograms
from jobs.core.words import AlertState, LetterState, RollupLevel, RollupScope, RunOutcome, Severity
from jobs.duties import all_duties
from jobs.metrics import workers
from jobs.metrics.letters import dead_by
from jobs.models import Alert, DeadLetter, Rollup
from jobs.outbox import service as outbox
from jobs.queues import reading as queues
from jobs.queues.reading import QueueNow

# Names come from messages: of more than these the later ones are told together, as OTHERS.
MOST_PAIRS = 1_000
MOST_NAMES = 200
OTHERS = "(others)"
OUTCOMES = tuple(RunOutcome)
# From zero on, so that the first death of a task is an increase and not a series that appears.
ALWAYS_TOLD = frozenset({RunOutcome.DONE, RunOutcome.RETRIED, RunOutcome.DEAD})
# The upper bounds of histograms in seconds, each exact within 5 %.
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)


def text(accept: str, *, now: datetime) -> tuple[str, bytes]:
    """Return the content type and the text of a scrape, in the format that the ``Accept`` header asks for."""
    registry = CollectorRegistry()
    registry.register(_Numbers(now))
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # A version that is no number.
        encode, content_type = choose_encoder("")
    return content_type, encode(registry)


class _Numbers(Collector):
    """What is told at one moment. A registry of one scrape holds it, nothing is kept by the process."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that a registry does not read the database to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read and yield every metric."""
        yield from _attempts(self._now)
        yield _durations(
            RollupScope.QUEUE,
            "latency",
            "jobs_queue_latency_seconds",
            "Seconds from publish, or the time a job was meant to start, to its start.",
            now=self._now,
        )
        yield _durations(
            RollupScope.TASK, "runtime", "jobs_runtime_seconds", "Seconds an attempt ran.", now=self._now
        )
        yield from _queues(queues.now_of_all(now=self._now))
        yield from _dead_letters()
        yield from _workers(self._now)
        yield from _outbox(self._now)
        yield from _collector(self._now)
        yield _alerts()
        yield _duties()


def month_of(now: datetime) -> datetime:
    """Return where the counters begin."""
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _days(scope: RollupScope, now: datetime) -> QuerySet[Rollup]:
    return Rollup.objects.filter(level=RollupLevel.DAY, scope=scope, starts_at__gte=month_of(now)).order_by()


def _attempts(now: datetime) -> Iterator[Metric]:
    counted = ("received", "dropped", *(outcome.value for outcome in OUTCOMES))
    sums = {f"{name}_sum": Sum(name) for name in counted}
    rows = _days(RollupScope.BOTH, now).values_list("task", "queue").annotate(first=Min("pk"), **sums)
    # By when they were first heard of, so that a name never moves in or out of the others within a month.
    totals: dict[tuple[str, str], dict[str, int]] = {}
    for index, (task, queue, _, *numbers) in enumerate(rows.order_by("first").iterator()):
        pair = (task, queue) if index < MOST_PAIRS else (OTHERS, OTHERS)
        kept = totals.setdefault(pair, dict.fromkeys(counted, 0))
        for name, number in zip(counted, numbers, strict=True):
            kept[name] += number or 0
    attempts = CounterMetricFamily(
        "jobs_attempts", "Attempts that ended, by how.", labels=("task", "queue", "outcome")
    )
    received = CounterMetricFamily(
        "jobs_messages_received", "Messages that workers took from a queue.", labels=("task", "queue")
    )
    unrecorded = CounterMetricFamily(
        "jobs_attempts_unrecorded",
        "Attempts that were counted and whose record a worker left out.",
        labels=("task", "queue"),
    )
    for pair, kept in totals.items():
        for outcome in OUTCOMES:
            if outcome in ALWAYS_TOLD or kept[outcome.value]:
                attempts.add_metric((*pair, outcome.value), kept[outcome.value])
        received.add_metric(pair, kept["received"])
        if kept["dropped"]:
            unrecorded.add_metric(pair, kept["dropped"])
    yield from (attempts, received, unrecorded)


def _durations(scope: RollupScope, column: str, name: str, words: str, *, now: datetime) -> Metric:
    """Return a histogram by queue or by task, out of the month's days."""
    label = scope.value
    rows = _days(scope, now).values_list("pk", label, column, f"{column}_sum_seconds").order_by("pk")
    found: dict[str, list[bytes]] = {}
    sums: dict[str, float] = {}
    known: set[str] = set()
    for _, each, packed, seconds in rows.iterator():
        if each not in known and len(known) >= MOST_NAMES:
            each = OTHERS
        else:
            known.add(each)
        found.setdefault(each, []).append(packed)
        sums[each] = sums.get(each, 0.0) + seconds
    metric = HistogramMetricFamily(name, words, labels=(label,))
    for each, days in found.items():
        buckets = _buckets(histograms.merge_packed(days))
        metric.add_metric((each,), buckets=buckets, sum_value=max(0.0, sums[each]))
    return metric


def _buckets(histogram: Mapping[int, int]) -> list[tuple[str, float]]:
    """Return how many lie at or below each bound."""
    found: list[tuple[str, float]] = []
    passed, ordered = 0, sorted(histogram)
    index = 0
    for bound in BOUNDS:
        while index < len(ordered) and histograms.seconds_of(ordered[index]) <= bound:
            passed += histogram[ordered[index]]
            index += 1
        found.append((f"{float(bound)}", passed))
    found.append(("+Inf", histograms.total(histogram)))
    return found


def _queues(found: list[QueueNow]) -> Iterator[Metric]:
    """Yield what queues hold. A number that is not known, or old, has no sample: it is absent, not zero."""
    by_depth = sorted(found, key=lambda each: (-(each.ready or 0), each.queue))[:MOST_NAMES]
    fresh = [each for each in by_depth if not each.is_stale]
    told = (
        ("depth", "Messages that wait on the queue.", "ready"),
        ("unacknowledged", "Messages that workers took and have not done with.", "unacknowledged"),
        ("held", "Messages that are held for later.", "held"),
        ("consumers", "Workers that consume from the queue.", "consumers"),
        (
            "oldest_age_seconds",
            "Seconds since the oldest waiting message was published.",
            "oldest_age_seconds",
        ),
    )
    for name, words, column in told:
        metric = GaugeMetricFamily(f"jobs_queue_{name}", words, labels=("queue",))
        for queue in fresh:
            value = getattr(queue, column)
            if value is None and column == "oldest_age_seconds" and queue.ready == 0:
                value = 0
            if value is not None:
                metric.add_metric((queue.queue,), value)
        yield metric
    paused = GaugeMetricFamily("jobs_queue_paused", "1 while an operator has paused it.", labels=("queue",))
    for queue in by_depth:
        paused.add_metric((queue.queue,), float(queue.is_paused))
    yield paused
    sampled = GaugeMetricFamily(
        "jobs_queue_sampled_timestamp_seconds", "When queues were last measured, in seconds since the epoch."
    )
    if found:
        sampled.add_metric((), max(each.at for each in found).timestamp())
    yield sampled


def _dead_letters() -> Iterator[Metric]:
    total = GaugeMetricFamily("jobs_dead_letters", "Letters that are dead now, by queue.", labels=("queue",))
    for name, number in _dead_by("queue"):
        total.add_metric((name,), number)
    by_task = GaugeMetricFamily(
        "jobs_task_dead_letters", "Letters that are dead now, by task.", labels=("task",)
    )
    for name, number in _dead_by("task"):
        by_task.add_metric((name,), number)
    yield from (total, by_task)


def _dead_by(column: Literal["queue", "task"]) -> Iterator[tuple[str, int]]:
    """Yield counts by name; the names beyond MOST_NAMES, in their order, are counted together."""
    known = search.names(column) or []
    named = known[:MOST_NAMES]
    found = dead_by(column, named)
    for each in named:
        if each != OTHERS:
            yield each, found.get(each, 0)
    if len(known) > len(named) or not known or OTHERS in named:
        dead = DeadLetter.objects.filter(state=LetterState.DEAD).count()
        if known:
            dead -= sum(number for each, number in found.items() if each != OTHERS)
        yield OTHERS, max(0, dead)


def _workers(now: datetime) -> Iterator[Metric]:
    boots = workers.boots_now(now=now)
    online = [boot for boot in boots if boot.is_online]
    names = {boot.hostname for boot in online}
    lost = {boot.hostname for boot in boots if boot.state == workers.LOST} - names
    found = GaugeMetricFamily("jobs_workers", "Workers with the agent, by state.", labels=("state",))
    found.add_metric(("online",), len(names))
    found.add_metric(("lost",), len(lost))
    yield found
    slots = sum(boot.concurrency or 0 for boot in online)
    yield GaugeMetricFamily("jobs_worker_slots", "Jobs that online workers can run at once.", value=slots)
    running = sum(len(boot.running) for boot in online)
    yield GaugeMetricFamily("jobs_running", "Jobs that online workers run now.", value=running)


def _outbox(now: datetime) -> Iterator[Metric]:
    found = outbox.overview(now=now)
    messages = GaugeMetricFamily(
        "jobs_outbox_messages", "Messages in the outbox; the stuck are among the waiting.", labels=("state",)
    )
    for state, number in (
        ("waiting", found.pending),
        ("stuck", found.stuck),
        ("held", found.held),
        ("gave_up", found.gave_up),
    ):
        messages.add_metric((state,), number)
    yield messages
    yield GaugeMetricFamily(
        "jobs_outbox_lag_seconds",
        "Seconds the oldest message that is due has waited.",
        value=found.lag_seconds,
    )


def _collector(now: datetime) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "jobs_collector_lag_seconds", "Seconds for which records have waited to be collected."
    )
    if (seconds := collector_lag(now=now)) is not None:
        lag.add_metric((), seconds)
    yield lag
    backlog = GaugeMetricFamily(
        "jobs_collector_backlog", "Records that wait to be collected.", labels=("queue",)
    )
    found = queues.collector_backlog(now=now)
    if found is not None and not found.is_stale:
        for queue, number in zip(queues.OWN_QUEUES, (found.dead, found.runs), strict=True):
            if number is not None:
                backlog.add_metric((queue,), number)
    yield backlog


def _alerts() -> Metric:
    rows = Alert.objects.filter(state=AlertState.FIRING).order_by().values_list("rule__severity")
    found = dict(rows.annotate(number=Count("pk")))
    metric = GaugeMetricFamily("jobs_alerts_firing", "Alerts that fire now.", labels=("severity",))
    for severity in Severity:
        metric.add_metric((severity.value,), found.get(severity.value, 0))
    return metric


def _duties() -> Metric:
    names = [duty.name for duty in all_duties()]
    undone = {each.duty for each in leases.undone(names)}
    metric = GaugeMetricFamily(
        "jobs_duty_carried_out", "1 while a runops carries the duty out without trouble.", labels=("duty",)
    )
    for name in names:
        metric.add_metric((name,), float(name not in undone))
    return metric
