"""May a copy of a job run its key, given what the ledger says? Pure: rows in, a verdict out."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.core.words import LedgerState

# So often a lease may run out under one job before the job is taken for the cause.
MAX_TAKEOVERS = 3
HOLD_AT_LEAST_SECONDS = 1.0
HOLD_AT_MOST_SECONDS = 60.0
# A retry that was sent and shows no life for so long is taken for lost: Redis hands a message out a moment
# before it is noted who has it (FAILURE_MODES 69). Above the longest backoff of a job, with room to queue.
LOST_AFTER_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Claimant:
    """A copy of a job that wants to run. ``replay`` is its number when a person sent it again, else 0.

    A job that is replayed under its old id counts its attempts from 0 again; the number keeps those
    apart from the attempts before. ``awaited`` is the attempt that this copy was held for, 0 for none.
    """

    task_id: str
    attempt: int
    replay: int = 0
    awaited: int = 0


@dataclass(frozen=True, slots=True)
class KeyState:
    """What the ledger knows of a key; the durations are measured by one clock.

    ``lease_left_seconds`` is not above zero once the lease has run out; ``idle_seconds`` is since the last
    change. ``has_begun`` says whether the newest attempt has run, or was only sent.
    """

    state: str
    task_id: str
    attempt: int
    replay: int
    takeovers: int
    lease_left_seconds: float
    ran_seconds: float
    idle_seconds: float
    has_begun: bool


@dataclass(frozen=True, slots=True)
class Take:
    """It runs; ``takeovers`` is to be written down."""

    takeovers: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Somebody runs the key, or is about to; the copy comes back after ``seconds``."""

    seconds: float
    # What is awaited: a newer attempt of the same job that was sent and has not begun.
    is_for_newer: bool = False


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A newer attempt of the same job is known, which goes on instead."""


@dataclass(frozen=True, slots=True)
class RanOut:
    """The process that ran this job died too often."""


Verdict = Take | Hold | AlreadyDone | Stale | RanOut


def judge(key: KeyState, claimant: Claimant) -> Verdict:
    """Decide what a copy of a job does.

    A copy that is held comes back after as long as the key has been running so far, so that a short
    job is not waited for long and a long one not asked for often; when the lease ends at the latest.
    A copy whose retry was sent is held until that has begun, and runs when it never does.
    """
    is_same_job = key.task_id == claimant.task_id
    is_same_replay = is_same_job and key.replay == claimant.replay
    known, mine = (key.replay, key.attempt), (claimant.replay, claimant.attempt)
    is_free = key.state == LedgerState.FREE
    if is_same_job and is_free and claimant.awaited and known < (claimant.replay, claimant.awaited):
        # The attempt that it waited for has ended the job, which forgets its attempts.
        return Stale()
    if is_same_job and mine < known:
        is_done = key.state == LedgerState.DONE
        if not is_same_replay or is_done or key.has_begun or claimant.attempt + 1 < key.attempt:
            # Before AlreadyDone: the newer attempt has its own message, which goes on with the chain.
            return Stale()
        if key.idle_seconds < LOST_AFTER_SECONDS:
            # It may be on its way, or lost with a worker. Until one of the two is known this copy is kept.
            idle = max(HOLD_AT_LEAST_SECONDS, key.idle_seconds)
            return Hold(min(HOLD_AT_MOST_SECONDS, idle), is_for_newer=True)
    if key.state == LedgerState.DONE:
        return AlreadyDone()
    is_running = key.state == LedgerState.RUNNING
    if is_running and key.lease_left_seconds > 0:
        ran = key.ran_seconds
        if is_same_job and mine > known:
            # The attempt before has sent this one and is about to end.
            ran = 0.0
        return Hold(
            min(key.lease_left_seconds, HOLD_AT_MOST_SECONDS, max(HOLD_AT_LEAST_SECONDS, ran)),
        )
    takeovers = key.takeovers if is_same_replay else 0
    if is_running and is_same_job and mine == known:
        takeovers += 1
    return RanOut() if takeovers >= MAX_TAKEOVERS else Take(takeovers)
