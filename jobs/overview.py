"""What needs attention now, in figures: read once a page, a fixed number of queries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Exists, OuterRef, Value

from jobs import conf, leases, search
from jobs.alerts import reading as alerts
from jobs.alerts.reading import OpenAlert
from jobs.core import query as core_query
from jobs.core.words import AlertKind, GroupState, LetterState, OperationState
from jobs.metrics import workers
from jobs.metrics.workers import BootNow
from jobs.models import DeadLetter, JobProgress, Operation
from jobs.operations import Progress, progress
from jobs.outbox import service as outbox
from jobs.outbox.service import OutboxOverview, relay_duty_name
from jobs.queues import reading as queues
from jobs.queues.reading import QueueNow
from jobs.search.timeline import counted_by_bucket

HOUR = timedelta(hours=1)
# A group whose last death is older than this has stopped failing, as far as one can see.
STILL_FAILING = timedelta(minutes=15)
SPARK_BUCKETS = 30
SHOWN_ALERTS = 5
SHOWN_GROUPS = 8
SHOWN_QUEUES = 5
SHOWN_WORKERS = 5
SHOWN_OPERATIONS = 5
# A job that has told how far it is within so long is in progress.
IN_PROGRESS = timedelta(minutes=5)
SHOWN_IN_PROGRESS = 10
# Duties of runops without which this page would say less than is true, or nothing that was asked happens.
_DUTIES = ("collector", "runs", "queues", "operations", "alerts", "notifications")


@dataclass(frozen=True, slots=True)
class FailingGroup:
    """A group that is new or came back and still fails, and since when.

    ``row`` counts the last hour, ``letters`` are all of its dead ones.
    """

    row: search.GroupRow
    letters: int
    since: datetime


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation that has not ended, with its progress."""

    operation: Operation
    progress: Progress


@dataclass(frozen=True, slots=True)
class Overview:
    """What needs attention and how many dead letters there are; ``deaths`` are the last hour's, in buckets.

    ``groups``, ``queues`` and ``boots`` are all of them, as they are now. ``remark`` is a sentence without its
    end about what workers told and could not be counted, "" when all could.
    """

    undone: list[leases.Undone]
    remark: str
    alerts: list[OpenAlert]
    groups: list[FailingGroup]
    operations: list[OpenOperation]
    in_progress: list[JobProgress]
    outbox: OutboxOverview
    queues: list[QueueNow]
    boots: list[BootNow]
    dead: int
    died_last_hour: int
    died_last_five_minutes: int
    groups_by_state: dict[GroupState, int]
    deaths: list[int]
    last_died_at: datetime | None

    @property
    def unconsumed(self) -> list[QueueNow]:
        """The queues on which messages wait and from which nobody takes them, the fullest first."""
        found = [queue for queue in self.queues if queue.is_unconsumed and not queue.is_stale]
        return sorted(found, key=lambda queue: (-(queue.ready or 0), queue.queue))

    @property
    def lost(self) -> list[BootNow]:
        """The workers that fell silent and did not come back, the newest loss first, one life of each."""
        found = [boot for boot in self.boots if boot.state == workers.LOST and not boot.is_followed]
        return sorted(found, key=lambda boot: (boot.last_seen_at, boot.hostname), reverse=True)

    @property
    def shown_alerts(self) -> list[OpenAlert]:
        """The most severe and the longest of the alerts."""
        return self.alerts[:SHOWN_ALERTS]

    @property
    def shown_groups(self) -> list[FailingGroup]:
        """The largest of the groups that fail, without those of which an alert tells already."""
        told = self._told(AlertKind.GROUP_FAILING)
        return [each for each in self.groups if str(each.row.group.pk) not in told][:SHOWN_GROUPS]

    @property
    def shown_queues(self) -> list[QueueNow]:
        """The fullest of the queues that nobody consumes, without those of which an alert tells already."""
        told = self._told(AlertKind.NO_CONSUMER)
        return [queue for queue in self.unconsumed if queue.queue not in told][:SHOWN_QUEUES]

    @property
    def shown_workers(self) -> list[BootNow]:
        """The newest of the lost workers, without those of which an alert tells already."""
        told = self._told(AlertKind.WORKER_LOST)
        return [boot for boot in self.lost if boot.hostname not in told][:SHOWN_WORKERS]

    def _told(self, kind: AlertKind) -> set[str]:
        return {each.alert.subject for each in self.shown_alerts if each.rule.kind == kind}

    @property
    def online_count(self) -> int:
        """How many workers report."""
        return len({boot.hostname for boot in self.boots if boot.is_online})

    @property
    def attention_count(self) -> int:
        """How many things need attention."""
        return sum(
            (
                bool(self.undone),
                len(self.shown_alerts),
                len(self.shown_groups),
                len(self.shown_queues),
                len(self.shown_workers),
                bool(self.outbox.stuck),
                len(self.operations),
            )
        )

    @property
    def group_count(self) -> int:
        """How many groups have a dead letter."""
        return sum(self.groups_by_state.values())


def overview(*, now: datetime) -> Overview:
    """Read the overview as it is at ``now``."""
    everything = core_query.parse("", now=now)
    letters = DeadLetter.objects.filter(state=LetterState.DEAD)
    firing = alerts.open_alerts(now=now)
    relays = [relay_duty_name(using) for using in conf.current().outbox_databases]
    return Overview(
        undone=leases.undone([*_DUTIES, *relays]),
        remark=leases.remark_of("runs"),
        alerts=firing,
        groups=_failing_groups(now=now),
        operations=_open_operations(now=now),
        in_progress=_in_progress(now=now),
        outbox=outbox.overview(now=now),
        queues=queues.now_of_all(now=now),
        boots=workers.boots_now(now=now),
        dead=letters.count(),
        died_last_hour=_died(now - HOUR, now),
        died_last_five_minutes=_died(now - timedelta(minutes=5), now),
        groups_by_state=search.group_states(everything),
        deaths=_deaths(now=now)
        if any(each.rule.kind == AlertKind.LETTERS_GROWING for each in firing)
        else [],
        last_died_at=letters.values_list("died_at", flat=True).first(),
    )


def _died(since: datetime, until: datetime) -> int:
    """Count the letters whose newest death lies in a span, whatever became of them since."""
    # All states by name, so that the index that begins with the state is used.
    states = [state.value for state in LetterState]
    return DeadLetter.objects.filter(state__in=states, died_at__gte=since, died_at__lt=until).count()


def _deaths(*, now: datetime) -> list[int]:
    """Count the deaths of the last hour in buckets, one query."""
    step = HOUR / SPARK_BUCKETS
    found = [0] * SPARK_BUCKETS
    states = [state.value for state in LetterState]
    counted = DeadLetter.objects.filter(state__in=states).order_by().values(one=Value(1))
    bounds = [now - HOUR + step * number for number in range(SPARK_BUCKETS + 1)]
    for bucket, number in counted_by_bucket(
        counted.annotate(number=Count("pk")).values_list("number"), bounds
    ):
        found[bucket] = number
    return found


def _failing_groups(*, now: datetime) -> list[FailingGroup]:
    states = (GroupState.NEW, GroupState.REGRESSED)
    # Their dead letters, whenever they died; and the last hour for the bars and the order.
    recent = search.groups(
        core_query.parse(f"since:{core_query.iso(now - HOUR)}", now=now),
        states=states,
        spark_buckets=SPARK_BUCKETS,
    )
    failing = [row for row in recent if now - row.last_died_at <= STILL_FAILING]
    if not failing:
        return []
    whole = search.groups(core_query.parse("", now=now), states=states, spark_buckets=0)
    totals = {row.group.pk: row.letters for row in whole}
    return [
        FailingGroup(
            row=row,
            letters=totals.get(row.group.pk, row.letters),
            since=row.group.regressed_at or row.group.first_seen_at,
        )
        for row in failing
    ]


def _open_operations(*, now: datetime) -> list[OpenOperation]:
    states = (OperationState.RUNNING, OperationState.PAUSED, OperationState.STOPPED)
    found = Operation.objects.filter(state__in=states).order_by("-id")[:SHOWN_OPERATIONS]
    return [OpenOperation(operation=each, progress=progress(each, now=now)) for each in found]


def _in_progress(*, now: datetime) -> list[JobProgress]:
    """Return the jobs that have told of their progress lately, the longest running first, so that none moves.

    What a job told that died is kept with its dead letter, and is no progress.
    """
    dead = DeadLetter.objects.filter(task_id=OuterRef("task_id"), state=LetterState.DEAD)
    told = JobProgress.objects.filter(updated_at__gte=now - IN_PROGRESS).exclude(Exists(dead))
    newest = list(told.order_by("-updated_at", "-pk")[:SHOWN_IN_PROGRESS])
    return sorted(newest, key=lambda row: (row.started_at, row.pk))
