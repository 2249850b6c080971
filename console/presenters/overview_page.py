"""The overview as its page shows it: what needs attention, tiles, charts, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console import number_charts, overview_words
from console.chart_parts import NumberChart
from console.number_charts import Marker
from console.overview_words import Standstill
from console.presenters import overview_attention, overview_tables, overview_tiles, progress_view
from console.presenters.overview_attention import AttentionRow
from console.presenters.overview_tables import Tables
from console.presenters.overview_tiles import Tile
from console.presenters.progress_view import ProgressLine
from console.windows import PageWindow
from jobs import overview, overview_numbers
from jobs.core.words import AlertKind
from jobs.overview import Overview
from jobs.overview_numbers import Charts


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """What is live on the page; the charts are read apart, since they change once a step."""

    overview: Overview
    sentence: str
    standstill: Standstill | None
    alerts: list[AttentionRow]
    queues: list[AttentionRow]
    workers: list[AttentionRow]
    tiles: list[Tile]
    in_progress: Sequence[ProgressLine]
    tables: Tables


def read(page_window: PageWindow, *, by: str, now: datetime) -> OverviewPage:
    """Read what the page shows besides its charts."""
    found = overview.overview(now=now)
    numbers = overview_numbers.numbers(page_window.window, now=now)
    query = page_window.query
    return OverviewPage(
        overview=found,
        sentence=overview_words.sentence(found, now=now),
        standstill=overview_words.standstill(found),
        alerts=overview_attention.alerts(found, now=now),
        queues=overview_attention.queues(found, window_query=query, now=now),
        workers=overview_attention.workers(found, window_query=query, now=now),
        tiles=overview_tiles.present(found, numbers, window_query=query, now=now),
        in_progress=[progress_view.present(each, now=now) for each in found.in_progress],
        tables=overview_tables.read(page_window.window, by=by, now=now),
    )


def read_charts(page_window: PageWindow, *, now: datetime) -> list[NumberChart]:
    """Read the charts of a window."""
    window = page_window.window
    return _charts(window_charts=overview_numbers.charts(window, now=now), page_window=page_window, now=now)


def _charts(*, window_charts: Charts, page_window: PageWindow, now: datetime) -> list[NumberChart]:
    window, found = page_window.window, window_charts
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
