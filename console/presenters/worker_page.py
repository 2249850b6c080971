"""One worker: what it runs now, what it knows, and what became of its jobs when it was lost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from console import addresses, times
from console.presenters import figures, worker_list
from console.presenters.figures import Tile
from console.presenters.letter_story import Notice
from console.presenters.plain import count_of, visible
from console.presenters.worker_list import Row
from jobs.core.query import quote
from jobs.metrics import workers
from jobs.metrics.workers import BootNow
from jobs.models import Worker
from jobs.queues import redelivery
from jobs.queues.consumers import taken_by

RUNNING_SHOWN = 100
TASKS_SHOWN = 200
_NAME_LIMIT = 120
# Only these can stop a job that runs.
_STOPPING_POOLS = ("prefork", "gevent", "eventlet")
_RESIZABLE_POOLS = ("prefork", "gevent", "eventlet")


@dataclass(frozen=True, slots=True)
class RunningRow:
    """A job that runs now; ``acknowledged`` says what follows if the worker dies."""

    task_id: str
    task: str
    queue: str
    attempt: int
    started_at: datetime | None
    acknowledged: str
    acknowledged_title: str

    @property
    def short_id(self) -> str:
        """How a list calls the job."""
        return visible(self.task_id[:8], keep="")

    @property
    def revoke_href(self) -> str:
        """The page that asks before it is revoked."""
        return addresses.revoke_page(self.task_id)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task that a worker knows, with its parameters where they are known."""

    name: str
    parameters: str


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """What the page of a worker shows."""

    hostname: str
    row: Row
    sentence: str
    notes: list[Notice]
    tiles: list[Tile]
    running: list[RunningRow]
    running_left_out: int
    tasks: list[TaskRow]
    has_agent: bool
    earlier: list[BootNow]

    @property
    def boot(self) -> BootNow | None:
        """What it reported last; None of a worker without the agent."""
        return self.row.boot

    @property
    def tiles_title(self) -> str:
        """Of when the figures are."""
        return "Now" if self.is_online else "When it was last heard of"

    @property
    def knows_parameters(self) -> bool:
        """Whether it told the parameters of some task."""
        return any(task.parameters for task in self.tasks)

    @property
    def is_online(self) -> bool:
        """Whether it can be told something."""
        return self.row.state == "online"

    @property
    def grow_href(self) -> str:
        """The page that asks before it grows."""
        return addresses.worker_action("grow", self.hostname)

    @property
    def shrink_href(self) -> str:
        """The page that asks before it shrinks."""
        return addresses.worker_action("shrink", self.hostname)

    @property
    def shut_down_href(self) -> str:
        """The page that asks before it is shut down."""
        return addresses.worker_action("shut-down", self.hostname)

    @property
    def why_not_resized(self) -> str:
        """Why its pool cannot grow, "" when it can."""
        if not self.is_online:
            return "It is not online."
        pool = self.row.boot.pool if self.row.boot is not None else self.row.pool
        if pool in _RESIZABLE_POOLS or not pool or pool == "–":
            return ""
        return f"Celery cannot change the size of a {visible(pool[:40], keep='')} pool while it runs."

    @property
    def why_not_shrunk(self) -> str:
        """Why its pool cannot shrink, "" when it can."""
        if self.why_not_resized:
            return self.why_not_resized
        concurrency = self.row.boot.concurrency if self.row.boot is not None else None
        if concurrency is not None and concurrency <= 1:
            return "It runs one job at a time: one less would take messages and run none."
        return ""

    @property
    def why_not_shut_down(self) -> str:
        """Why it cannot be shut down, "" when it can."""
        return "" if self.is_online else "It is not online."


def read(hostname: str, *, now: datetime) -> WorkerPage | None:
    """Read the page; None when no worker of that name is known. Two queries."""
    boots = workers.boots_now(hostname=hostname, now=now) if hostname else []
    described = Worker.objects.filter(hostname=hostname).first()
    # An online one first, then the newest.
    boots.sort(key=lambda boot: (not boot.is_online, -boot.started_at.timestamp()))
    boot = boots[0] if boots else None
    row = worker_list.row(boot, now=now) if boot is not None else None
    if row is None and described is not None:
        row = worker_list.silent_row(described, now=now)
    if row is None:
        return None
    running = [running_row(each) for each in boot.running] if boot is not None else []
    running.sort(key=lambda each: (each.started_at is None, each.started_at or now))
    return WorkerPage(
        hostname=hostname,
        row=row,
        sentence=_sentence(boot, row, now=now),
        notes=_notes(boots, described, now=now),
        tiles=[] if boot is None else _tiles(boot, now=now),
        running=running[:RUNNING_SHOWN],
        running_left_out=max(0, len(running) - RUNNING_SHOWN),
        tasks=_tasks(described),
        has_agent=boot is not None or (described is not None and described.has_agent),
        earlier=[each for each in boots[1:] if each.state == workers.LOST],
    )


def can_stop_jobs(pool: str) -> bool:
    """Tell whether a worker of this pool can stop a job that runs."""
    return pool in _STOPPING_POOLS or not pool


def _sentence(boot: BootNow | None, row: Row, *, now: datetime) -> str:
    if boot is None:
        ago = times.ago(row.seen_at, now=now)
        return f"{row.state_words} It answered last {ago}."
    seen = times.ago(boot.last_seen_at, now=now)
    if boot.state == workers.LOST:
        return f"It was lost: its last word came {seen}, and it has not said goodbye."
    if boot.state == workers.GONE:
        return f"It was stopped {seen}."
    for_so_long = times.span(max(0.0, (now - boot.started_at).total_seconds()))
    if not boot.running:
        return f"It runs nothing now and has been up for {for_so_long}."
    of = f" of the {boot.concurrency:,} that fit" if boot.concurrency else ""
    return f"It runs {count_of(len(boot.running), 'job')}{of} and has been up for {for_so_long}."


def _notes(boots: list[BootNow], described: Worker | None, *, now: datetime) -> list[Notice]:
    notes = [
        _lost_note(each, is_back=boots[0].is_online, now=now) for each in boots if each.state == workers.LOST
    ]
    if not boots and described is not None and not described.has_agent:
        notes.append(
            Notice(
                "amber",
                "info",
                "This worker has no agent.",
                "It answers Celery's remote control, so its queues and tasks are known. What it runs, its load, "
                "its numbers and its dead jobs are not. Attach the agent: from jobs.agent import attach; attach(app).",
            )
        )
    boot = boots[0] if boots else None
    if boot is not None and boot.state == workers.GONE and (left := _gone_note(boot)) is not None:
        notes.append(left)
    if boot is not None and boot.is_online and boot.dropped:
        notes.append(
            Notice(
                "amber",
                "warning",
                f"{count_of(boot.dropped, 'record')} of its finished attempts {'was' if boot.dropped == 1 else 'were'} dropped.",
                "The queue jobs.runs was too long. Counts and percentiles are whole; the list of jobs lacks them.",
            )
        )
    return notes


def _lost_note(boot: BootNow, *, is_back: bool, now: datetime) -> Notice:
    ago = times.ago(boot.last_seen_at, now=now)
    headline = f"It was lost {ago}" + (", and has started again since." if is_back else ".")
    parts = []
    if boot.jobs_lost:
        one = boot.jobs_lost == 1
        parts.append(
            f"{count_of(boot.jobs_lost, 'job')} that it had acknowledged before {'it' if one else 'they'} ran "
            f"{'is a dead letter' if one else 'are dead letters'} now."
        )
    if taken := _taken_words(boot, now=now):
        parts.append(taken)
    if not parts:
        parts.append("It ran nothing that went with it.")
    href = ""
    if boot.jobs_lost:
        href = addresses.letters_of(f"reason:worker_lost worker:{quote(boot.hostname)} state:any")
    return Notice("blue" if is_back else "red", "power", headline, " ".join(parts), href)


def _taken_words(boot: BootNow, *, now: datetime) -> str:
    """Say what a lost worker had taken and not acknowledged, and that it is handed out again, "" when nothing."""
    number = sum(taken_by(boot).values())
    if not number:
        return ""
    one = number == 1
    runs = sum(1 for each in boot.running if not each.get("is_acknowledged"))
    kinds = [(runs, "running"), (boot.reserved_total, "not begun"), (boot.held_total, "held for later")]
    listed = ", ".join(f"{count:,} {kind}" for count, kind in kinds if count)
    words = f"It had taken {count_of(number, 'message')} and not acknowledged {'it' if one else 'them'} ({listed})"
    again = redelivery.of_lost(boot)
    if again.by is None:
        at_once = " as soon as it sees that the connection is gone" if again.is_at_once else ""
        return f"{words}: the broker hands {'it' if one else 'them'} out again{at_once}."
    at = f"{again.by:%Y-%m-%d %H:%M} UTC"
    if again.by <= now:
        return f"{words}: Redis has had {'it' if one else 'them'} to hand out again since {at} at the latest."
    return (
        f"{words}: Redis hands {'it' if one else 'them'} out again when the visibility timeout is over, "
        f"by {at} at the latest."
    )


def _gone_note(boot: BootNow) -> Notice | None:
    """Tell what a worker that said goodbye had left, None when nothing."""
    number = sum(taken_by(boot).values())
    if not number:
        return None
    one = number == 1
    return Notice(
        "blue",
        "info",
        f"It had taken {count_of(number, 'message')} that it had not acknowledged.",
        f"A worker that stops gives {'it' if one else 'them'} back: the broker hands {'it' if one else 'them'} out again.",
    )


def _tiles(boot: BootNow, *, now: datetime) -> list[Tile]:
    running = worker_list.running_words(boot)
    memory, unit = (
        figures.split(figures.memory(boot.memory_bytes)) if boot.memory_bytes is not None else ("–", "")
    )
    beat = times.ago(boot.last_seen_at, now=now)
    silent = "" if boot.is_online else "It does not report."
    return [
        Tile("Running", running, "jobs" if boot.is_online else "", fact="at the same time", why=silent),
        Tile(
            "Taken",
            f"{boot.reserved_total:,}",
            fact=f"{boot.held_total:,} more held for later"
            if boot.held_total
            else "waiting for a free process"
            if boot.is_online
            else "and not begun",
        ),
        Tile(
            "Load",
            "–" if boot.load is None else f"{boot.load:.2f}",
            fact="machine, 1 min average",
            why="It does not tell." if boot.load is None else "",
        ),
        Tile(
            "Memory",
            memory,
            unit,
            fact="with its child processes",
            why="It does not tell." if boot.memory_bytes is None else "",
        ),
        Tile(
            "Attempts",
            f"{boot.attempts:,}",
            fact=f"{boot.dropped:,} without their record" if boot.dropped else "finished since it started",
        ),
        Tile(
            "Heartbeat",
            *_seen(beat),
            fact=f"started {times.ago(boot.started_at, now=now)}",
        ),
    ]


def _seen(words: str) -> tuple[str, str]:
    number, _, rest = words.partition(" ")
    return number, rest


def running_row(job: dict[str, Any]) -> RunningRow:
    """Put a job that runs into words."""
    started = job.get("started_at")
    is_acknowledged = bool(job.get("is_acknowledged"))
    attempt = job.get("attempt")
    return RunningRow(
        task_id=str(job.get("task_id") or ""),
        task=str(job.get("task") or ""),
        queue=str(job.get("queue") or ""),
        attempt=attempt + 1 if isinstance(attempt, int) else 1,
        started_at=datetime.fromtimestamp(started, UTC) if isinstance(started, (int, float)) else None,
        acknowledged="before it ran" if is_acknowledged else "when it is done",
        acknowledged_title=(
            "Nobody else has its message: if this worker dies, the job becomes a dead letter."
            if is_acknowledged
            else "The broker keeps its message: if this worker dies, the job is handed out again."
        ),
    )


def _tasks(described: Worker | None) -> list[TaskRow]:
    if described is None or not isinstance(described.tasks, dict):
        return []
    return [
        TaskRow(str(name), parameter_words(parameters))
        for name, parameters in sorted(described.tasks.items())[:TASKS_SHOWN]
    ]


def parameter_words(parameters: Any) -> str:
    """Write a signature: "order_id, amount=…, *args"."""
    if not isinstance(parameters, dict):
        return ""
    names = [str(name) for name in parameters.get("names") or []]
    required = parameters.get("required")
    needed = required if isinstance(required, int) else len(names)
    words = [name if index < needed else f"{name}=…" for index, name in enumerate(names)]
    if parameters.get("var_args"):
        words.append("*args")
    must = {str(name) for name in parameters.get("kwonly_required") or []}
    words += [str(name) if name in must else f"{name}=…" for name in parameters.get("kwonly") or []]
    if parameters.get("var_kwargs"):
        words.append("**kwargs")
    return visible(", ".join(words)[:_NAME_LIMIT], keep="")
