"""Runs one stored message as a worker would: decoded, traced by Celery, its ending judged by the agent's rules."""

from __future__ import annotations

import socket
import traceback as python_traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from celery.app.trace import build_tracer
from celery.exceptions import Reject
from kombu.exceptions import ContentDisallowed

from jobs.agent import endings, errors, reasons
from jobs.agent.agent import unregistered
from jobs.agent.endings import Attempt, Ending
from jobs.agent.wire import WireError
from jobs.core.tracebacks import parse
from jobs.testing.enqueued import EnqueuedJob
from jobs.testing.standins import application_of

# Endings that are neither a death nor one of the agent's words.
DONE = "done"
RETRIED = "retried"
IGNORED = "ignored"
PUT_BACK = "put back"
DEAD = "dead"


@dataclass(frozen=True, slots=True, eq=False)
class DeadJob:
    """A job that would be a dead letter. ``error`` is its message, ``exception`` the object where there is one."""

    job: EnqueuedJob
    reason: str
    error_type: str
    error: str
    traceback: str
    exception: BaseException | None = None

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.job.task

    def report(self) -> str:
        """Return what a failed test says of it, in several lines."""
        lines = [
            f"{self.task} died: {self.reason}, on attempt {self.job.retries + 1}",
            f"    arguments  {self.job.shown_arguments() or 'none'}",
            f"    queue      {self.job.queue}",
            f"    error      {self.error_type}: {self.error}",
        ]
        own = [frame for frame in parse(self.traceback).frames if frame.is_application]
        if own:
            lines.append("    traceback  (your code only)")
            for frame in own:
                lines.append(f'      File "{frame.path}", line {frame.line}, in {frame.function}')
                lines += [f"        {code}" for code in frame.code.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class RanJob:
    """One attempt that ran in-process. ``outcome`` is done, retried, ignored, put back or dead."""

    job: EnqueuedJob
    outcome: str
    result: Any = None
    dead: DeadJob | None = None

    @property
    def task(self) -> str:
        """The name of its task."""
        return self.job.task


def run(job: EnqueuedJob, *, now: datetime | None = None) -> RanJob:
    """Run one attempt, in this thread and this process.

    Time limits are not enforced here: stopping a job takes a process of its own.
    """
    app = application_of(job.task, job.message.app)
    if job.expires_at is not None and job.expires_at <= max(
        now or datetime.now(UTC), job.eta or job.expires_at
    ):
        return _dead(job, Ending(reasons.EXPIRED, _error("celery.exceptions.TaskRevokedError", "expired")))
    task = app.tasks.get(job.task)
    if task is None:
        return _dead(job, unregistered(job.task))
    try:
        args, kwargs, embed = job.message.decode(app)
    except ContentDisallowed as error:
        return _dead(job, Ending(reasons.UNDECODABLE, errors.describe(error)), error)
    except Exception as error:  # noqa: BLE001 (any decoder may fail in its own way)
        return _dead(job, Ending(reasons.UNDECODABLE, errors.describe(error)), error)
    request = _request(job, args, kwargs, embed)
    # No tracer of an earlier test: it would have kept that test's result store.
    tracer = build_tracer(job.task, task, app=app, hostname=request["hostname"])
    attempt = Attempt(
        retries=job.retries,
        max_retries=task.max_retries,
        hard_limit=task.time_limit,
        soft_limit=task.soft_time_limit,
    )
    try:
        with _same_thread_heart():
            value, found, _runtime, _text = tracer(job.task_id, args, kwargs, request)
    except Reject as error:
        # From a signal or a callback, where the tracer catches none.
        return _judged(job, error, python_traceback.format_exc(), attempt)
    except SystemExit as error:
        return _judged(job, error, python_traceback.format_exc(), attempt)
    if found is None:
        return RanJob(job, DONE, result=value)
    return _judged(job, errors.unwrap(value.exception), value.traceback, attempt)


def _judged(job: EnqueuedJob, error: BaseException, traceback: object, attempt: Attempt) -> RanJob:
    ending = endings.judge(error, traceback, attempt)
    if ending is None:
        return RanJob(job, RETRIED)
    if not ending.is_death:
        return RanJob(job, IGNORED)
    if ending.reason == reasons.REJECTED and ending.details.get("requeue"):
        return RanJob(job, PUT_BACK, dead=_dead(job, ending, error).dead)
    return _dead(job, ending, error)


def _dead(job: EnqueuedJob, ending: Ending, exception: BaseException | None = None) -> RanJob:
    error = ending.error or _error("", "")
    dead = DeadJob(
        job=job,
        reason=ending.reason,
        error_type=error.type,
        error=error.message,
        traceback=error.traceback,
        exception=exception,
    )
    return RanJob(job, DEAD, dead=dead)


def _error(kind: str, message: str) -> WireError:
    return WireError(type=kind, message=message, traceback="")


def _request(job: EnqueuedJob, args: Any, kwargs: Any, embed: Any) -> dict[str, Any]:
    """Return the request that a worker makes of a message."""
    message = job.message
    return {
        **message.headers,
        "properties": message.properties,
        "reply_to": message.properties.get("reply_to"),
        "correlation_id": message.properties.get("correlation_id"),
        "hostname": f"test@{socket.gethostname()}",
        "delivery_info": {
            "exchange": message.exchange,
            "routing_key": message.routing_key or message.queue,
            "priority": message.properties.get("priority"),
            "redelivered": False,
        },
        "args": args,
        "kwargs": kwargs,
        "is_eager": False,
        **(embed or {}),
    }


@contextmanager
def _same_thread_heart() -> Iterator[None]:
    """Let the heartbeat do its errands at once, in the test's own transaction.

    A thread with a connection of its own would not see what the test has written, or wait for it for ever.
    """
    # Imported here: a plugin is loaded before Django's models.
    from jobs.idempotency import heartbeat

    class SameThread(heartbeat.Heart):
        """Does everything in the thread that asks."""

        def hold(self, claim: Any) -> heartbeat.HeldLease:
            """Extend nothing: no other process runs these jobs."""
            return heartbeat.HeldLease(claim, 0.0)

        def send(self, name: str, errand: heartbeat.Errand) -> None:
            """Do the errand now."""
            errand.write()

        def take_back(self, name: str, *, wait_seconds: float) -> None:
            """Nothing is left to do."""

    before, heartbeat._Process.heart = heartbeat._Process.heart, SameThread()
    try:
        yield
    finally:
        heartbeat._Process.heart = before
