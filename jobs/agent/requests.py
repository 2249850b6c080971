"""What Celery calls when a job ends: captures first, then lets Celery do what it does."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from billiard.exceptions import TimeLimitExceeded, WorkerLostError
from celery.exceptions import InvalidTaskError, Reject, TaskRevokedError
from celery.utils.time import timezone
from celery.worker import request as celery_request
from celery.worker.state import task_ready
from kombu.asynchronous.timer import to_timestamp
from kombu.exceptions import ContentDisallowed, DecodeError

from . import endings, errors, messages, reasons
from .agent import Agent
from .deliveries import Deliveries
from .endings import Attempt, Ending
from .wire import REPLAY_OF_HEADER, WireError

logger = logging.getLogger(__name__)

# celery-types knows only the public half of it.
Request: Any = celery_request.Request

_UNKNOWN = object()


def capturing(base: type[Any], agent: Agent, deliveries: Deliveries) -> type[Any]:
    """Return the request class of a task, with capture in front of its own."""
    if issubclass(base, CapturingRequest):
        # A worker that reconnects builds its strategies again.
        return base
    return type(
        f"Capturing{base.__name__}",
        (CapturingRequest, base),
        {"jobs_agent": agent, "jobs_deliveries": deliveries, "__module__": __name__},
    )


def _held(*_: Any, **__: Any) -> None:
    """Take the place of the acknowledgement of a message whose capture failed everywhere."""


class CapturingRequest(Request):
    """In front of ``Task.Request``. Celery generates a subclass of it for each task, which replaces
    ``on_success`` and ``execute_using_pool``; those are wrapped when it does."""

    jobs_agent: Agent
    jobs_deliveries: Deliveries
    # The ending that was recorded, so that a second hook records none.
    _jobs_ending: Ending | None = None
    # How it will die if it has come back too often.
    _jobs_loss: Ending | None = None
    _jobs_success: Any = _UNKNOWN
    _jobs_is_replay = False
    # For recording.py: where it came from, which publication it is, and whether its end was counted.
    jobs_task = ""
    jobs_queue = ""
    jobs_publication = ""
    jobs_is_recorded = False
    # How long the child says that a job that failed took.
    _jobs_runtime: float | None = None
    _jobs_is_counted = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        generated = vars(cls)
        if "on_success" in generated:
            cls.on_success = _reporting(generated["on_success"])
        if "execute_using_pool" in generated:
            cls.execute_using_pool = _counting(generated["execute_using_pool"])

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        """Refuse what would break the worker later.

        Raises:
            InvalidTaskError: which Celery's consumer gives to ``on_invalid_task``.
        """
        try:
            super().__init__(message, *args, **kwargs)
            self._jobs_is_replay = REPLAY_OF_HEADER in messages.headers_of(message)
            problem = messages.option_problem(self._request_dict)
            if self._eta is not None and not problem:
                # As the strategy does later, where it can only drop the message.
                to_timestamp(timezone.to_system(self._eta))
        except (InvalidTaskError, ContentDisallowed, DecodeError):
            raise
        except Exception as error:
            raise InvalidTaskError(f"{type(error).__name__}: {error}") from error
        if problem:
            raise InvalidTaskError(problem)
        agent = self.jobs_agent
        if agent.recorder is not None:
            self.jobs_task = messages.name(self._task.name)
            self.jobs_queue = messages.name(agent.queue_of(message))
            self.jobs_publication = messages.name(agent.publication_of(self))
            agent.recorder.receive(self.jobs_task, self.jobs_queue)

    # Endings

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Capture what the job died of, then do as Celery does."""
        exc_info = self._before_failure(exc_info, return_ok)
        try:
            return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
        except Exception as error:  # noqa: BLE001 (the result backend, mostly; the job is captured)
            self._finish_after(error)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """Capture a job that ran past its hard limit. A soft limit is an error in the job itself."""
        if soft:
            return super().on_timeout(soft, timeout)
        self._settle(endings.timed_out(hard=True, limit=timeout), TimeLimitExceeded(timeout))
        try:
            return super().on_timeout(soft, timeout)
        except Exception as error:  # noqa: BLE001 (as in on_failure)
            self._finish_after(error)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> Any:
        if expired:
            expires = self.expires.isoformat() if self.expires else ""
            ending = Ending(
                reasons.EXPIRED,
                WireError(type="", message=f"It had not started when it expired, {expires}.", traceback=""),
                {"expires": expires},
            )
        elif terminated:
            ending = Ending(reasons.TERMINATED, None, {"signal": str(signum or "")}, is_death=False)
        else:
            ending = Ending(reasons.REVOKED, None, {}, is_death=False)
        self._keep(ending)
        try:
            return super()._announce_revoked(reason, terminated, signum, expired)
        except Exception as error:  # noqa: BLE001 (a dead result backend would bring it back for ever)
            self._finish_after(error)
            self._already_revoked = True

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> Any:
        """Capture an early-acknowledged job that a cold shutdown ends: nothing brings it back."""
        if self.acknowledged:
            self._keep(
                Ending(
                    reasons.WORKER_LOST,
                    WireError(
                        type=errors.type_name(WorkerLostError),
                        message="A cold shutdown of the worker ended it.",
                        traceback="",
                    ),
                    {"cold_shutdown": True},
                )
            )
        try:
            return super()._announce_cancelled(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 (as in on_failure)
            logger.warning("Job %s: its cancellation could not be announced: %r", self.id, error)
            self._already_cancelled = True

    def reject(self, requeue: bool = False) -> Any:
        """Put a job back only as often as is allowed; then it dies."""
        if not requeue or self.acknowledged:
            self._keep_unreturned()
            return super().reject(requeue=requeue)
        loss = self._jobs_loss or Ending(reasons.REJECTED, None, {"requeue": True})
        comebacks = self.jobs_deliveries.comebacks(self)
        if comebacks >= self.jobs_agent.settings.max_comebacks:
            self._die_of_comebacks(loss, comebacks)
            return None
        self._jobs_loss = loss
        if self.jobs_deliveries.put_back_counted(self):
            self._jobs_ending = loss  # the copy goes on
            return self.acknowledge()
        return super().reject(requeue=True)

    def acknowledge(self) -> Any:
        """Forget the count of comebacks with the message."""
        self._keep_unreturned()
        result = super().acknowledge()
        if self._jobs_is_counted:
            self._jobs_is_counted = False
            self.jobs_deliveries.forget(self)
        return result

    # Celery 5.7 asks the backend whether a lost job had succeeded; so do we, before it.
    def _success_was_stored(self) -> Any:
        if self._jobs_success is _UNKNOWN:
            inherited = getattr(super(), "_success_was_stored", None)
            self._jobs_success = inherited() if inherited is not None else False
        return self._jobs_success

    # Celery 5.7 may publish a retry of a lost job; only when it cannot is it lost.
    def _retry_worker_lost(self, exc: BaseException, exc_info: Any) -> bool:
        retried = bool(super()._retry_worker_lost(exc, exc_info))
        if retried:
            self._record("retried", error_type=errors.type_name(type(exc)))
        else:
            self._fail(exc, exc_info.traceback, is_internal=False)
        return retried

    def on_accepted(self, pid: int, time_accepted: float) -> Any:
        """Count the start of a job that had come back."""
        if not self.acknowledged and self.task.acks_late and messages.is_redelivered(self.message):
            self.jobs_deliveries.count_start(self)
            self._jobs_is_counted = True
        result = super().on_accepted(pid, time_accepted)
        if self.jobs_agent.recorder is not None:
            self.jobs_agent.recorder.begin()
        if self.jobs_agent.is_ending_jobs:
            # A cold shutdown has ended the others. Of this one it did not know: Celery would wait for its end.
            self.cancel(self.jobs_agent.pool, emit_retry=not self.task.acks_late)
        return result

    def may_start(self) -> bool:
        """Return whether a redelivered job may start once more; when not, it has been taken care of."""
        if self.acknowledged or not self.task.acks_late or self._already_revoked:
            return True
        comebacks = self.jobs_deliveries.comebacks(self)
        if comebacks >= self.jobs_agent.settings.max_comebacks:
            lost = WorkerLostError("The worker that ran it died each time.")
            self._die_of_comebacks(Ending(reasons.WORKER_LOST, errors.describe(lost)), comebacks)
            self._already_revoked = True
            task_ready(self)
            return False
        return True

    # Between the hooks

    def _before_failure(self, exc_info: Any, return_ok: bool) -> Any:
        """Capture, and return what Celery is to see: MemoryError would stop the whole worker."""
        try:
            exc = errors.unwrap(exc_info.exception)
            is_exit = isinstance(exc, (SystemExit, KeyboardInterrupt))
            if is_exit and (self._already_cancelled or self._already_revoked):
                # Ended by the signal the worker sent: Celery leaves the message for another one.
                return exc_info
            if endings.is_lost_process(exc) and self._is_not_lost():
                return exc_info
            self._fail(exc, exc_info.traceback, is_internal=not return_ok)
            if isinstance(exc, MemoryError):
                return _without_memory_error(exc, exc_info)
        except Exception:
            logger.exception("Job %s: its failure could not be captured.", self.id)
            self._hold()
        return exc_info

    def _is_not_lost(self) -> bool:
        """Return whether a job whose process died had succeeded before, or is being retried."""
        if self._success_was_stored():
            self._report_done()
            return True
        if not getattr(self.task, "retry_on_worker_lost", False):
            return False
        most = self.task.max_retries
        return most is None or self._context.retries < most  # then _retry_worker_lost decides

    def _fail(self, exc: BaseException, traceback: Any, *, is_internal: bool) -> None:
        hard, soft = self.time_limits or (None, None)
        ending = endings.judge(
            exc,
            traceback,
            Attempt(
                retries=messages.whole(self._request_dict.get("retries")) or 0,
                max_retries=self.task.max_retries,
                hard_limit=hard or self.task.time_limit,
                soft_limit=soft or self.task.soft_time_limit,
                is_internal=is_internal,
            ),
        )
        if ending is not None:
            self._settle(ending, exc)
        elif (outcome := endings.went_on(exc)) is not None:
            cause = getattr(errors.unwrap(exc), "exc", None)
            self._record(outcome, error_type="" if cause is None else errors.type_name(type(cause)))

    def _keep_unreturned(self) -> None:
        """Record a job that was to be put back and is dropped: releases of Celery differ in which they do."""
        if self._jobs_loss is not None and self._jobs_ending is None and not self.acknowledged:
            self._keep(self._jobs_loss)

    def _settle(self, ending: Ending, exc: Any) -> None:
        """Record an ending now, or leave it to ``reject`` when Celery puts the message back."""
        if self._jobs_loss is not None:
            return  # the first of two hooks has put it back already
        if self._comes_back(exc):
            self._jobs_loss = ending
        else:
            self._keep(ending)

    def _comes_back(self, exc: Any) -> bool:
        """Return whether Celery will put the message back, which ``reject`` then decides."""
        if self.acknowledged:
            return False
        task = self.task
        if isinstance(exc, Reject):
            return bool(vars(exc).get("requeue"))
        if not task.acks_late:
            return False
        if isinstance(exc, TimeLimitExceeded):
            # One setting for both before Celery 5.7.
            stays = getattr(task, "acks_on_timeout", None)
            return not (task.acks_on_failure_or_timeout if stays is None else stays)
        if not endings.is_lost_process(exc) or not task.reject_on_worker_lost:
            return False
        if not getattr(task, "retry_on_worker_lost", False) or task.max_retries is None:
            return True
        return bool(self._context.retries < task.max_retries)

    def _keep(self, ending: Ending) -> bool:
        if self._jobs_ending is not None:
            return True
        self._record(ending.outcome, error_type=ending.error.type if ending.error is not None else "")
        if not self.jobs_agent.keep_request(self, ending):
            if ending.is_death:
                self._hold()
            return False
        self._jobs_ending = ending
        return True

    def _record(self, outcome: str, *, runtime: float | None = None, error_type: str = "") -> None:
        """Count how this attempt ended, once, whichever hook is first."""
        recorder = self.jobs_agent.recorder
        if recorder is None or self.jobs_is_recorded:
            return
        self.jobs_is_recorded = True
        recorder.end_request(
            self, outcome, runtime=self._jobs_runtime if runtime is None else runtime, error_type=error_type
        )

    def _hold(self) -> None:
        """Leave the message unacknowledged: it is the only copy of the job that is left."""
        if not self.acknowledged:
            self._on_ack = self._on_reject = _held

    def _die_of_comebacks(self, loss: Ending, comebacks: int) -> None:
        ending = Ending(loss.reason, loss.error, {**loss.details, "comebacks": comebacks})
        if not self._keep(ending):
            return
        # Not a reject: a dead letter exchange would record it a second time.
        self._jobs_is_counted = True
        self.acknowledge()
        try:
            what = loss.error.message if loss.error else "It came back too often."
            self.task.backend.mark_as_failure(
                self.id, WorkerLostError(what), request=self._context, store_result=self.store_errors
            )
        except Exception as error:  # noqa: BLE001 (as in on_failure)
            logger.warning("Job %s: its failure could not be stored: %r", self.id, error)

    def _finish_after(self, error: BaseException) -> None:
        """Acknowledge what Celery could not because its own bookkeeping failed."""
        logger.warning("Job %s ended, and Celery's own bookkeeping of that failed: %r", self.id, error)
        if not self.acknowledged and self._jobs_loss is None:
            self.acknowledge()

    def _report_done(self) -> None:
        self._record("done")
        if self._jobs_is_replay and not self._already_revoked:
            self._keep(Ending(reasons.DONE, None, {}, is_death=False))


def _reporting(generated: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the ``on_success`` that Celery generated: a job is counted, and a replayed one says that it succeeded."""

    @functools.wraps(generated)
    def on_success(self: CapturingRequest, failed__retval__runtime: Any, **kwargs: Any) -> Any:
        failed, _, runtime = failed__retval__runtime
        if failed:
            self._jobs_runtime = runtime
        else:
            self._record("done", runtime=runtime)
            if self._jobs_is_replay:
                self._report_done()
        return generated(self, failed__retval__runtime, **kwargs)

    return on_success


def _counting(generated: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the ``execute_using_pool`` that Celery generated: a job may not come back for ever."""

    @functools.wraps(generated)
    def execute_using_pool(self: CapturingRequest, pool: Any, **kwargs: Any) -> Any:
        if messages.is_redelivered(self.message) and not self.may_start():
            raise TaskRevokedError(self.id)
        return generated(self, pool, **kwargs)

    return execute_using_pool


def _without_memory_error(exc: MemoryError, exc_info: Any) -> Any:
    """Return the same failure as an error for which Celery does not stop the worker."""
    exc_info.type, exc_info.exception = RuntimeError, RuntimeError(f"MemoryError: {exc}")
    return exc_info
