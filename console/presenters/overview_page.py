"""The overview as its page shows it: what needs attention, tiles, charts, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from console import number_charts, overview_words
from console.chart_parts import NumberChart
from console.number_charts import Marker
from console.overview_words import Standstill
from console.presenters import overview_attention, overview_tables, overview_tiles, progress_view
from console.presenters.overview_attention import AttentionRow
from console.presenters.overview_tables import Lines
from console.presenters.overview_tiles import Tile
from console.presenters.progress_view import ProgressLine
from console.recent import keep, recent
from console.windows import PageWindow
from jobs import overview, overview_numbers
from jobs.core.words import AlertKind
from jobs.overview import Overview
from jobs.overview_numbers import Charts, Numbers, Table

# How old what a poll is told may be: what is so now, and what changes with the steps of a window.
NOW_SECONDS = 3.5
STEP_SECONDS = 20.0
LONG_STEP_SECONDS = 60.0

By = Literal["queue", "task"]


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """What is on the page; ``charts`` is None for a poll, which asks for them apart and less often."""

    overview: Overview
    sentence: str
    standstill: Standstill | None
    alerts: list[AttentionRow]
    queues: list[AttentionRow]
    workers: list[AttentionRow]
    tiles: list[Tile]
    in_progress: Sequence[ProgressLine]
    table: Lines
    charts: list[NumberChart] | None


def read(page_window: PageWindow, *, by: By, now: datetime) -> OverviewPage:
    """Read all of the page as it is at ``now``, and keep it for the polls that follow."""
    window = page_window.window
    key = (window.start, window.end)
    found = keep("overview", overview.overview(now=now))
    numbers = keep(("numbers", *key), overview_numbers.numbers(window, now=now))
    drawn = overview_numbers.charts(window, now=now)
    table = overview_numbers.table(window, column=by, depths=drawn.depths, now=now)
    keep(("table", by, *key), table)
    charts = keep(("charts", *key), _charts(drawn, page_window, now=now))
    return _present(found, numbers, table, page_window, charts=charts, now=now)


def read_again(page_window: PageWindow, *, by: By, now: datetime) -> OverviewPage:
    """Read what a poll shows; what another tab was told a few seconds ago is told again."""
    window = page_window.window
    key = (window.start, window.end)
    seconds = _kept_seconds(page_window)
    return _present(
        recent("overview", NOW_SECONDS, lambda: overview.overview(now=now)),
        recent(("numbers", *key), seconds, lambda: overview_numbers.numbers(window, now=now)),
        recent(
            ("table", by, *key),
            seconds,
            lambda: overview_numbers.table(window, column=by, now=now),
        ),
        page_window,
        charts=None,
        now=now,
    )


def read_charts(page_window: PageWindow, *, now: datetime) -> list[NumberChart]:
    """Read the charts again, for a poll."""
    window = page_window.window
    return recent(
        ("charts", window.start, window.end),
        _kept_seconds(page_window),
        lambda: _charts(overview_numbers.charts(window, now=now), page_window, now=now),
    )


def _kept_seconds(page_window: PageWindow) -> float:
    return STEP_SECONDS if page_window.window.step_seconds <= 300 else LONG_STEP_SECONDS


def _present(
    found: Overview,
    numbers: Numbers,
    table: Table,
    page_window: PageWindow,
    *,
    charts: list[NumberChart] | None,
    now: datetime,
) -> OverviewPage:
    query = page_window.query
    return OverviewPage(
        overview=found,
        sentence=overview_words.sentence(found, now=now),
        standstill=overview_words.standstill(found),
        alerts=overview_attention.alerts(found, window_query=query, now=now),
        queues=overview_attention.queues(found, window_query=query, now=now),
        workers=overview_attention.workers(found, window_query=query, now=now),
        tiles=overview_tiles.present(found, numbers, window_query=query, now=now),
        in_progress=[progress_view.present(each, now=now) for each in found.in_progress],
        table=overview_tables.present(table, found.queues),
        charts=charts,
    )


def _charts(found: Charts, page_window: PageWindow, *, now: datetime) -> list[NumberChart]:
    window = page_window.window
    markers = [Marker(each.at, f"deploy {each.name}") for each in found.deploys]
    limits = found.limits
    share = limits.get(AlertKind.FAILURE_RATE)
    levels = [None if each is None else each.dead_letters for each in found.states]
    return [
        number_charts.throughput(window, found.steps, markers=markers, now=now),
        number_charts.latency(window, found.steps, markers=markers, now=now),
        number_charts.depth(
            window, found.depths, markers=markers, limit=limits.get(AlertKind.QUEUE_DEPTH), now=now
        ),
        number_charts.dead_letters(
            window,
            levels,
            found.steps,
            markers=markers,
            limit=limits.get(AlertKind.LETTERS_GROWING),
            now=now,
        ),
        number_charts.failure_rate(
            window, found.steps, markers=markers, limit=None if share is None else share / 100, now=now
        ),
        number_charts.oldest_age(
            window, found.depths, markers=markers, limit=limits.get(AlertKind.OLDEST_AGE), now=now
        ),
    ]
