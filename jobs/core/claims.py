"""May a copy of a job run its key, given what the ledger says? Pure: rows in, a verdict out."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.core.words import LedgerState

# So often a lease may run out under one job before the job is taken for the cause.
MAX_TAKEOVERS = 3
HOLD_AT_LEAST_SECONDS = 1.0
HOLD_AT_MOST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Claimant:
    """A copy of a job that wants to run. ``replay`` is its number when a person sent it again, else 0.

    A job that is replayed under its old id counts its attempts from 0 again; the number keeps those
    apart from the attempts before.
    """

    task_id: str
    attempt: int
    replay: int = 0


@dataclass(frozen=True, slots=True)
class KeyState:
    """What the ledger knows of a key; the two durations are measured by one clock.

    ``lease_left_seconds`` is not above zero once the lease has run out.
    """

    state: str
    task_id: str
    attempt: int
    replay: int
    takeovers: int
    lease_left_seconds: float
    ran_seconds: float


@dataclass(frozen=True, slots=True)
class Take:
    """It runs; ``takeovers`` is to be written down."""

    takeovers: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Somebody runs the key; the copy comes back after ``seconds``."""

    seconds: float


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
    """
    is_same_job = key.task_id == claimant.task_id
    is_same_replay = is_same_job and key.replay == claimant.replay
    known, mine = (key.replay, key.attempt), (claimant.replay, claimant.attempt)
    if is_same_job and mine < known:
        # Before AlreadyDone: the newer attempt has its own message, which goes on with the chain.
        return Stale()
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
