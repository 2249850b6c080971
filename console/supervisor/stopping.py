"""The order in which programs stop, and how long each may take: a plan without clock or signals.

Both the supervisor and the guard that outlives it follow this plan.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopRule:
    """How one program is asked to stop.

    Programs of a lower ``stage`` stop first; the next stage begins when all of it are gone.
    SIGTERM opens a stage. Both times count from the beginning of the whole stop, so that the sum is
    bounded and what one stage does not need is left to the next: after ``quit_after_seconds``, when
    given, SIGQUIT (for a Celery worker: give unfinished jobs back to the broker), after
    ``kill_after_seconds`` SIGKILL to the whole process group.

    With ``repeat_every_seconds`` SIGTERM is sent again while the program lives, for one that may miss
    it (Celery's beat: its handler saves the schedule, and when the signal comes in the middle of a
    query that fails and the exception ends in a log line). Never for a Celery worker, where a second
    SIGTERM means a cold shutdown.
    """

    stage: int
    kill_after_seconds: float
    quit_after_seconds: float | None = None
    repeat_every_seconds: float | None = None


class StopPlan:
    """Says which signals are due. ``step`` is called again and again until nothing is alive."""

    def __init__(self, rules: Iterable[tuple[str, StopRule]]) -> None:
        self._rules = dict(rules)
        self._began: float | None = None
        self._sent: set[tuple[str, signal.Signals]] = set()
        self._asked_at: dict[str, float] = {}
        self._hurried_at: float | None = None

    def hurry(self, now: float) -> None:
        """Stop waiting for jobs: kill all but the last stage, which holds what the others wrote."""
        if self._hurried_at is None:
            self._hurried_at = now

    @property
    def killed(self) -> list[str]:
        """The programs that had to be killed, in the order in which they stop."""
        names = [name for name in self._rules if (name, signal.SIGKILL) in self._sent]
        return sorted(names, key=lambda name: self._rules[name].stage)

    def step(self, now: float, alive: Collection[str]) -> list[tuple[str, signal.Signals]]:
        """Return the signals to send at ``now`` (seconds of any steady clock).

        Each comes once, but for a SIGTERM that is to be repeated.
        """
        names = [name for name in self._rules if name in alive]
        if not names:
            return []
        stage = min(self._rules[name].stage for name in names)
        last_stage = max(rule.stage for rule in self._rules.values())
        if self._began is None:
            self._began = now
        due: list[tuple[str, signal.Signals]] = []
        for name in names:
            rule = self._rules[name]
            if self._hurried_at is not None and rule.stage < last_stage:
                self._add(due, name, signal.SIGKILL)
            elif rule.stage == stage:
                self._ask(due, name, rule, now)
                if rule.quit_after_seconds is not None and now - self._began >= rule.quit_after_seconds:
                    self._add(due, name, signal.SIGQUIT)
                if now - self._began >= rule.kill_after_seconds:
                    self._add(due, name, signal.SIGKILL)
        return due

    def _ask(self, due: list[tuple[str, signal.Signals]], name: str, rule: StopRule, now: float) -> None:
        every = rule.repeat_every_seconds
        asked_at = self._asked_at.get(name)
        if asked_at is None or (every is not None and now - asked_at >= every):
            self._asked_at[name] = now
            due.append((name, signal.SIGTERM))

    def _add(self, due: list[tuple[str, signal.Signals]], name: str, number: signal.Signals) -> None:
        if (name, number) not in self._sent:
            self._sent.add((name, number))
            due.append((name, number))
