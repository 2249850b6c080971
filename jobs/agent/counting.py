"""Adds finished attempts up in cells, within bounds, whatever names they come with."""

from __future__ import annotations

from .batches import Cell, bucket_of

# With more cells the minutes of the past become hours, then days, and then names are no longer told apart.
# Only an outage of many hours, or names that somebody makes up, gets there.
MOST_CELLS = 5_000
_HOUR, _DAY = 3_600, 86_400


class Cells:
    """Counts by minute, task and queue. The totals of a day are exact however many cells are folded."""

    def __init__(self, *, most: int = MOST_CELLS) -> None:
        self._most = most
        self._cells: dict[tuple[int, str, str], Cell] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def receive(self, at: float, task: str, queue: str) -> None:
        """Count a message that the worker took."""
        self._cell(at, task, queue).received += 1

    def end(
        self, at: float, task: str, queue: str, outcome: str, latency: float | None, runtime: float | None
    ) -> Cell:
        """Count an attempt that ended, and return its cell."""
        cell = self._cell(at, task, queue)
        if outcome == "done":
            cell.done += 1
        else:
            setattr(cell, outcome, getattr(cell, outcome) + 1)
        if latency is not None:
            cell.latency_sum += latency
            bucket = bucket_of(latency)
            cell.latency[bucket] = cell.latency.get(bucket, 0) + 1
        if runtime is not None:
            cell.runtime_sum += runtime
            bucket = bucket_of(runtime)
            cell.runtime[bucket] = cell.runtime.get(bucket, 0) + 1
        return cell

    def drop(self, at: float, task: str, queue: str) -> None:
        """Count a record that was dropped after its attempt had been counted."""
        self._cell(at, task, queue).dropped += 1

    def attempts(self) -> int:
        """Return how many attempts are counted here."""
        return sum(
            cell.done + cell.retried + cell.dead + cell.revoked + cell.ignored
            for cell in self._cells.values()
        )

    def take(self) -> list[Cell]:
        """Return the cells and begin anew."""
        cells, self._cells = list(self._cells.values()), {}
        return cells

    def _cell(self, at: float, task: str, queue: str) -> Cell:
        minute = int(at) // 60 * 60
        key = (minute, task, queue)
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= self._most:
                self._fold(minute)
                if len(self._cells) >= self._most:
                    key = (minute, "", "")
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cells[key] = Cell(*key)
        return cell

    def _fold(self, minute: int) -> None:
        """Merge what is older than this minute by hour, and by day if that is not enough.

        A quarter is to become free, so that it is not done for each new cell.
        """
        for seconds in (_HOUR, _DAY):
            self._merge(minute, seconds)
            if len(self._cells) <= self._most * 3 // 4:
                return
        # Too many names.
        for (at, task, queue), cell in list(self._cells.items()):
            if at < minute and (task or queue):
                del self._cells[at, task, queue]
                self._add((at, "", ""), cell)

    def _merge(self, minute: int, seconds: int) -> None:
        cells, self._cells = self._cells, {}
        for (at, task, queue), cell in cells.items():
            self._add((at if at >= minute else at // seconds * seconds, task, queue), cell)

    def _add(self, key: tuple[int, str, str], cell: Cell) -> None:
        into = self._cells.get(key)
        if into is None:
            cell.minute, cell.task, cell.queue = key
            self._cells[key] = cell
            return
        for name in _COUNTS:
            setattr(into, name, getattr(into, name) + getattr(cell, name))
        for mine, other in ((into.latency, cell.latency), (into.runtime, cell.runtime)):
            for bucket, number in other.items():
                mine[bucket] = mine.get(bucket, 0) + number


_COUNTS = (
    *("received", "done", "retried", "dead", "revoked", "ignored", "dropped"),
    *("latency_sum", "runtime_sum"),
)
