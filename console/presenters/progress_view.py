"""How far a job is that says so: a bar, its pace, and how long it will take if it goes on like that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from console.presenters.plain import duration, visible
from jobs.models import JobProgress

# A job that has not said anything for so long may have stopped: its pace is no longer its pace.
CURRENT = timedelta(seconds=60)
# Over a shorter time a pace says nothing.
_LEAST_SECONDS = 2.0
_NOTE_LIMIT = 160


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """One job in words. ``parts`` is empty when the job does not know how much there is."""

    record: JobProgress
    figure: str
    of_words: str
    parts: list[tuple[str, int]]
    pace: str
    left: str
    note: str

    @property
    def sentence(self) -> str:
        """Say it in one breath: "340 of 1,000: reading feed 3"."""
        words = f"{self.figure} {self.of_words}".strip()
        return f"{words}: {self.note}" if self.note else words


def present(record: JobProgress, *, now: datetime) -> ProgressLine:
    """Put a row into words; pace and time left only while they mean something."""
    done, total = record.done, record.total
    per_second = _per_second(record) if now - record.updated_at <= CURRENT else None
    return ProgressLine(
        record=record,
        figure=f"{done:,}",
        of_words="so far" if total is None else f"of {total:,}",
        parts=_parts(done, total),
        pace="" if per_second is None else pace_words(per_second),
        left="" if per_second is None else _left(done, total, per_second),
        note=visible(record.note[:_NOTE_LIMIT], keep="").strip(),
    )


def percent(record: JobProgress) -> int | None:
    """Return the share that is done, never above 100; None when it cannot be known."""
    if not record.total or record.total < 0:
        return None
    return max(0, min(100, 100 * record.done // record.total))


def pace_words(per_second: float) -> str:
    """Write a pace in the unit in which it is a number: "12 /s", "40 /min", "3 /h"."""
    for seconds, unit in ((1, "s"), (60, "min"), (3600, "h")):
        pace = per_second * seconds
        if pace >= 1 or unit == "h":
            return f"{pace:,.0f} /{unit}" if pace >= 10 else f"{pace:.1f} /{unit}".replace(".0 ", " ")
    raise AssertionError  # pragma: no cover - the last unit always returns


def _parts(done: int, total: int | None) -> list[tuple[str, int]]:
    if not total or total < 0:
        return []
    shown = max(0, min(done, total))
    return [("done", shown), ("rest", total - shown)]


def _per_second(record: JobProgress) -> float | None:
    seconds = (record.updated_at - record.started_at).total_seconds()
    return record.done / seconds if record.done > 0 and seconds >= _LEAST_SECONDS else None


def _left(done: int, total: int | None, per_second: float) -> str:
    if total is None or done >= total:
        return ""
    return f"about {duration(max(1, round((total - done) / per_second)))} left"
