"""The list of jobs in words: what it holds, what has no record, what to do when it is empty."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from console import times
from console.forms.run_search import RunSearchBox
from console.presenters.plain import count_of, duration
from jobs import conf
from jobs.core.run_query import RunQuery
from jobs.metrics import reading, runs
from jobs.metrics.reading import Figures
from jobs.metrics.runs import RunPage, Scope
from jobs.models import Run

_ID_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt, ready to be printed; a duration that is not known is a dash with the reason in its title."""

    run: Run
    short_id: str
    error: str
    latency: str
    runtime: str
    latency_title: str
    runtime_title: str


@dataclass(frozen=True, slots=True)
class JobList:
    """What stands around the table. ``gap`` says what has no record."""

    sentence: str
    gap: str
    count: str
    rows: list[Row]


def kept() -> timedelta:
    """Return how long a record is kept."""
    return conf.current().run_retention


def present(query: RunQuery, page: RunPage, *, now: datetime) -> JobList:
    """Put a page into words; a fixed number of queries."""
    scope = runs.scope_of(query, kept=kept())
    figures, gaps = None, []
    if scope is not None and scope.start < scope.end:
        figures = reading.totals(scope.start, scope.end, task=scope.task, queue=scope.queue, now=now)
        gaps = _gaps(scope, figures, now=now)
    return JobList(
        sentence=_sentence(query, page, figures, now=now),
        gap=" ".join(gaps),
        count=_count(page),
        rows=[row(run) for run in page.runs],
    )


def row(run: Run) -> Row:
    """Write the numbers of an attempt."""
    return Row(
        run=run,
        short_id=run.task_id[:_ID_SHOWN],
        error=run.error_type.rsplit(".", 1)[-1],
        latency="–" if run.latency_seconds is None else duration(run.latency_seconds),
        runtime="–" if run.runtime_seconds is None else duration(run.runtime_seconds),
        latency_title=(
            "Not known: its publisher has no agent, or it never started."
            if run.latency_seconds is None
            else ""
        ),
        runtime_title="It never started." if run.runtime_seconds is None else "",
    )


def hours(length: timedelta) -> str:
    """Say how long records are kept: "24 h"."""
    return f"{length.total_seconds() / 3600:g} h"


def shorter_searches(box: RunSearchBox) -> list[tuple[str, str]]:
    """Return each term with the address of the search without it."""
    return [(chip.text, chip.without) for chip in box.chips][:3]


def _sentence(query: RunQuery, page: RunPage, figures: Figures | None, *, now: datetime) -> str:
    when = _when(query, now)
    if figures is None or not figures.attempts:
        if not page.total:
            return "Nothing matches." if query.terms else f"No attempt was reported {when}."
        return f"{_count(page)} {'matches' if page.total == 1 else 'match'}, the newest first."
    parts = [
        f"{number:,} {word}"
        for number, word in (
            (figures.done, "done"),
            (figures.retried, "retried"),
            (figures.dead, "died"),
            (figures.revoked, "revoked"),
            (figures.ignored, "ignored"),
        )
        if number
    ]
    return f"{count_of(figures.attempts, 'attempt')} finished {when}: {', '.join(parts)}."


def _when(query: RunQuery, now: datetime) -> str:
    if query.until is not None:
        first = query.since or now - kept()
        return "between {} and {} UTC".format(*times.clock_range(first, query.until, now=now))
    if query.since is None:
        return f"in the last {hours(kept())}"
    return f"since {times.clock(query.since, now=now)} UTC"


def _gaps(scope: Scope, figures: Figures, *, now: datetime) -> list[str]:
    """Say which of the attempts that were counted have no record, and why."""
    found = []
    if missing := figures.dropped:
        one = missing == 1
        them = "it" if one else "them"
        found.append(
            f"{missing:,} of these {figures.attempts:,} attempts {'has' if one else 'have'} no record: "
            f"a worker left {them} out under load, or by sampling."
        )
    oldest = runs.oldest_at()
    first = scope.end if oldest is None else oldest.replace(second=0, microsecond=0)
    if scope.start < first:
        earlier = figures
        if first < scope.end:
            earlier = reading.totals(scope.start, first, task=scope.task, queue=scope.queue, now=now)
        if earlier.attempts:
            back = f"Records reach back to {times.clock(oldest, now=now)} UTC. " if oldest else ""
            found.append(
                f"{back}Of {count_of(earlier.attempts, 'attempt')}{' before that' if oldest else ''} only the count is kept."
            )
    if found:
        found.append("All counts and percentiles include them.")
    return found


def _count(page: RunPage) -> str:
    if page.has_more:
        return f"More than {page.total:,} recorded attempts"
    return count_of(page.total, "recorded attempt")
