"""``Job``: a Celery task with policies."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from celery import Celery, Task
from celery.result import AsyncResult, EagerResult
from celery.utils import uuid

from jobs.base import binding, enqueueing, publishing, running, states
from jobs.errors import PermanentError, PolicyError

# The job that ``apply`` is running: Celery applies its next attempt from within.
_applied: ContextVar[str] = ContextVar("jobs_applied", default="")


class Job(binding.RoutedBySelf, Task):
    """A task whose jobs cannot be sent twice, run twice or be lost.

    Each policy below is set in the decorator, in a subclass, or for a whole project by the setting
    JOBS_POLICIES; the nearest of the three counts. A wrong value or a misspelt name raises PolicyError
    when the class is made, which for a decorated function is when Celery finalises the application;
    ``manage.py check`` does that too.

    Called as a function, a job is its function: no policy applies.
    """

    abstract = True

    #: A template over the parameters ("receipt:{order_id}"; "{order[id]}" for an item), or a method with
    #: the parameters of the job that returns a text or None. Jobs of a task with one key are done once:
    #: a copy of a job that is done returns its result, a copy of one that runs comes back later.
    idempotency_key: Any = None
    #: Whether the body and the record of its key are one transaction of ``using``. Then what the body
    #: does in that database happens exactly once, and nothing remains of a body that fails.
    atomic: bool = False
    #: The database of ledger, outbox and transaction; None is "default".
    using: str | None = None
    #: Seconds after which the key of a process that died is free. One that lives extends it.
    idempotency_lease_seconds: float = 60
    #: How often a job may run, the first time included, before it is a dead letter.
    max_attempts: int = 5
    #: The wait before retry n, counted from 0, is random between 0 and
    #: ``min(backoff_cap_seconds, backoff_base_seconds * backoff_factor ** n)``: full jitter, in seconds.
    backoff_base_seconds: float = 1
    backoff_factor: float = 4
    backoff_cap_seconds: float = 300
    #: The largest message body, in bytes; a larger one raises PayloadTooLarge where the job is sent.
    payload_limit_bytes: int = 262_144
    #: Seconds after which SoftTimeLimitExceeded is raised in the body, and after which its process is
    #: killed. Given one of the two, the other follows where it would not fit.
    soft_time_limit: float = 600  # type: ignore[assignment]
    time_limit: float = 660  # type: ignore[assignment]
    #: "10/s", "100/m", "1000/h" or "10/30s": how many jobs may start, over the whole fleet.
    rate: str | None = None
    #: How many jobs may run at once, over the whole fleet.
    concurrency: int | None = None
    #: A template or method as for ``idempotency_key``: rate and concurrency count for each key alone.
    limit_key: Any = None
    #: The queue: "critical", "default", "low", "long", or another one that the application declares.
    #: ``apply_async(queue=…)`` goes before it, and it goes before ``task_routes``, as Celery has it.
    queue: Any
    priority: Any

    #: A job leaves the broker when it has ended, and comes back when its process died.
    acks_late = True
    reject_on_worker_lost = True
    #: A permanent error is an answer, not an accident: Celery's log has it in one line. The dead letter
    #: has the traceback.
    throws = (PermanentError,)
    #: Celery's name for ``max_attempts`` less one; not to be set.
    max_retries: Any = binding.FromAttempts()
    #: Seconds that ``self.retry()`` waits when it says no time; None is the backoff of the job.
    default_retry_delay: Any = None

    _jobs_given: Mapping[str, Any]
    _jobs_annotated: Mapping[str, Any] = {}
    _jobs_signature: Any = None
    _jobs_problem: PolicyError | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        binding.adopt(cls, base=Job)

    @classmethod
    def annotate(cls) -> None:
        """Apply ``task_annotations`` and remember what they changed. Called by Celery."""
        before = dict(vars(cls))
        super().annotate()
        cls._jobs_annotated = {
            name: value
            for name, value in vars(cls).items()
            if not name.startswith("_") and (name not in before or before[name] is not value)
        }

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check everything once more against the application, and make it attributes. Called by Celery."""
        if cls._jobs_signature is not None:
            try:
                policies = binding.resolve(cls, app, base=Job)
            except PolicyError as problem:
                # Celery has registered it already.
                cls._jobs_problem = problem
                raise
            for name, value in policies.items():
                # A method stays a method of the class that has it.
                if getattr(cls, name) is not value or name in binding.KEPT_ASIDE:
                    setattr(cls, name, value)
            cls.priority = cls.priority
        own: Any = inspect.getattr_static(cls, "backend")
        if not isinstance(own, property):
            # Given as an attribute it would hide the property below.
            cls._backend = own
            cls.backend = Job.backend  # type: ignore[method-assign]
        super().on_bound(app)

    @property
    def backend(self) -> Any:
        """Where results and states are stored."""
        return states.backend_of(self, super().backend)

    @backend.setter
    def backend(self, backend: Any) -> None:
        self._backend = backend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body; with every policy when a worker calls, with none when Python code does."""
        request = self.request
        if request.called_directly or getattr(request, running.ENTERED, False):
            return super().__call__(*args, **kwargs)
        return running.run_attempt(self, args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        *,
        using: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Send a job. Takes what Celery's takes, and ``using``, the database whose transaction decides.

        Inside an atomic block of that database, and when it is to start later than half the broker's
        visibility timeout from now, the job is written to the outbox and leaves with the commit, or when it is due.

        Raises:
            PolicyError: when its key cannot be made, or its queue is none that the application declares.
            PayloadTooLarge: when its body is above ``payload_limit_bytes``.
            TypeError: when the arguments do not fit the parameters.
        """
        if self._jobs_problem is not None:
            raise self._jobs_problem
        if publishing.is_own(task_id, task=self.name) and not publishing.is_replacement(options):
            states.note_retry(self)
        sending = enqueueing.Sending(
            job=self,
            send=super().apply_async,
            args=args,
            kwargs=kwargs,
            task_id=task_id,
            producer=producer,
            using=using,
            options={**options, "link": link, "link_error": link_error, "shadow": shadow},
        )
        return sending.send_it()

    def enqueue_many(
        self, items: Iterable[Mapping[str, Any] | Sequence[Any]], *, using: str | None = None, **options: Any
    ) -> list[AsyncResult[Any]]:
        """Send many jobs of this task through the outbox: all of them or none, written by one statement.

        An item is a mapping of keyword arguments or a sequence of positional ones. Options are those of
        ``apply_async`` and count for every item.

        Raises:
            PolicyError, PayloadTooLarge, TypeError: as ``apply_async``, naming the item; nothing was sent.
        """
        return enqueueing.enqueue_many(self, items, using=using, options=options)

    def apply(  # type: ignore[override]
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        link: Any = None,
        link_error: Any = None,
        task_id: str | None = None,
        retries: int | None = None,
        throw: bool | None = None,
        **options: Any,
    ) -> EagerResult[Any]:
        """Run a job here and now, as ``task_always_eager`` does.

        Keys and errors count as in a worker; retries follow at once, and rate and concurrency do not
        count. With ``throw`` the error of the last attempt is raised.
        """
        task_id = task_id or uuid()
        is_retry = _applied.get() == task_id
        if throw is None:
            throw = bool(self.app.conf.task_eager_propagates)
        token = _applied.set(task_id)
        try:
            # Celery itself would raise the first attempt's Retry.
            result: EagerResult[Any] = super().apply(
                tuple(args or ()),
                dict(kwargs or {}),
                link,
                link_error,
                task_id,
                retries,
                throw=False,
                **options,
            )
        finally:
            _applied.reset(token)
        if throw and not is_retry:
            result.get(disable_sync_subtasks=False)
        return result

    def retry(self, *args: Any, eta: Any = None, countdown: float | None = None, **options: Any) -> Any:
        """Send this job once more, as Celery's does; it counts as an attempt like any other.

        Without ``eta`` and ``countdown`` it waits by the job's backoff. It leaves at once, inside a
        transaction too: its exception would roll an outbox row back.
        """
        if not eta and countdown is None and self.default_retry_delay is None:
            countdown = running.backoff_delay(self, self.request.retries)
        states.remember_error(self, options.get("exc", args[2] if len(args) > 2 else None))
        with publishing.directly():
            return running.sent_again(
                self, super().retry, args, {"eta": eta, "countdown": countdown, **options}
            )

    def on_replace(self, sig: Any) -> Any:
        """Send what takes this job's place, at once: the exception that follows would roll an outbox row back."""
        with publishing.directly():
            return super().on_replace(sig)

    def progress(self, done: int, total: int | None = None, note: str = "") -> None:
        """Say how far this job is, for the bar that operators see. Written at most once a second.

        Outside a worker it does nothing.
        """
        running.record_progress(self, done, total, note)
