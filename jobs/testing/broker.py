"""The broker of a test: keeps what is enqueued, runs it, and knows what died."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from jobs import limits
from jobs.errors import JobsError
from jobs.testing import running, transactions
from jobs.testing.enqueued import Enqueued, EnqueuedJob, task_name
from jobs.testing.running import DeadJob, RanJob
from jobs.testing.standins import StandIns, StoredMessage

# A drain that is still busy after so many attempts will never end.
LIMIT = 1000
# One job that comes back so often with the same attempt is held by something that does not end in-process.
HOLDS = 20
# As in production (JOBS_MAX_COMEBACKS): after so many times a job that asks to be put back is rejected.
COMEBACKS = 3


class NeverEnding(JobsError):
    """Jobs go on for ever in-process, where nothing else can end them."""


class InProcessBroker:
    """What a test sees of its jobs. One is active at a time; see ``in_process``."""

    def __init__(self) -> None:
        self._stand_ins = StandIns(self._take)
        # What was published and has not run, and everything that was ever enqueued.
        self._waiting: list[EnqueuedJob] = []
        self._published: list[EnqueuedJob] = []
        self._outbox = transactions.OutboxRows(self._take)
        self._older_callbacks: Sequence[Callable[[], Any]] = ()
        self._dead: list[DeadJob] = []
        self._wanted: set[int] = set()
        # The id of the job that runs now; what it publishes under its own id is itself again.
        self._running = ""
        self._is_draining = False
        self.is_installed = False

    # Life

    def install(self) -> None:
        """Take the place of every broker."""
        self.is_installed = True
        self._stand_ins.install()
        self._outbox.install()

    def remove(self) -> None:
        """Give the brokers back."""
        self.is_installed = False
        self._outbox.remove()
        self._stand_ins.remove()

    def begin_test(self) -> None:
        """Forget what earlier tests did."""
        self._waiting.clear()
        self._published.clear()
        self._dead.clear()
        self._wanted.clear()
        self._outbox.forget()
        self._older_callbacks = transactions.waiting_callbacks()
        self._stand_ins.forget_results()

    # What a test asks

    @property
    def enqueued(self) -> Enqueued:
        """The jobs that this test enqueued so far, in their order, with those of transactions not yet committed.

        Reads the outbox when the test used it: one query.
        """
        return Enqueued(self._enqueued)

    def _enqueued(self) -> list[EnqueuedJob]:
        pending = [EnqueuedJob.read(message) for message in self._outbox.pending()]
        return [*self._published, *(job for job in pending if not job.retries)]

    @property
    def dead_letters(self) -> Sequence[DeadJob]:
        """The jobs that died so far, the expected ones included."""
        return tuple(self._dead)

    def run_jobs(self, *, limit: int = LIMIT, leave: Sequence[Any] = ()) -> list[RanJob]:
        """Run everything that is enqueued, and what that enqueues, until nothing is left.

        First the test's transaction counts as committed: on-commit callbacks run, in their order. Retries
        and jobs with an ETA run without waiting, in the order in which they would be due. Jobs of the tasks
        in ``leave`` stay where they are, for instance those of another application.

        Raises:
            NeverEnding: after ``limit`` attempts, or when a job is held back again and again.
            RuntimeError: inside a transaction of the test's own, and inside a job.
        """
        if self._is_draining:
            raise RuntimeError(
                "Cannot run jobs inside a job: run_jobs() is running already. Call it in the test; what a job "
                "enqueues is run by the same call."
            )
        left = {task_name(task) for task in leave}
        ran: list[RanJob] = []
        holds: Counter[tuple[str, int]] = Counter()
        self._is_draining = True
        try:
            with limits.lifted():
                while (job := self._next(left)) is not None:
                    if len(ran) >= limit:
                        self._waiting.append(job)
                        raise NeverEnding(self._still_busy(limit, left))
                    ended = self._run(job, holds)
                    ran.append(ended)
        finally:
            self._is_draining = False
        return ran

    @contextmanager
    def expect_dead_letter(
        self,
        task: Any = None,
        *,
        reason: str | None = None,
        error: str | type[BaseException] | re.Pattern[str] | None = None,
    ) -> Iterator[list[DeadJob]]:
        """Expect that inside the block at least one job dies that matches all that is given; yields those.

        ``error`` is a part of "module.Type: message", a pattern that is searched in it, or a class.

        Raises:
            AssertionError: at the end of the block when none did, with those that died instead.
        """
        __tracebackhide__ = True
        name = None if task is None else task_name(task)
        before = len(self._dead)
        found: list[DeadJob] = []
        yield found
        since = self._dead[before:]
        found += [dead for dead in since if _matches(dead, name, reason, error)]
        self._wanted |= {id(dead) for dead in found}
        if not found:
            raise AssertionError(_not_found(since, name, reason, error))

    def check(self) -> None:
        """Fail when a job died that no ``expect_dead_letter`` waited for. Says it once.

        Raises:
            AssertionError: with a report of each.
        """
        unexpected = [dead for dead in self._dead if id(dead) not in self._wanted]
        self._wanted |= {id(dead) for dead in unexpected}
        if not unexpected:
            return
        first = unexpected[0]
        reports = "\n\n".join(f"  {dead.report()}".replace("\n", "\n  ") for dead in unexpected)
        count = (
            "1 unexpected dead letter"
            if len(unexpected) == 1
            else f"{len(unexpected)} unexpected dead letters"
        )
        raise AssertionError(
            f"{count}:\n\n{reports}\n\n"
            f'Mend the job, or expect it: with expect_dead_letter("{first.task}", reason="{first.reason}"): ...'
        )

    # How it works

    def _take(self, message: StoredMessage) -> None:
        job = EnqueuedJob.read(message)
        self._waiting.append(job)
        if job.task_id != self._running and not job.retries:
            self._published.append(job)

    def _next(self, left: set[str]) -> EnqueuedJob | None:
        transactions.commit(without=self._older_callbacks)
        self._outbox.send()
        ready = [job for job in self._waiting if job.task not in left]
        if not ready:
            return None
        job = min(ready, key=_due)
        self._waiting.remove(job)
        return job

    def _run(self, job: EnqueuedJob, holds: Counter[tuple[str, int]]) -> RanJob:
        self._running = job.task_id
        try:
            ended = running.run(job)
        finally:
            self._running = ""
        attempt = (job.task_id, job.retries)
        if ended.outcome == running.PUT_BACK:
            holds[attempt] += 1
            if holds[attempt] <= COMEBACKS:
                self._waiting.append(job)
                return ended
            ended = RanJob(job, running.DEAD, dead=ended.dead)
        if ended.outcome == running.RETRIED and any(_is_copy(other, job) for other in self._waiting):
            holds[attempt] += 1
            if holds[attempt] >= HOLDS:
                raise NeverEnding(
                    f"Cannot run {job}: it was held back {HOLDS} times. Its idempotency key "
                    f"{job.key!r} is held by another job that does not end; look at the ledger's rows that the "
                    "test made."
                )
        if ended.outcome == running.DEAD and ended.dead is not None:
            self._dead.append(ended.dead)
        return ended

    def _still_busy(self, limit: int, left: set[str]) -> str:
        counts = Counter(job.task for job in self._waiting if job.task not in left)
        tasks = ", ".join(f"{task} ({count})" for task, count in counts.most_common(5))
        return (
            f"Cannot finish: {limit} attempts ran, and these still wait: {tasks}. A job that enqueues itself "
            f"never ends; leave it out with run_jobs(leave=[...]), or raise run_jobs(limit={limit * 10})."
        )


def _due(job: EnqueuedJob) -> tuple[datetime, int]:
    # Without an ETA it is due since ever.
    return job.eta or datetime.min.replace(tzinfo=UTC), job.message.number


def _is_copy(other: EnqueuedJob, job: EnqueuedJob) -> bool:
    return other.task_id == job.task_id and other.retries == job.retries


def _text(dead: DeadJob) -> str:
    return f"{dead.error_type}: {dead.error}"


def _matches(dead: DeadJob, task: str | None, reason: str | None, error: Any) -> bool:
    if task is not None and dead.task != task:
        return False
    if reason is not None and dead.reason != reason:
        return False
    if error is None:
        return True
    if isinstance(error, type):
        return (
            isinstance(dead.exception, error) or dead.error_type == f"{error.__module__}.{error.__qualname__}"
        )
    if isinstance(error, re.Pattern):
        return error.search(_text(dead)) is not None
    return error in _text(dead)


def _not_found(since: Sequence[DeadJob], task: str | None, reason: str | None, error: Any) -> str:
    wanted = {"task": task, "reason": reason, "error": error}
    what = ", ".join(f"{name}={value!r}" for name, value in wanted.items() if value is not None)
    lines = [f"Expected a dead letter ({what or 'any'}); none came."]
    lines += [f"  This one did: {dead.report()}".replace("\n", "\n  ") for dead in since]
    if not since:
        lines.append("  No job died in this block. Is run_jobs() called inside it?")
    return "\n".join(lines)


_active: list[InProcessBroker] = []


@contextmanager
def in_process() -> Iterator[InProcessBroker]:
    """Keep all jobs of this process from their brokers inside the block; yields what collects and runs them.

    A block inside a block is the same one.
    """
    if _active:
        yield _active[-1]
        return
    broker = InProcessBroker()
    _active.append(broker)
    broker.install()
    try:
        broker.begin_test()
        yield broker
    finally:
        if broker.is_installed:
            broker.remove()
        _active.remove(broker)
