"""One task: its figures with what changed, its charts, where it runs, and how it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console import addresses, number_charts
from console.chart_parts import Marker, NumberChart
from console.presenters import figures, queue_page, worker_page
from console.presenters.figures import Tile
from console.presenters.plain import count_of, short_task, visible
from console.presenters.queue_page import TaskRow
from console.windows import PageWindow
from jobs import search
from jobs.core import query as core_query
from jobs.core.query import quote
from jobs.metrics import letters, names, reading
from jobs.metrics.reading import Figures
from jobs.models import Worker
from jobs.search import GroupRow
from jobs.workers import WORKERS_READ

GROUPS_SHOWN = 8
QUEUES_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Known:
    """What online or lately online workers tell of a task."""

    workers: list[str]
    parameters: str


@dataclass(frozen=True, slots=True)
class TaskPage:
    """What the page of a task shows."""

    name: str
    sentence: str
    tiles: list[Tile]
    queues: list[TaskRow]
    groups: list[GroupRow]
    dead: int
    letters_query: str
    known: Known
    series: list[Figures | None]

    @property
    def letters_href(self) -> str:
        """Where its dead letters are listed."""
        return addresses.letters_of(self.letters_query)

    @property
    def letters_words(self) -> str:
        """The link to them, with their count."""
        return count_of(self.dead, "dead letter")

    @property
    def groups_href(self) -> str:
        """Where its failure groups are listed."""
        return addresses.groups_of(self.letters_query)

    @property
    def jobs_href(self) -> str:
        """Where its finished attempts are listed."""
        return addresses.jobs_of(self.letters_query)


def read(name: str, page_window: PageWindow, *, now: datetime) -> TaskPage | None:
    """Read the page; None when nothing is known of such a task."""
    window = page_window.window
    numbers = reading.totals(window.start, window.end, task=name, now=now)
    dead = letters.dead_by("task", [name]).get(name, 0)
    known = _known(name)
    is_known = numbers.attempts or numbers.received or dead or known.workers
    if not is_known and name not in names.tasks_named(name, now=now):
        return None
    before = reading.totals(window.before().start, window.start, task=name, now=now)
    series = reading.series(window, task=name, now=now)
    minutes = reading.known_minutes(window, now=now)
    text = f"task:{quote(name)}"
    query = core_query.parse(text, now=now)
    return TaskPage(
        name=name,
        sentence=sentence(name, numbers, dead, page_window, is_known=bool(known.workers)),
        tiles=[
            _letters_tile(dead, numbers),
            *queue_page.number_tiles(
                numbers,
                before,
                minutes=minutes,
                before_minutes=reading.known_minutes(window.before(), now=now),
            ),
            _runtime_tile(numbers, before),
            _retries_tile(numbers, before),
        ],
        queues=queue_page.task_rows(
            reading.by_queue(window, task=name, now=now),
            reading.by_queue(window.before(), task=name, now=now),
            minutes=minutes,
        )[:QUEUES_SHOWN],
        groups=search.groups(query, limit=GROUPS_SHOWN, spark_buckets=0) if dead else [],
        dead=dead,
        letters_query=text,
        known=known,
        series=series,
    )


def charts(
    page: TaskPage, page_window: PageWindow, *, markers: Sequence[Marker], now: datetime
) -> list[tuple[NumberChart, str]]:
    """Draw how its jobs ended, how many died, how long they waited and ran.

    Each with what stands there when nothing of it is known.
    """
    window = page_window.window
    why = queue_page.nothing_ran(any(each is not None for each in page.series))
    return [
        (number_charts.throughput(window, page.series, markers=markers, now=now), why),
        (number_charts.failure_rate(window, page.series, markers=markers, now=now), why),
        (number_charts.latency(window, page.series, markers=markers, now=now), why),
        (number_charts.runtime(window, page.series, markers=markers, now=now), why),
    ]


def sentence(name: str, numbers: Figures, dead: int, page_window: PageWindow, *, is_known: bool) -> str:
    """Say what a tired person has to know first."""
    task = visible(short_task(name)[:80], keep="")
    waiting = ""
    if dead:
        waiting = f" {count_of(dead, 'dead letter')} {'waits' if dead == 1 else 'wait'} for somebody to look."
    lasting = f"in the last {page_window.length_words}" if page_window.window.name else "in this time"
    if not numbers.finished:
        unknown = "" if is_known else " No worker knows it now."
        return f"No job of {task} finished {lasting}.{unknown}{waiting}"
    if not numbers.dead:
        return f"All {count_of(numbers.done, 'job')} of {task} that finished {lasting} were done.{waiting}"
    rate = figures.share(numbers.failure_rate or 0.0)
    return f"{numbers.dead:,} of {count_of(numbers.finished, 'job')} that finished {lasting} died, {rate}.{waiting}"


def _letters_tile(dead: int, numbers: Figures) -> Tile:
    fact = f"{count_of(numbers.dead, 'job')} died in this time" if numbers.dead else "none died in this time"
    return Tile("Dead letters", f"{dead:,}", fact=fact)


def _runtime_tile(numbers: Figures, before: Figures) -> Tile:
    p95 = numbers.runtime_percentile(95)
    figure, unit = figures.split(figures.optional(p95, figures.seconds))
    return Tile(
        "Runtime p95",
        figure,
        unit,
        figures.change(p95, before.runtime_percentile(95), words=figures.seconds, more_is="worse"),
        queue_page.others(numbers.runtime_percentile(50), numbers.runtime_percentile(99)),
        why="" if p95 is not None else "Nothing ran in this time.",
    )


def _retries_tile(numbers: Figures, before: Figures) -> Tile:
    share, old = numbers.retry_rate, before.retry_rate
    figure, unit = figures.split(figures.optional(share, figures.share))
    return Tile(
        "Retried",
        figure,
        unit,
        figures.change(share, old, words=figures.share, difference=figures.points, more_is="worse"),
        f"{numbers.retried:,} of {count_of(numbers.attempts, 'attempt')}" if numbers.attempts else "",
        why="" if share is not None else "Nothing ran in this time.",
    )


def _known(name: str) -> Known:
    """Read which of the newest workers know it; their lists of tasks are long."""
    hostnames: list[str] = []
    parameters: Any = None
    for hostname, tasks in Worker.objects.order_by("-seen_at").values_list("hostname", "tasks")[
        :WORKERS_READ
    ]:
        if isinstance(tasks, dict) and name in tasks:
            hostnames.append(hostname)
            parameters = tasks[name] if parameters is None else parameters
    return Known(sorted(hostnames), worker_page.parameter_words(parameters))
