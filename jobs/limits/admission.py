"""``admit``: what a job asks before it runs."""

from __future__ import annotations

import hashlib
import math
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from jobs.agent.wire import SLOT_HEADER
from jobs.core.rates import Rate
from jobs.core.spans import duration
from jobs.errors import HeldBack
from jobs.limits import seats
from jobs.limits.client import LimitsUnavailable, store
from jobs.limits.script import Answer, Keys

# A worker keeps the jobs it holds back in its memory until their turn, so that none waits longer; those
# further behind come back and stand in line again.
LONGEST_HOLD_SECONDS = 300.0
# What a hold takes at least: publishing a job again and again costs more than the moment it would win.
SHORTEST_HOLD_SECONDS = 0.01
# While Redis is away. Spread, or all would come back together to a server that has just started.
AWAY_HOLD_SECONDS = (5.0, 15.0)
# Longer scopes, and those with characters that have a meaning in a key, are named by their hash.
_LONGEST_SCOPE = 200

_is_lifted = False


def admit(
    *,
    scope: str,
    rate: Rate | None,
    concurrency: int | None,
    lease_seconds: float,
    slot: float | None,
    holder: str,
    longest_hold_seconds: float | None = None,
    chance: Callable[[], float] = random.random,
) -> AbstractContextManager[None]:
    """Let a job run inside the returned context when its limits allow it now.

    ``scope`` is what the limits are counted by: the task's name, or that and its limit key. ``slot`` is the
    value of ``SLOT_HEADER`` on a job that was held back before. ``longest_hold_seconds`` is half the
    broker's visibility timeout, for one that has such a thing. A seat is renewed while the context is open,
    and freed ``lease_seconds`` after its process was killed.

    Raises:
        HeldBack: on entering, when it may not run now. Its ``headers`` go onto the message that comes back.
        PermanentError: on entering, when there is no Redis to keep limits in.
    """
    if _is_lifted or (rate is None and concurrency is None):
        return nullcontext()
    longest = min(LONGEST_HOLD_SECONDS, longest_hold_seconds or LONGEST_HOLD_SECONDS)
    return _admitted(
        scope=scope,
        rate=rate,
        concurrency=concurrency,
        lease_seconds=lease_seconds,
        # A header: anybody may have written it.
        slot=slot if isinstance(slot, (int, float)) and math.isfinite(slot) else None,
        # Of this execution alone: a copy that was delivered twice must not sit on the other's seat.
        holder="" if concurrency is None else f"{holder}:{uuid.uuid4().hex[:12]}",
        longest=longest,
        chance=chance,
    )


@contextmanager
def _admitted(
    *,
    scope: str,
    rate: Rate | None,
    concurrency: int | None,
    lease_seconds: float,
    slot: float | None,
    holder: str,
    longest: float,
    chance: Callable[[], float],
) -> Iterator[None]:
    found = store()
    keys = keys_of(scope, prefix=found.prefix)
    try:
        with found.asked() as scripts:
            answer = scripts.admit(
                keys,
                interval_seconds=0.0 if rate is None else rate.interval_seconds,
                seats=concurrency or 0,
                lease_seconds=lease_seconds,
                holder=holder,
                turn=slot,
                longest_hold_seconds=longest,
            )
    except LimitsUnavailable as error:
        least, most = AWAY_HOLD_SECONDS
        raise HeldBack(
            f"Held back: the limits of {scope} are kept in a Redis that cannot be asked now.",
            seconds=min(least + (most - least) * chance(), longest),
            headers={SLOT_HEADER: None},
        ) from error
    if not answer.is_admitted:
        raise _held_back(scope, answer, longest=longest, chance=chance)
    if concurrency is None:
        yield
        return
    with seats.held(store=found, keys=keys, scope=scope, holder=holder, lease_seconds=lease_seconds):
        yield


def _held_back(scope: str, answer: Answer, *, longest: float, chance: Callable[[], float]) -> HeldBack:
    if answer.turn is None:
        # Everything that comes now is too far behind: spread over the second half, or all would come at once.
        seconds = longest * (0.5 + 0.5 * chance())
    else:
        seconds = min(max(answer.wait_seconds, SHORTEST_HOLD_SECONDS), longest)
    return HeldBack(
        f"Held back by the limits of {scope} for {duration(seconds)}.",
        seconds=seconds,
        headers={SLOT_HEADER: answer.turn},
    )


def keys_of(scope: str, *, prefix: str = "") -> Keys:
    """Name the keys of a limit. The braces keep both on one node of a cluster."""
    if len(scope) > _LONGEST_SCOPE or not scope.isprintable() or "{" in scope or "}" in scope:
        scope = "sha256." + hashlib.sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()
    return Keys(
        numbers=f"{prefix}jobs:limits:{{{scope}}}",
        seats=f"{prefix}jobs:limits:{{{scope}}}:seats",
    )


@contextmanager
def lifted() -> Iterator[None]:
    """Let every job of this process through without asking, for tests that run jobs without a Redis."""
    global _is_lifted  # for the process, whatever thread runs the job
    before, _is_lifted = _is_lifted, True
    try:
        yield
    finally:
        _is_lifted = before


__all__ = ["LONGEST_HOLD_SECONDS", "admit", "keys_of", "lifted"]
