"""What the rollups say of a window: totals, series by step, tables by queue and task.

Every function does a fixed number of queries. A step in which no worker reported is not known, and never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from jobs.core import histograms
from jobs.core.histograms import Histogram
from jobs.core.windows import Window


@dataclass(slots=True)
class Figures:
    """What happened in a span. Latency is from publish (or ETA) to start, runtime of an attempt; seconds."""

    received: int = 0
    done: int = 0
    retried: int = 0
    dead: int = 0
    revoked: int = 0
    ignored: int = 0
    dropped: int = 0
    latency: Histogram = field(default_factory=dict)
    runtime: Histogram = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """How many attempts ended, whatever way."""
        return self.done + self.retried + self.dead + self.revoked + self.ignored

    @property
    def finished(self) -> int:
        """How many jobs were done or died: of a retry and the rest nothing is decided."""
        return self.done + self.dead

    @property
    def failure_rate(self) -> float | None:
        """Return the share of those finished that died, 0 to 1; None when none finished."""
        return self.dead / self.finished if self.finished else None

    def latency_percentile(self, percent: float) -> float | None:
        """Return a percentile of the latency in seconds, within 5 %."""
        return histograms.percentile(self.latency, percent)

    def runtime_percentile(self, percent: float) -> float | None:
        """Return a percentile of the runtime in seconds, within 5 %."""
        return histograms.percentile(self.runtime, percent)


def totals(start: datetime, end: datetime, *, task: str = "", queue: str = "", now: datetime) -> Figures:
    """Add up a span of whole minutes, of a task, a queue, both or all."""
    raise NotImplementedError


def series(window: Window, *, task: str = "", queue: str = "", now: datetime) -> list[Figures | None]:
    """Return the figures of each step of a window; None for a step in which no worker reported."""
    raise NotImplementedError


def by_queue(window: Window, *, task: str = "", now: datetime) -> dict[str, Figures]:
    """Return the figures of the window for each queue that a worker told of, of one task or of all."""
    raise NotImplementedError


def by_task(window: Window, *, queue: str = "", now: datetime) -> dict[str, Figures]:
    """Return the figures of the window for each task, on one queue or on all."""
    raise NotImplementedError
