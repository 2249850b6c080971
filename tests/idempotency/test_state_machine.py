"""Claims, heartbeats, completions, failures and time in any order, against a model of one key."""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobs.core.claims import LOST_AFTER_SECONDS, MAX_TAKEOVERS, Claimant
from jobs.core.words import LedgerState
from jobs.errors import HeldBack, LeaseRanOut, StaleAttempt
from jobs.idempotency.ledger import Ledger
from jobs.idempotency.running import _NotRun, _Run
from jobs.models import IdempotencyRecord

pytestmark = pytest.mark.postgres

LEASE = 60.0
TASK = "shop.model"
JOBS = st.sampled_from(["a", "b"])
ATTEMPTS = st.integers(0, 3)
_keys = (f"key:{number}" for number in itertools.count())


@dataclass
class Copy:
    """A copy that was allowed to run and has not ended as far as it knows."""

    job: str
    attempt: int
    token: int


class OneKey(RuleBasedStateMachine):
    """The model: who was let in last, until when, and what is known of that one's job."""

    def __init__(self) -> None:
        super().__init__()
        self.key = next(_keys)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.running: list[Copy] = []
        self.holder: Copy | None = None
        self.lease_ends = self.now
        self.last_job = ""
        self.newest_attempt = -1
        self.lost = 0
        self.changed_at = self.now
        self.has_begun = False
        self.result: str | None = None
        self.results = (f"result {number}" for number in itertools.count())

    def ledger(self) -> Ledger:
        return Ledger(using="default", task=TASK, key=self.key, now=lambda: self.now)

    def is_live(self) -> bool:
        return self.holder is not None and self.lease_ends > self.now

    @rule(job=JOBS, attempt=ATTEMPTS)
    def claim(self, job: str, attempt: int) -> None:
        attempt_run = _Run(
            ledger=self.ledger(),
            claimant=Claimant(job, attempt),
            task=TASK,
            key=self.key,
            lease_seconds=LEASE,
            has_successors=False,
            now=lambda: self.now,
        )
        try:
            outcome: object = attempt_run._claim()
        except (HeldBack, StaleAttempt, LeaseRanOut, _NotRun) as refused:
            outcome = refused
        is_same = job == self.last_job
        lost = self.lost if is_same else 0
        if is_same and attempt < self.newest_attempt:
            is_gone = self.has_begun or attempt + 1 < self.newest_attempt
            if self.result is not None or is_gone:
                assert isinstance(outcome, StaleAttempt)
                return
            if self.now - self.changed_at < timedelta(seconds=LOST_AFTER_SECONDS):
                assert isinstance(outcome, HeldBack)
                return
        if self.result is not None:
            assert isinstance(outcome, _NotRun)
            assert outcome.result == self.result
            return
        if self.is_live():
            assert isinstance(outcome, HeldBack)
            assert 0 < outcome.seconds <= 75
            return
        if self.holder is not None and (self.holder.job, self.newest_attempt) == (job, attempt):
            lost += 1
        if lost >= MAX_TAKEOVERS:
            assert isinstance(outcome, LeaseRanOut)
            self.lost, self.holder, self.changed_at = MAX_TAKEOVERS, None, self.now
            return
        assert isinstance(outcome, int), f"a key that nobody holds was refused: {outcome}"
        self.holder = Copy(job, attempt, outcome)
        self.running.append(self.holder)
        self.last_job, self.newest_attempt, self.lost = job, attempt, lost
        self.lease_ends = self.now + timedelta(seconds=LEASE)
        self.changed_at, self.has_begun = self.now, True

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        copy = self._one(data)
        result = next(self.results)
        is_mine = self.ledger().complete(copy.token, f'"{result}"')
        assert is_mine == (copy is self.holder)
        if is_mine:
            self.result, self.holder, self.changed_at = result, None, self.now
        self.running.remove(copy)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        copy = self._one(data)
        is_mine = self.ledger().free(copy.token)
        assert is_mine == (copy is self.holder)
        if is_mine:
            self.holder, self.changed_at = None, self.now
        self.running.remove(copy)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        copy = self._one(data)
        is_mine = self.ledger().extend(copy.token, lease_seconds=LEASE)
        assert is_mine == (copy is self.holder)
        if is_mine:
            self.lease_ends, self.changed_at = self.now + timedelta(seconds=LEASE), self.now

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Its process is killed: nothing is written."""
        self.running.remove(self._one(data))

    @rule(job=JOBS, attempt=ATTEMPTS)
    def send_retry(self, job: str, attempt: int) -> None:
        self.ledger().note_sent(Claimant(job, attempt))
        if not self.last_job:
            self.last_job, self.newest_attempt, self.changed_at = job, attempt, self.now
        elif job == self.last_job and self.result is None and attempt > self.newest_attempt:
            self.newest_attempt, self.changed_at, self.has_begun = attempt, self.now, False

    @rule(seconds=st.sampled_from([0.5, 20.0, 59.0, 61.0, 3600.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @invariant()
    def the_row_is_as_the_model_has_it(self) -> None:
        line = IdempotencyRecord.objects.filter(task=TASK, key=self.key).first()
        if line is None:
            assert not self.last_job
            return
        state = (
            LedgerState.DONE
            if self.result is not None
            else LedgerState.FREE
            if self.holder is None
            else LedgerState.RUNNING
        )
        assert (line.state, line.task_id, line.attempt) == (state, self.last_job, self.newest_attempt)
        assert (line.completed_at is not None) == (state == LedgerState.DONE)
        assert (line.lease_expires_at is not None) == (state == LedgerState.RUNNING)

    def _one(self, data: st.DataObject) -> Copy:
        return self.running[data.draw(st.integers(0, len(self.running) - 1), label="copy")]


def test_one_key_follows_its_model(database, caplog):
    caplog.set_level(logging.ERROR)
    run_state_machine_as_test(
        OneKey,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
