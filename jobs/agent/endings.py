"""Which ending an exception is. Pure: what a request knows comes in, a verdict goes out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Ignore, Reject, Retry

from . import errors, reasons
from .wire import WireError

# What Task.replace raises after it sent the job that takes its place.
REPLACED = "Replaced by new task"


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended. ``is_death`` is False for what is worth knowing and is no failure."""

    reason: str
    error: WireError | None = None
    details: dict[str, Any] = field(default_factory=dict)
    is_death: bool = True

    @property
    def outcome(self) -> str:
        """Return what it counts as, one of ``batches.OUTCOMES``."""
        if self.is_death:
            return "dead"
        return "revoked" if self.reason in (reasons.REVOKED, reasons.TERMINATED) else self.reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """What decides between two reasons and is not in the exception."""

    retries: int = 0
    max_retries: int | None = None
    hard_limit: float | None = None
    soft_limit: float | None = None
    # Celery's tracer broke (``Request.on_failure`` with ``return_ok=False``): the error may be the
    # result backend's, and the job's own is further up in its chain.
    is_internal: bool = False


def is_lost_process(exc: BaseException) -> bool:
    """Return whether the process that ran the job is gone."""
    return isinstance(exc, (WorkerLostError, SystemExit, KeyboardInterrupt))


def judge(exc: BaseException, traceback: object, attempt: Attempt) -> Ending | None:
    """Return how a job ended that raised; None when it goes on elsewhere (retried, replaced, or this copy
    is an old one that says so with ``goes_on``) or when another hook records it (terminated)."""
    exc = errors.unwrap(exc)
    if isinstance(exc, (Retry, Terminated)):
        return None
    if isinstance(exc, Ignore):
        if str(exc) == REPLACED or getattr(exc, "goes_on", False) is True:
            return None
        return Ending(reasons.IGNORED, errors.describe(exc, traceback), is_death=False)
    if isinstance(exc, Reject):
        return _judge_reject(exc, traceback)
    if isinstance(exc, TimeLimitExceeded):
        return timed_out(hard=True, limit=exc.args[0] if exc.args else attempt.hard_limit)
    if is_lost_process(exc):
        return _judge_lost(exc, traceback)
    return _judge_failure(exc, traceback, attempt)


def went_on(exc: BaseException) -> str | None:
    """Return what an attempt without an ending (see ``judge``) counts as; None of one that ran nothing.

    A job that put another in its place did what it was to do. One that was held back, and an old copy,
    go on in another message, which is counted.
    """
    exc = errors.unwrap(exc)
    if getattr(exc, "goes_on", False) is True:
        return None
    if isinstance(exc, Retry):
        return "retried"
    return "done" if isinstance(exc, Ignore) else None


def permanent_reason(exc: BaseException) -> str | None:
    """Return the reason of an error that says it is not to be retried; None of one that does not say so.

    ``permanent`` must be True itself, and ``dead_letter_reason`` the name of a death; an error that names
    none, or an unknown one, has failed. It is somebody else's object, so reading it may raise anything.
    """
    try:
        if getattr(exc, "permanent", False) is not True:
            return None
        named = getattr(exc, "dead_letter_reason", "")
        return named if isinstance(named, str) and named in reasons.DEATHS else reasons.FAILED
    except Exception:  # noqa: BLE001 (its attributes may be anything; it has failed in any case)
        return None


def timed_out(*, hard: bool, limit: Any, error: WireError | None = None) -> Ending:
    """Return the ending of a job that ran past a limit, in seconds."""
    which = "hard" if hard else "soft"
    if error is None:
        kind = TimeLimitExceeded if hard else SoftTimeLimitExceeded
        error = WireError(
            type=errors.type_name(kind),
            message=f"It ran past its {which} time limit of {limit} s.",
            traceback="",
        )
    return Ending(reasons.TIMED_OUT, error, {f"{which}_limit": limit})


def _judge_lost(exc: BaseException, traceback: object) -> Ending:
    details = errors.exit_details(exc)
    error = errors.describe(exc, traceback)
    if not isinstance(exc, WorkerLostError):
        # One name for one thing: before billiard 4.3, and in the other pools, this is a WorkerLostError.
        what = f"exitcode {details['exit_code']}" if details else type(exc).__name__
        error = replace(
            error, type=errors.type_name(WorkerLostError), message=f"Worker exited prematurely: {what}."
        )
    return Ending(reasons.WORKER_LOST, error, details)


def _judge_reject(exc: Any, traceback: object) -> Ending:
    cause = exc.reason
    if not exc.requeue and isinstance(cause, Exception) and errors.is_from_retry(traceback):
        sending = errors.describe(cause, traceback)
        job_error = errors.first_error(traceback) or sending
        return Ending(
            reasons.RETRY_NOT_SENT, job_error, {"publish_error": f"{sending.type}: {sending.message}"}
        )
    error = errors.describe(exc, traceback)
    if isinstance(cause, BaseException):
        error = errors.describe(cause, traceback)
    elif cause is not None:
        error = replace(error, message=str(cause)[: errors.MESSAGE_LIMIT_CHARS])
    return Ending(reasons.REJECTED, error, {"requeue": bool(exc.requeue)})


def _judge_failure(exc: BaseException, traceback: object, attempt: Attempt) -> Ending:
    error = errors.describe_raised(exc, traceback)
    if errors.ran_to_its_end(traceback):
        return Ending(reasons.RESULT_NOT_STORED, error)
    details: dict[str, Any] = {}
    if attempt.is_internal and (own := errors.first_error(traceback)) is not None:
        details["bookkeeping_error"] = f"{error.type}: {error.message}"[: errors.MESSAGE_LIMIT_CHARS]
        error = own
    if error.type == errors.type_name(MemoryError):
        return Ending(reasons.WORKER_LOST, error, {**details, "memory_error": True})
    if error.type == errors.type_name(SoftTimeLimitExceeded):
        if error.message in ("", "SoftTimeLimitExceeded()") or error.message.startswith("("):
            error = replace(error, message=f"It ran past its soft time limit of {attempt.soft_limit} s.")
        ending = timed_out(hard=False, limit=attempt.soft_limit, error=error)
        return replace(ending, details={**ending.details, **details})
    named = permanent_reason(exc)
    if named is not None:
        return Ending(named, error, details)
    if attempt.max_retries is not None and 0 < attempt.retries >= attempt.max_retries:
        return Ending(reasons.RETRIES_EXHAUSTED, error, {**details, "attempts": attempt.retries + 1})
    return Ending(reasons.FAILED, error, details)
