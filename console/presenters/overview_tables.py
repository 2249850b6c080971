"""The tables of the overview: queues and tasks in the window, with what waits and what died."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from console import addresses
from console.presenters import figures as words
from console.presenters import queue_list
from console.presenters.queue_list import Row
from jobs import overview_numbers, search
from jobs.core.query import quote
from jobs.core.windows import Window
from jobs.metrics import letters, reading
from jobs.overview_numbers import TaskRow

SHOWN = 50


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A queue as ``queue_list`` presents it, with its p99."""

    row: Row
    latency: str


@dataclass(frozen=True, slots=True)
class LettersLine:
    """A queue of which only dead letters are known."""

    name: str
    dead: int

    @property
    def letters_href(self) -> str:
        """Where they are listed."""
        return addresses.letters_of(f"queue:{quote(self.name)}" if self.name else "")


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task: figures are written, unknown ones as a dash."""

    name: str
    attempts: str
    done: str
    failure_rate: str
    is_failing_more: bool
    latency: str
    runtime: str
    dead: int
    deaths: list[int]

    @property
    def letters_href(self) -> str:
        """Where its dead letters are listed."""
        return addresses.letters_of(f"task:{quote(self.name)}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Tables:
    """What the chosen tab shows; ``total`` counts its rows, the lists hold SHOWN of them at most."""

    by: str
    queues: list[QueueLine]
    others: list[LettersLine]
    tasks: list[TaskLine]
    total: int

    @property
    def shown(self) -> int:
        """How many rows the table has."""
        return len(self.queues) + len(self.others) + len(self.tasks)


def read(window: Window, *, by: str, now: datetime) -> Tables:
    """Read the chosen table; a fixed number of queries."""
    if by == "task":
        minutes = words.known_minutes(window, reading.series(window, now=now), now=now)
        rows, total = overview_numbers.by_task(window, limit=SHOWN, now=now)
        return Tables(by, [], [], [_task(row, minutes=minutes) for row in rows], total)
    found = queue_list.read(window, now=now).rows
    # The fullest first: here it is the work that waits which counts, not who consumes.
    found.sort(key=lambda row: (-((row.now.ready or 0) if row.now else 0), -row.dead, row.name))
    known = {row.name for row in found}
    names = [name for name in search.names("queue") or [] if name not in known]
    dead = letters.dead_by("queue", names) if names else {}
    others = [LettersLine(name, dead[name]) for name in names if dead.get(name)]
    others.sort(key=lambda line: (-line.dead, line.name))
    lines = [
        QueueLine(row, words.optional(row.figures.latency_percentile(99), words.seconds))
        for row in found[:SHOWN]
    ]
    return Tables(by, lines, others[: SHOWN - len(lines)], [], len(found) + len(others))


def _task(row: TaskRow, *, minutes: float) -> TaskLine:
    figures = row.figures
    return TaskLine(
        name=row.name,
        attempts=words.optional(words.rate(figures.attempts, minutes), words.a_minute),
        done=words.optional(words.rate(figures.done, minutes), words.a_minute),
        failure_rate=words.optional(figures.failure_rate, words.share),
        is_failing_more=queue_list.is_worse(figures.failure_rate, row.before.failure_rate),
        latency=words.optional(figures.latency_percentile(99), words.seconds),
        runtime=words.optional(figures.runtime_percentile(95), words.seconds),
        dead=row.dead,
        deaths=row.deaths,
    )
