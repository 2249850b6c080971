"""What the page of one operation shows, and a row of the list: words and parts, counted by jobs.operations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count

from console.console_health import why_undone
from console.presenters.plain import count_of, duration, short_task
from jobs import leases, operations
from jobs.core.words import ItemState, OperationKind, OperationState
from jobs.models import Operation, OperationEvent, OperationItem
from jobs.operations import Progress, StageRow

LOG_SHOWN = 200
LIST_SIZE = 30
ALREADY_DONE_SHOWN = 10
# Somebody who comes back later undoes a purge by the button of its page, with a reason.
UNDO_OFFERED = timedelta(hours=1)
ACTIVE = frozenset({OperationState.RUNNING, OperationState.PAUSED, OperationState.STOPPED})
# The icon and tone of a line in the log, by its kind.
EVENT_LOOKS: dict[str, tuple[str, str]] = {
    "confirmed": ("lock", "second"),
    "started": ("play", "blue"),
    "stage": ("play", "blue"),
    "passed": ("done", "green"),
    "stopped": ("stopped", "amber"),
    "paused": ("pause", "grey"),
    "resumed": ("play", "blue"),
    "cancelled": ("close", "grey"),
    "rate": ("clock", "second"),
    "died": ("failed", "red"),
    "resumed_after_crash": ("warning", "amber"),
    "finished": ("done", "green"),
    "note": ("pencil", "second"),
}
STAGE_LOOKS: dict[str, tuple[str, str, str]] = {
    "waiting": ("clock", "grey", "Waiting"),
    "running": ("play", "blue", "Running"),
    "passed": ("done", "green", "Finished"),
    "stopped": ("stopped", "amber", "Stopped itself"),
    "cancelled": ("close", "grey", "Cancelled"),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the figures that add up to the total."""

    name: str
    icon: str
    tone: str
    count: int
    fact: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """A row of the stages table."""

    row: StageRow
    icon: str
    tone: str
    word: str
    size: str
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log."""

    event: OperationEvent
    icon: str
    tone: str
    text: str


@dataclass(frozen=True, slots=True)
class OperationPage:
    """Everything on the page but the chart."""

    operation: Operation
    progress: Progress
    title: str
    badge_suffix: str
    moved: int
    moved_words: str
    percent: int
    parts: list[tuple[str, int]]
    figures: list[Figure]
    stages: list[Stage]
    log: list[LogLine]
    log_left_out: int
    left_words: str
    lasted_words: str
    ends_at: datetime | None
    is_active: bool
    keeps_changing: bool
    is_replay: bool
    can_continue: bool
    can_restore: int
    offers_undo: bool
    only_letter: str
    outcome_tone: str
    rate_words: str
    already_done: list[OperationItem]


@dataclass(frozen=True, slots=True)
class OperationRow:
    """A row of the list: the operation, its parts and a sentence."""

    operation: Operation
    parts: list[tuple[str, int]]
    percent: int
    words: str


@dataclass(frozen=True, slots=True)
class OperationList:
    """A page of the list; ``next_before`` is the number to go on from."""

    rows: list[OperationRow]
    next_before: int | None
    running: int
    is_first: bool


def read(operation: Operation, *, now: datetime) -> OperationPage:
    """Read the page of one operation, in a fixed number of queries."""
    events = OperationEvent.objects.filter(operation=operation).select_related("letter")
    restorable = operations.purged_letters(operation).count() if operation.kind == OperationKind.PURGE else 0
    return present(
        operation,
        operations.progress(operation, now=now),
        events=list(events[:LOG_SHOWN]),
        events_total=events.count(),
        restorable=restorable,
        already_done=already_done(operation) if operation.kind == OperationKind.REPLAY else [],
        now=now,
    )


def already_done(operation: Operation) -> list[OperationItem]:
    """Return the first of the letters whose key another job had done, with their letters."""
    found = OperationItem.objects.filter(operation=operation, state=ItemState.ALREADY_DONE)
    return list(found.select_related("letter").order_by("pk")[:ALREADY_DONE_SHOWN])


def restores_of(operation: Operation) -> list[Operation]:
    """Return the operations that brought letters of a purge back."""
    return list(operation.restored_by.order_by("pk")[:10]) if operation.kind == OperationKind.PURGE else []


def standstill(operation: Operation) -> str:
    """Say why a running operation does not go on, "" when it does. Two queries while it runs."""
    if operation.state != OperationState.RUNNING:
        return ""
    undone = leases.undone(["operations"])
    if not undone:
        return ""
    words = why_undone(undone[0])
    # A batch is marked before it goes to the broker.
    is_replay = operation.kind == OperationKind.REPLAY
    return f"{words} What is counted as sent last may not be sent yet." if is_replay else words


def read_list(*, now: datetime, before: int | None) -> OperationList:
    """Read a page of the list, newest first."""
    found = Operation.objects.order_by("-pk")
    if before is not None:
        found = found.filter(pk__lt=before)
    operations_read = list(found[: LIST_SIZE + 1])
    shown = operations_read[:LIST_SIZE]
    counts = _counts(shown)
    return OperationList(
        rows=[_list_row(operation, counts.get(operation.pk, {})) for operation in shown],
        next_before=shown[-1].pk if len(operations_read) > LIST_SIZE else None,
        running=Operation.objects.filter(state=OperationState.RUNNING).count(),
        is_first=before is None,
    )


def _counts(found: list[Operation]) -> dict[int, dict[str, int]]:
    """Count the items of replays by state, in one query."""
    replays = [operation.pk for operation in found if operation.kind == OperationKind.REPLAY]
    counts: dict[int, dict[str, int]] = {}
    rows = (
        OperationItem.objects.filter(operation__in=replays)
        .order_by()
        .values_list("operation", "state")
        .annotate(number=Count("pk"))
    )
    for operation_id, state, number in rows:
        counts.setdefault(operation_id, {})[state] = number
    return counts


def _list_row(operation: Operation, counts: dict[str, int]) -> OperationRow:
    if operation.kind == OperationKind.REPLAY:
        waiting = counts.get(ItemState.SENT, 0)
        parts = [
            ("done", counts.get(ItemState.DONE, 0)),
            ("already", counts.get(ItemState.ALREADY_DONE, 0)),
            ("died", counts.get(ItemState.DIED, 0)),
            ("unknown", counts.get(ItemState.UNKNOWN, 0)),
            ("skipped", counts.get(ItemState.SKIPPED, 0) + counts.get(ItemState.REFUSED, 0)),
            ("waiting", waiting),
        ]
        total = max(operation.selected_count, sum(counts.values()))
        names = {"died": "died again", "already": "already done"}
    else:
        parts = [("done", operation.changed_count)]
        total = max(operation.selected_count, operation.changed_count)
        names = {"done": "purged" if operation.kind == OperationKind.PURGE else "restored"}
    moved = sum(number for _, number in parts)
    told = [f"{number:,} {names.get(name, name)}" for name, number in parts if number]
    return OperationRow(
        operation=operation,
        parts=[*parts, ("rest", total - moved)],
        percent=_percent(moved, total),
        words=", ".join(told) or "nothing yet",
    )


def present(
    operation: Operation,
    progress: Progress,
    *,
    events: list[OperationEvent],
    events_total: int,
    restorable: int,
    already_done: list[OperationItem],
    now: datetime,
) -> OperationPage:
    """Build the page.

    ``restorable`` is how many letters of a purge can still be brought back, ``already_done`` are the first of
    a replay whose key another job had done.
    """
    is_replay = operation.kind == OperationKind.REPLAY
    is_active = operation.state in ACTIVE
    moved = progress.sent if is_replay else progress.done
    verb = {"replay": "sent", "purge": "purged", "restore": "restored"}[operation.kind]
    finished = progress.done + progress.already_done + progress.died + progress.unknown
    ends_at = None
    if operation.state == OperationState.RUNNING and progress.seconds_left:
        ends_at = now + timedelta(seconds=progress.seconds_left)
    return OperationPage(
        operation=operation,
        progress=progress,
        title=f"{operation.get_kind_display()} of {count_of(operation.selected_count, 'letter')}",
        badge_suffix=_badge_suffix(operation, progress),
        moved=moved,
        moved_words=verb,
        percent=_percent(moved + progress.skipped + progress.refused, progress.total),
        parts=_parts(progress),
        figures=_figures(operation, progress, finished),
        stages=[_stage(row, operation, ends_at) for row in progress.stages],
        log=[_log_line(event) for event in events],
        log_left_out=max(0, events_total - len(events)),
        left_words=_left(operation, progress),
        lasted_words=_lasted(operation),
        ends_at=ends_at,
        is_active=is_active,
        # After a cancel the outcomes of what was sent still come.
        keeps_changing=is_active or progress.waiting > 0,
        is_replay=is_replay,
        can_continue=_can_continue(operation, progress),
        can_restore=restorable,
        offers_undo=bool(restorable) and _has_just_ended(operation, now),
        only_letter=_only_letter(operation),
        outcome_tone=_outcome_tone(operation, progress),
        rate_words=_rate_words(operation, progress),
        already_done=already_done,
    )


def _badge_suffix(operation: Operation, progress: Progress) -> str:
    current = next((row for row in progress.stages if row.state in {"running", "stopped"}), None)
    if current is None or operation.state not in ACTIVE or len(progress.stages) < 2:
        return ""
    return f", stage {current.number} of {len(progress.stages)}"


def _percent(part: int, whole: int) -> int:
    """Return a share without rounding up to 100."""
    return 100 * part // whole if whole else 0


def _parts(progress: Progress) -> list[tuple[str, int]]:
    return [
        ("done", progress.done),
        ("already", progress.already_done),
        ("died", progress.died),
        ("unknown", progress.unknown),
        ("skipped", progress.skipped + progress.refused),
        ("waiting", progress.waiting),
        ("rest", progress.not_sent),
    ]


def _figures(operation: Operation, progress: Progress, finished: int) -> list[Figure]:
    if operation.kind != OperationKind.REPLAY:
        verb = "Purged" if operation.kind == OperationKind.PURGE else "Restored"
        icon = "bin" if operation.kind == OperationKind.PURGE else "restore"
        changed = "had changed before it reached them" if progress.skipped else ""
        return [
            Figure(verb, icon, "grey" if icon == "bin" else "green", progress.done),
            Figure("Skipped", "shield", "second", progress.skipped, changed),
            Figure(
                "Not reached yet" if operation.state in ACTIVE else "Not reached",
                "envelope",
                "second",
                progress.not_sent,
            ),
        ]
    groups = len(progress.died_groups)
    died_share = f"{100 * progress.died / finished:.1f} %" if finished else ""
    rows = [
        Figure(
            "Done",
            "done",
            "green",
            progress.done,
            f"{100 * progress.done / finished:.1f} % of those finished" if finished else "none finished yet",
        ),
        Figure(
            "Died again",
            "failed",
            "red",
            progress.died,
            f"{died_share}, in {count_of(groups, 'group')}" if progress.died else "",
            href="#died" if progress.died else "",
        ),
        Figure("Skipped", "shield", "second", progress.skipped + progress.refused, _skipped_fact(progress)),
        Figure("Waiting for outcome", "clock", "blue", progress.waiting, _waiting_fact(progress)),
        Figure(
            "Not sent yet" if operation.state in ACTIVE else "Not sent",
            "envelope",
            "second",
            progress.not_sent,
        ),
    ]
    if progress.already_done:
        rows.insert(
            1,
            Figure(
                "Already done",
                "shield",
                "green",
                progress.already_done,
                "by another job; nothing ran",
                href="#already-done",
            ),
        )
    if progress.unknown:
        rows.insert(
            -2,
            Figure(
                "Outcome unknown",
                "question",
                "amber",
                progress.unknown,
                "no answer in time; the jobs may have run",
            ),
        )
    return rows


def _skipped_fact(progress: Progress) -> str:
    parts = []
    if progress.skipped:
        parts.append(f"{progress.skipped:,} had changed")
    if progress.refused:
        parts.append(f"{progress.refused:,} cannot be replayed")
    return ", ".join(parts)


def _waiting_fact(progress: Progress) -> str:
    if not progress.waiting or progress.oldest_waiting_seconds is None:
        return ""
    return f"oldest sent {duration(round(progress.oldest_waiting_seconds))} ago"


def _left(operation: Operation, progress: Progress) -> str:
    if operation.state == OperationState.PAUSED:
        return "paused"
    if operation.state != OperationState.RUNNING:
        return ""
    if not progress.not_sent:
        return "waits for outcomes" if progress.waiting else "about to finish"
    if progress.seconds_left is None:
        return ""
    return f"about {duration(max(1, round(progress.seconds_left)))} left"


def _lasted(operation: Operation) -> str:
    """Say how long an operation that has ended took."""
    if operation.started_at is None or operation.ended_at is None:
        return ""
    seconds = (operation.ended_at - operation.started_at).total_seconds()
    return duration(round(seconds)) if seconds >= 1 else "less than 1 s"


def _has_just_ended(operation: Operation, now: datetime) -> bool:
    return operation.ended_at is not None and now - operation.ended_at < UNDO_OFFERED


def _rate_words(operation: Operation, progress: Progress) -> str:
    """Say which rate is set, and which one it has."""
    rate = operation.rate_per_second
    words = "no limit" if rate is None else f"{rate:g} /s set"
    if progress.rate_measured is None:
        return words
    return f"{words}, {f'{progress.rate_measured:.1f}'.removesuffix('.0')} /s measured"


def _outcome_tone(operation: Operation, progress: Progress) -> str:
    """Return the class of the note that tells how it ended."""
    if operation.state == OperationState.STOPPED:
        return "note-amber"
    if operation.state != OperationState.FINISHED:
        return ""
    return "note-amber" if progress.died or progress.unknown else "note-green"


def _only_letter(operation: Operation) -> str:
    """Return the id of the letter when the operation was asked for one alone."""
    ids = operation.selection.get("ids") if isinstance(operation.selection, dict) else None
    return str(ids[0]) if ids and len(ids) == 1 else ""


def _stage(row: StageRow, operation: Operation, ends_at: datetime | None) -> Stage:
    is_held = row.state == "running" and operation.state == OperationState.PAUSED
    icon, tone, word = ("pause", "grey", "Paused") if is_held else STAGE_LOOKS[row.state]
    size = count_of(row.planned, "letter")
    if row.size is None and row.number > 1:
        size += ", the rest"
    is_last_running = row.state == "running" and row.size is None
    return Stage(row, icon, tone, word, size, ends_at if is_last_running else None)


def _log_line(event: OperationEvent) -> LogLine:
    icon, tone = EVENT_LOOKS.get(event.kind, ("info", "second"))
    # The link to the letter stands behind the text; its id need not stand before it as well.
    text = event.text.removeprefix(f"{event.letter.short_id} ") if event.letter else event.text
    return LogLine(event, icon, tone, text)


def _can_continue(operation: Operation, progress: Progress) -> bool:
    """Whether it only waits for outcomes, so that an operator may stop the waiting."""
    if operation.kind != OperationKind.REPLAY or operation.state != OperationState.RUNNING:
        return False
    if not operation.is_materialised or not progress.waiting:
        return False
    if not progress.stages:
        return not progress.not_sent
    current = next((row for row in progress.stages if row.state == "running"), None)
    return current is not None and current.waiting > 0 and current.sent >= current.planned


def died_title(title: str, task: str) -> str:
    """Return how a group is called in one line."""
    return f"{title} in {short_task(task)}" if task else title
