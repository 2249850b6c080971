"""What an operator does to workers: one more process, one less, shut down, and to the jobs in them: revoke.

Each is audited before the worker is told, in a transaction of its own: nothing is done that no entry tells of.
When it was not done after all, a second entry says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from jobs import audit
from jobs.audit import Actor
from jobs.broker import connect, control
from jobs.broker.control import Answer
from jobs.core.cleaning import clean_line
from jobs.errors import BrokerUnavailable, WorkerRefused
from jobs.models import WorkerBoot

# A worker that is well answers in some milliseconds; one that is busy in its parent takes longer.
ANSWER_SECONDS = 3.0
# To all workers, whose number nobody knows: the whole of it is waited for.
BROADCAST_SECONDS = 1.0
_NAME_LIMIT = 120
# What Celery's pools raise that cannot do it.
_CANNOT = ("NotImplementedError", "has no attribute", "does not implement")


@dataclass(frozen=True, slots=True)
class Revoked:
    """How many workers know that a job is revoked, and which of them stopped it; "" when none did."""

    workers: int
    stopped_by: str = ""


def grow(*, hostname: str, actor: Actor, why: str, now: datetime) -> None:
    """Add one process, thread or greenlet to a worker's pool; audited.

    Raises:
        BrokerUnavailable: when the worker cannot be reached.
        WorkerRefused: when it does not answer, or says why not.
    """
    name = _short(hostname)
    with _audited("grow_worker", f"told {name} to run 1 more job at a time", actor=actor, why=why, now=now):
        _resize(hostname, "pool_grow", f"{name} did not grow")


def shrink(*, hostname: str, actor: Actor, why: str, now: datetime) -> None:
    """Take one idle process, thread or greenlet from a worker's pool; audited.

    Raises:
        BrokerUnavailable: when the worker cannot be reached.
        WorkerRefused: when it does not answer, says why not, or would have none left.
    """
    name = _short(hostname)
    boot = WorkerBoot.objects.filter(hostname=hostname).order_by("-started_at").first()
    if boot is not None and boot.concurrency is not None and boot.concurrency <= 1:
        raise WorkerRefused(
            f"Cannot shrink {name}: it runs {boot.concurrency} job at a time, and one less would take messages "
            "and run none. Shut it down instead."
        )
    with _audited("shrink_worker", f"told {name} to run 1 job less at a time", actor=actor, why=why, now=now):
        _resize(hostname, "pool_shrink", f"{name} did not shrink")


def shut_down(*, hostname: str, actor: Actor, why: str, now: datetime) -> None:
    """Tell a worker to finish what runs and to end; audited. It gives back what it has not begun.

    Raises:
        BrokerUnavailable: when the worker cannot be reached.
        WorkerRefused: when it does not answer.
    """
    with (
        _audited("shut_down_worker", f"told {_short(hostname)} to shut down", actor=actor, why=why, now=now),
        connect() as connection,
    ):
        # To the command itself no worker answers.
        answers = control.command(connection, "ping", hostnames=[hostname], timeout_seconds=ANSWER_SECONDS)
        _one(answers, hostname)
        control.tell(connection, "shutdown", hostnames=[hostname])


def revoke(
    *, task_id: str, terminate: bool = False, signal: str = "SIGTERM", actor: Actor, why: str, now: datetime
) -> Revoked:
    """Tell all workers not to start a job; with ``terminate`` the one that runs it stops its process. Audited.

    Workers keep this in memory: one that starts later does not know it.

    Raises:
        BrokerUnavailable: when the workers cannot be reached.
        WorkerRefused: when none answers, or the one that runs the job cannot stop it.
    """
    job = _short(task_id)
    text = f"revoked job {job}{f' and told its worker to stop it with {signal}' if terminate else ''}"
    arguments = {"task_id": task_id, "terminate": terminate, "signal": signal}
    with _audited("revoke_job", text, actor=actor, why=why, now=now):
        with connect() as connection:
            answers = control.command(
                connection, "revoke", arguments=arguments, timeout_seconds=BROADCAST_SECONDS
            )
        if not answers:
            raise WorkerRefused(
                f"Cannot revoke job {job}: no worker answered within {BROADCAST_SECONDS:g} s. "
                "Look whether any is online, and try again."
            )
        refused = next((answer for answer in answers if answer.error), None)
        if refused is not None:
            raise WorkerRefused(
                f"Job {job} is revoked, but {refused.hostname} could not stop it: {_why(refused)} "
                "It runs to its end; the workers that run now do not start it again."
            )
    stopped = next((answer.hostname for answer in answers if _has_stopped(answer, task_id)), "")
    return Revoked(workers=len(answers), stopped_by=stopped)


def _resize(hostname: str, command: str, not_done: str) -> None:
    with connect() as connection:
        answers = control.command(
            connection, command, arguments={"n": 1}, hostnames=[hostname], timeout_seconds=ANSWER_SECONDS
        )
    answer = _one(answers, hostname)
    if answer.error:
        raise WorkerRefused(f"{not_done}: {_why(answer)}")


@contextmanager
def _audited(action: str, text: str, *, actor: Actor, why: str, now: datetime) -> Iterator[None]:
    with transaction.atomic():
        audit.record(actor=actor, action=action, text=text, why=why, now=now)
    try:
        yield
    except (BrokerUnavailable, WorkerRefused) as error:
        failed = f"was refused: {text}. {error}"
        with transaction.atomic():
            audit.record(actor=actor, action=f"{action}_refused", text=failed, why=why, now=now)
        raise


def _one(answers: list[Answer], hostname: str) -> Answer:
    if not answers:
        raise WorkerRefused(
            f"{_short(hostname)} did not answer within {ANSWER_SECONDS:g} s. It has ended, or it is busy; "
            "look at its last heartbeat and try again."
        )
    return answers[0]


def _why(answer: Answer) -> str:
    """Put what a worker said into words that say what to do."""
    said = answer.error.rstrip(".")
    if "autoscale" in said:
        return "it scales by itself. Change the range of --autoscale instead."
    if "processes busy" in said:
        return "all of its processes are busy. Wait until one is idle."
    if any(words in said for words in _CANNOT):
        return "its pool cannot do that. Only prefork, and for its size gevent and eventlet, can."
    return f"{said}."


def _has_stopped(answer: Answer, task_id: str) -> bool:
    return answer.text.startswith("terminate: ") and task_id in answer.text


def _short(name: str) -> str:
    return clean_line(name, limit=_NAME_LIMIT)
