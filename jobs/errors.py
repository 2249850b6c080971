"""The errors of the job runtime.

A message has three parts: what was refused, the value, what to do.
"""

from __future__ import annotations

import functools
from typing import Any


class JobsError(Exception):
    """Is the base of every error that this package raises on purpose."""


class BrokerUnavailable(JobsError):
    """The broker did not answer in time; nothing was lost, trying again is safe."""


class LeaseLost(JobsError):
    """Another process holds the duty now; the caller must stop and undo nothing."""


class OperationRefused(JobsError):
    """An operation cannot start or change as asked; nothing was changed."""


class QueueRefused(JobsError):
    """A queue cannot be paused, resumed, purged or looked into as asked; nothing was changed."""


class QueryError(JobsError):
    """A search cannot be read; says which word, where, and what was probably meant."""


class PolicyError(JobsError):
    """A policy of a job is wrong or misspelt; says which, its value, and what is allowed."""


class PermanentError(JobsError):
    """A job raises it when trying again cannot help: it goes straight to the dead letters.

    ``permanent`` is what the agent reads. A subclass may name the dead letter's reason with
    ``dead_letter_reason``, one of ``core.words.Reason``.
    """

    permanent = True
    dead_letter_reason = ""


class TransientError(JobsError):
    """A job raises it when trying again may help, ``retry_after`` seconds from now at the earliest."""

    permanent = False

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after = retry_after


class HeldBack(JobsError):
    """A job may not start now and comes back after ``seconds``; no attempt is used.

    ``headers`` go onto the message that comes back.
    """

    def __init__(self, *args: object, seconds: float, headers: dict[str, object] | None = None) -> None:
        super().__init__(*args)
        self.seconds = seconds
        self.headers = headers or {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes, which would call the class without ``seconds``."""
        return functools.partial(type(self), seconds=self.seconds, headers=self.headers), self.args


class StaleAttempt(JobsError):
    """A newer attempt of the same job is known: this copy ends without running."""


class LeaseRanOut(PermanentError):
    """The process that ran a job died so often that the job is taken for the cause."""

    dead_letter_reason = "worker_lost"


class PayloadTooLarge(PermanentError):
    """A message is larger than its job allows; nothing was sent."""


class OutboxRefused(JobsError):
    """An outbox message cannot be changed as asked; nothing was changed."""


class DeployRefused(JobsError):
    """A deployment cannot be marked as asked; nothing was written."""


class WorkerRefused(JobsError):
    """A worker did not do what it was told: it did not answer, or said why not."""


class AlertRefused(JobsError):
    """An alert rule or a silence cannot be made or changed as asked; nothing was changed.

    ``problems`` says of each field that is wrong why, for a form.
    """

    def __init__(self, message: str, problems: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.problems = problems or {}
