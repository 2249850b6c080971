"""How far an operation is, for its page and for a script that waits for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Min
from django.db.models.functions import TruncDay, TruncHour, TruncMinute, TruncSecond

from jobs.core.words import ItemState, OperationKind, OperationState
from jobs.models import Operation, OperationItem, OperationStage
from jobs.operations.counting import counts_of, item_counts, sent_bounds

RATE_WINDOW_SECONDS = 10
SERIES_POINTS = 120


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage with its counts. ``state`` is waiting, running, passed, stopped or cancelled.

    ``done`` are those whose job ran to its end, ``already_done`` those whose key another job had done.

    ``planned`` is how many letters it has, as far as that is known; ``share_percent`` is how many of
    the finished died again or are unknown, None before any has finished.
    """

    number: int
    size: int | None
    planned: int
    state: str
    sent: int
    done: int
    died: int
    unknown: int
    waiting: int
    share_percent: float | None
    started_at: datetime | None
    ended_at: datetime | None
    already_done: int = 0


@dataclass(frozen=True, slots=True)
class DiedGroup:
    """A group in which letters of this operation died again."""

    group_id: int
    title: str
    task: str
    count: int


@dataclass(frozen=True, slots=True)
class SentBucket:
    """What was sent from ``start`` on, by what has become of it since."""

    start: datetime
    done: int
    died: int
    waiting: int
    already_done: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts that add up: ``total`` = done + already_done + died + unknown + waiting + skipped + refused
    + not_sent.

    For a purge or a restore ``done`` are the letters changed, ``skipped`` those that had changed
    before it reached them. ``rate_measured`` is letters a second over the last ten, None when it is
    not sending. ``seconds_left`` is None when it cannot be known.
    """

    total: int
    done: int
    died: int
    skipped: int
    refused: int
    waiting: int
    unknown: int
    not_sent: int
    sent: int
    rate_measured: float | None = None
    seconds_left: float | None = None
    oldest_waiting_seconds: float | None = None
    stages: list[StageRow] = field(default_factory=list)
    died_groups: list[DiedGroup] = field(default_factory=list)
    bucket_seconds: int = 1
    sent_series: list[SentBucket] = field(default_factory=list)
    # Letters whose key another job had done: nothing ran.
    already_done: int = 0

    @property
    def did_all(self) -> bool:
        """Say whether all that was asked happened, by this operation or before."""
        return self.done + self.already_done == self.total


def progress(operation: Operation, *, now: datetime) -> Progress:
    """Count an operation, in a fixed number of queries."""
    if operation.kind != OperationKind.REPLAY:
        return _walk_progress(operation, now)
    counts = item_counts(operation)
    known = sum(counts.values())
    total = max(operation.selected_count, known)
    is_over = operation.is_materialised or operation.state == OperationState.FINISHED
    # Before all items are written the rest is not sent; afterwards it was taken by somebody else
    # before its item could be written.
    unlisted = total - known
    waiting = counts.get(ItemState.SENT, 0)
    done, died = counts.get(ItemState.DONE, 0), counts.get(ItemState.DIED, 0)
    already_done = counts.get(ItemState.ALREADY_DONE, 0)
    unknown = counts.get(ItemState.UNKNOWN, 0)
    not_sent = counts.get(ItemState.PENDING, 0) + (0 if is_over else unlisted)
    items = OperationItem.objects.filter(operation=operation)
    is_running = operation.state == OperationState.RUNNING
    recent = (
        items.filter(sent_at__gt=now - timedelta(seconds=RATE_WINDOW_SECONDS)).count() if is_running else 0
    )
    measured = recent / RATE_WINDOW_SECONDS if recent else None
    oldest = (
        items.filter(state=ItemState.SENT).aggregate(oldest=Min("sent_at"))["oldest"] if waiting else None
    )
    seconds, series = _sent_series(operation)
    return Progress(
        total=total,
        done=done,
        died=died,
        skipped=counts.get(ItemState.SKIPPED, 0) + (unlisted if is_over else 0),
        refused=counts.get(ItemState.REFUSED, 0),
        waiting=waiting,
        unknown=unknown,
        not_sent=not_sent,
        sent=done + already_done + died + unknown + waiting,
        rate_measured=measured,
        seconds_left=_seconds_left(operation, not_sent, measured) if is_running else None,
        oldest_waiting_seconds=None if oldest is None else max(0.0, (now - oldest).total_seconds()),
        stages=_stages(operation, pending=not_sent),
        died_groups=_died_groups(operation) if died else [],
        bucket_seconds=seconds,
        sent_series=series,
        already_done=already_done,
    )


def _walk_progress(operation: Operation, now: datetime) -> Progress:
    total = max(operation.selected_count, operation.changed_count)
    done = operation.changed_count
    rest = total - done
    measured = None
    if operation.state == OperationState.RUNNING and operation.started_at is not None and done:
        measured = done / max(0.001, (now - operation.started_at).total_seconds())
    return Progress(
        total=total,
        done=done,
        died=0,
        skipped=rest if operation.state == OperationState.FINISHED else 0,
        refused=0,
        waiting=0,
        unknown=0,
        not_sent=0 if operation.state == OperationState.FINISHED else rest,
        sent=done,
        rate_measured=measured,
        seconds_left=rest / measured if measured else None,
    )


def _seconds_left(operation: Operation, not_sent: int, measured: float | None) -> float | None:
    if not not_sent:
        return 0.0
    rate = operation.rate_per_second
    # A measured rate below the set one is what the brokers and databases manage.
    pace = measured if rate is None else rate if measured is None else min(rate, measured)
    return None if pace is None else not_sent / pace


def _stages(operation: Operation, *, pending: int) -> list[StageRow]:
    stages = list(OperationStage.objects.filter(operation=operation).order_by("number"))
    if not stages:
        return []
    by_stage: dict[int, dict[str, int]] = {}
    rows = (
        OperationItem.objects.filter(operation=operation, stage__gt=0)
        .order_by()
        .values_list("stage", "state")
        .annotate(number=Count("pk"))
    )
    for number, state, count in rows:
        by_stage.setdefault(number, {})[state] = count
    result: list[StageRow] = []
    left = pending
    has_current = False
    for stage in stages:
        is_current = stage.ended_at is None and not has_current
        has_current = has_current or is_current
        counts = counts_of(stage, by_stage.get(stage.number, {}), pending=left)
        planned = counts.sent + (0 if stage.ended_at else counts.left)
        left -= 0 if stage.ended_at else counts.left
        finished = counts.done + counts.already_done + counts.died + counts.unknown
        result.append(
            StageRow(
                number=stage.number,
                size=stage.size,
                planned=planned,
                state=_stage_state(operation, stage, is_current=is_current),
                sent=counts.sent,
                done=counts.done,
                died=counts.died,
                unknown=counts.unknown,
                waiting=counts.waiting,
                share_percent=100 * (counts.died + counts.unknown) / finished if finished else None,
                started_at=stage.started_at,
                ended_at=stage.ended_at,
                already_done=counts.already_done,
            )
        )
    return result


def _stage_state(operation: Operation, stage: OperationStage, *, is_current: bool) -> str:
    if stage.ended_at is not None:
        return "passed"
    if operation.state == OperationState.CANCELLED:
        return "cancelled"
    if not is_current:
        return "waiting"
    if operation.state == OperationState.STOPPED:
        return "stopped"
    return "running" if stage.started_at is not None else "waiting"


def _died_groups(operation: Operation) -> list[DiedGroup]:
    rows = (
        OperationItem.objects.filter(operation=operation, state=ItemState.DIED)
        .order_by()
        .values(
            group=F("letter__group_id"), title=F("letter__group__title"), of_task=F("letter__group__task")
        )
        .annotate(number=Count("pk"))
        .order_by("-number", "group")[:20]
    )
    return [DiedGroup(row["group"], row["title"], row["of_task"], row["number"]) for row in rows]


def _sent_series(operation: Operation) -> tuple[int, list[SentBucket]]:
    """Count what was sent by time, in at most about SERIES_POINTS buckets of whole seconds."""
    first, last = sent_bounds(operation)
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        return 1, []
    span = (last - first).total_seconds()
    # The database cuts to seconds, minutes, hours or days; rows of a long operation stay few.
    cut: Any = TruncSecond
    for limit, function in ((4_000, TruncMinute), (240_000, TruncHour), (14_400_000, TruncDay)):
        if span > limit:
            cut = function
    rows = (
        OperationItem.objects.filter(operation=operation, sent_at__isnull=False)
        .order_by()
        .values_list(cut("sent_at"), "state")
        .annotate(number=Count("pk"))
    )
    width = next(
        (
            s
            for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200)
            if span / s <= SERIES_POINTS
        ),
        86_400,
    )
    start = first.replace(microsecond=0)
    buckets: dict[int, list[int]] = {}
    column = {ItemState.DONE.value: 0, ItemState.DIED.value: 1, ItemState.ALREADY_DONE.value: 3}
    for moment, state, number in rows:
        place = int((moment - start).total_seconds() // width)
        buckets.setdefault(place, [0, 0, 0, 0])[column.get(state, 2)] += number
    return width, [
        SentBucket(start + timedelta(seconds=place * width), *numbers)
        for place, numbers in sorted(buckets.items())
    ]
