"""When a stage of a replay sends, waits, passes or stops the operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# Before so many are finished, a share says nothing about the rest of a long stage; jobs that die
# tend to finish first.
ENOUGH_FINISHED = 20


class Verdict(StrEnum):
    """What comes next."""

    SEND = "send"
    WAIT = "wait"
    PASS = "pass"  # noqa: S105 - a verdict, not a secret
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class StageCounts:
    """The letters of one stage by what became of them.

    ``size`` is how many it is to send, None for all that are left; ``pending`` how many of the
    operation are not sent yet. ``forgiven_*`` were finished when an operator resumed in spite of
    them; they are left out of the share.
    """

    size: int | None
    pending: int
    waiting: int
    done: int
    died: int
    unknown: int
    forgiven_finished: int = 0
    forgiven_bad: int = 0
    already_done: int = 0

    @property
    def sent(self) -> int:
        """Sent so far, whatever came of them."""
        return self.waiting + self.done + self.already_done + self.died + self.unknown

    @property
    def left(self) -> int:
        """How many this stage still sends."""
        return self.pending if self.size is None else max(0, min(self.pending, self.size - self.sent))

    @property
    def bad(self) -> int:
        """Died again, or nobody knows: neither lets a stage pass."""
        return max(0, self.died + self.unknown - self.forgiven_bad)

    @property
    def finished(self) -> int:
        """With an outcome, or given up on."""
        return max(0, self.done + self.already_done + self.died + self.unknown - self.forgiven_finished)

    @property
    def planned(self) -> int:
        """How many will have finished at the end."""
        return self.sent + self.left - self.forgiven_finished


def judge(counts: StageCounts, *, stop_above_percent: int) -> Verdict:
    """Decide what a stage does next.

    It stops as soon as the share is certain to be above the limit, or is above it among at least
    20 finished letters, so that a long last stage does not run to its end first.
    """
    bad, finished = counts.bad, counts.finished
    is_certain = bad * 100 > stop_above_percent * max(1, counts.planned)
    is_likely = finished >= ENOUGH_FINISHED and bad * 100 > stop_above_percent * finished
    if bad and (is_certain or is_likely):
        return Verdict.STOP
    if counts.left:
        return Verdict.SEND
    if counts.waiting:
        return Verdict.WAIT
    return Verdict.PASS


def check_sizes(sizes: Sequence[int | None]) -> list[int | None]:
    """Return the sizes with a last stage for all that are left.

    Raises:
        ValueError: when a size is below one, or "all" is not last; says which.
    """
    result = list(sizes)
    for number, size in enumerate(result, start=1):
        if size is None and number != len(result):
            raise ValueError(
                f"stage {number} of {len(result)} takes all that are left, so none can follow it"
            )
        if size is not None and size < 1:
            raise ValueError(f"stage {number} has {size} letters, and a stage has at least 1")
    if result and result[-1] is not None:
        result.append(None)
    return result
