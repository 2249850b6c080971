"""One attempt of a job in a worker: its key, its limits, its body, and what an error means."""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore, Reject, Retry
from django.utils import timezone

from jobs.agent.wire import AWAITED_HEADER, IDEMPOTENCY_HEADER, REPLAY_NUMBER_HEADER, SLOT_HEADER
from jobs.base import binding, publishing
from jobs.core import backoff
from jobs.core.keys import KeyRefused, checked_key, format_key, is_key, parse_template
from jobs.core.rates import parse_rate
from jobs.core.retry_after import read_retry_after
from jobs.errors import HeldBack, PermanentError, StaleAttempt

if TYPE_CHECKING:
    from jobs.base.job import Job

logger = logging.getLogger(__name__)

# Set on a request whose policies are in force, so that a body that calls its own job runs the body.
ENTERED = "jobs_entered"
# The key under which the request runs.
_KEY = "jobs_key"
# The Retry of an attempt that is on its way, and whether it was raised or only returned.
_RETRY, _WAS_RAISED = "jobs_retry", "jobs_retry_was_raised"
# self.retry() by hand said that this was the last attempt.
_GAVE_UP = "jobs_gave_up"


# Replacements of one replay that are told apart; more than any job makes, and the product fits the column.
_MOST_REPLACEMENTS = 100_000


class WrongArguments(PermanentError):
    """A job's arguments do not fit its parameters; it cannot run until one of the two is changed."""


class GoesOnElsewhere(Ignore):
    """Ends a copy whose job goes on in another message: that one tells how the job ended, not this copy.

    ``goes_on`` is what the agent reads. As an ending of its own it would resolve the letter of a replay
    whose next attempt may still die.
    """

    goes_on = True


class ComesBack(Retry):
    """Ends a copy that was held back before its body ran: the same attempt is in another message.

    ``goes_on`` is what the agent reads: this is no attempt that failed and is tried again.
    """

    goes_on = True


def run_attempt(job: Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body under the job's policies. Called by Celery's tracer, through ``Job.__call__``.

    Raises:
        Retry: when another attempt was published.
        Ignore: when a newer attempt of this job is known.
        Exception: the body's, when it is final.
    """
    request: Any = job.request
    setattr(request, ENTERED, True)
    is_done = False
    try:
        result = _run_once(job, args, kwargs)
        is_done = True
        return result
    except Retry:
        raise
    except (Ignore, Reject, PermanentError):
        _note_ended(job)
        raise
    except HeldBack as held:
        if request.is_eager:
            raise
        raise _come_back(job, held) from held
    except StaleAttempt as stale:
        logger.warning("%s", stale)
        raise GoesOnElsewhere(str(stale)) from stale
    except Exception as error:
        sent = getattr(request, _RETRY, None)
        if sent is not None:
            # By hand, and then the body went on and failed: one next attempt is enough.
            raise sent from error
        if request.retries >= job.max_retries or getattr(request, _GAVE_UP, False):
            _note_ended(job)
            raise
        raise job.retry(exc=error, countdown=backoff_delay(job, request.retries, error)) from error
    finally:
        _end_progress(request.id, is_done=is_done)


def key_of(job: Job, args: Any, kwargs: Any) -> str | None:
    """Return the idempotency key of a job with these arguments, None when it has none.

    Raises:
        KeyRefused: when it cannot be made; says which policy, why and what to do.
        TypeError: when the arguments do not fit the parameters.
    """
    return _made_key(job, "idempotency_key", args, kwargs)


def limit_key_of(job: Job, args: Any, kwargs: Any) -> str | None:
    """Return the key by which a job's limits count, None when they count for the task as a whole.

    Raises: as ``key_of``.
    """
    return _made_key(job, "limit_key", args, kwargs)


def backoff_delay(job: Job, attempt: int, error: BaseException | None = None) -> float:
    """Return the seconds until the attempt after this one, counted from 0."""
    return backoff.delay(
        attempt,
        base=job.backoff_base_seconds,
        factor=job.backoff_factor,
        cap=job.backoff_cap_seconds,
        uniform=random.uniform,
        at_least=0.0 if error is None else (asked_wait(error) or 0.0),
    )


def asked_wait(error: BaseException) -> float | None:
    """Return the seconds that an error asks to wait: its ``retry_after``, or an HTTP Retry-After.

    The header is looked for at ``error.response.headers`` (requests, httpx, aiohttp) and ``error.headers``
    (urllib). The error is somebody else's: whatever looking at it raises counts as no wish.
    """
    try:
        values = [
            getattr(error, "retry_after", None),
            _header(getattr(getattr(error, "response", None), "headers", None)),
            _header(getattr(error, "headers", None)),
        ]
        now = timezone.now()
        found = [read_retry_after(value, now=now) for value in values]
    except Exception:  # attributes of a foreign error may raise anything; the retry goes on
        logger.warning(
            "Could not read how long %s asks to wait; backoff decides.", type(error).__name__, exc_info=True
        )
        return None
    return next((seconds for seconds in found if seconds is not None), None)


def sent_again(job: Job, retry: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call Celery's ``retry`` and note in the ledger that the next attempt is on its way."""
    request: Any = job.request
    if request.called_directly or request.is_eager:
        return retry(*args, **options)
    try:
        sent = retry(*args, **options)
    except Retry as raised:
        setattr(request, _RETRY, raised)
        setattr(request, _WAS_RAISED, True)
        _note_sent(job)
        raise
    except Reject:
        _note_ended(job)
        raise
    except Exception:
        setattr(request, _GAVE_UP, True)
        raise
    setattr(request, _RETRY, sent)
    _note_sent(job)
    return sent


def record_progress(job: Job, done: int, total: int | None, note: str) -> None:
    """Hand a line of progress to the thread that writes it."""
    from jobs import idempotency

    request: Any = job.request
    if request.called_directly or request.id is None:
        return
    idempotency.record_progress(
        task=job.name, task_id=request.id, worker=request.hostname or "", done=done, total=total, note=note
    )


def _run_once(job: Job, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from jobs import idempotency

    request: Any = job.request
    try:
        binding.bind_arguments(job, args, kwargs)
    except TypeError as error:
        raise WrongArguments(
            f"Cannot run {job.name} with its arguments: {error}. Was its signature changed while the job waited? "
            "Edit the arguments and replay it, or give the new parameter a default."
        ) from error
    try:
        key = _key_in_force(job, args, kwargs)
        scope = limit_key_of(job, args, kwargs)
        setattr(request, _KEY, key)
    except KeyRefused as refused:
        raise PermanentError(f"Cannot run {job.name}: {refused}.") from refused

    def body() -> Any:
        with _admitted(job, scope):
            result = job.run(*args, **kwargs)
            if getattr(request, _WAS_RAISED, False):
                # It went on after self.retry(): the next attempt is on its way, so this one is not the end.
                logger.warning(
                    "Job %s of %s caught the Retry of its own self.retry() and went on; let it pass.",
                    *(request.id, job.name),
                )
                raise getattr(request, _RETRY)
            return result

    if key is None:
        return _in_transaction(job, body)
    return idempotency.run(
        task=job.name,
        key=key,
        task_id=request.id,
        attempt=request.retries,
        replay=_life_number(request),
        awaited=_count(_headers(request).get(AWAITED_HEADER)),
        body=body,
        atomic=job.atomic,
        using=_database(job),
        lease_seconds=job.idempotency_lease_seconds,
        has_successors=bool(request.callbacks or request.chain or request.chord),
    )


def _in_transaction(job: Job, body: Callable[[], Any]) -> Any:
    if not job.atomic:
        return body()
    from django.db import transaction

    with transaction.atomic(using=_database(job)):
        return body()


def _admitted(job: Job, scope: str | None) -> Any:
    if (job.rate is None and job.concurrency is None) or job.request.is_eager:
        return nullcontext()
    from jobs import limits

    request: Any = job.request
    return limits.admit(
        scope=job.name if scope is None else f"{job.name}:{scope}",
        rate=None if job.rate is None else parse_rate(job.rate),
        concurrency=job.concurrency,
        # Of the seat too: it is renewed while the body runs, and a killed process must not keep it for long.
        lease_seconds=job.idempotency_lease_seconds,
        slot=_headers(request).get(SLOT_HEADER),
        holder=request.id,
        longest_hold_seconds=_longest_hold_seconds(),
    )


def _come_back(job: Job, held: HeldBack) -> Exception:
    """Publish this job again, as it is and with the same attempt; return what ends this copy."""
    request: Any = job.request
    most = _longest_hold_seconds()
    seconds = held.seconds if most is None else min(held.seconds, most)
    # What it was held for before, if it was, is over.
    headers = {**_headers(request), AWAITED_HEADER: None, **held.headers}
    again = job.signature_from_request(
        request,
        countdown=seconds,
        headers={name: value for name, value in headers.items() if value is not None},
    )
    with publishing.directly():
        try:
            again.apply_async()
        except Exception as error:  # noqa: BLE001 - the broker's or the transport's, of any kind
            logger.warning("Job %s could not be held back, it goes back to its queue: %r", request.id, error)
            return Reject(f"It could not be held back: {error!r}", requeue=True)
    when: Any = seconds
    return ComesBack(str(held), when=when)


def _longest_hold_seconds() -> float | None:
    from jobs import outbox

    longest = outbox.longest_wait()
    return None if longest is None else longest.total_seconds()


def _note_sent(job: Job) -> None:
    from jobs import idempotency

    request: Any = job.request
    key = getattr(request, _KEY, None)
    if key is None:
        return
    idempotency.sent_attempt(
        task=job.name,
        key=key,
        task_id=request.id,
        attempt=request.retries + 1,
        using=_database(job),
        replay=_life_number(request),
    )


def _note_ended(job: Job) -> None:
    """Note in the ledger that no other attempt follows, so that one sent anew under this id is none too old."""
    from jobs import idempotency

    request: Any = job.request
    key = getattr(request, _KEY, None)
    if key is None or request.is_eager or getattr(request, _RETRY, None) is not None:
        return
    idempotency.ended(task=job.name, key=key, task_id=request.id, using=_database(job))


def _end_progress(task_id: str, *, is_done: bool) -> None:
    from jobs import idempotency

    idempotency.end_progress(task_id=task_id, is_done=is_done)


def _key_in_force(job: Job, args: Any, kwargs: Any) -> str | None:
    """Return the key that came with the message, or else make it."""
    if job.idempotency_key is None:
        return None
    sent = _headers(job.request).get(IDEMPOTENCY_HEADER)
    return sent if is_key(sent) else key_of(job, args, kwargs)


def _made_key(job: Job, policy: str, args: Any, kwargs: Any) -> str | None:
    source = getattr(job, policy)
    if source is None:
        return None
    try:
        if callable(source):
            return _key_from_method(source, args, kwargs)
        return format_key(parse_template(source), binding.bind_arguments(job, args, kwargs))
    except KeyRefused as refused:
        shown = getattr(source, "__name__", "a method") if callable(source) else repr(source)
        raise KeyRefused(f"{policy}={shown}: {refused}") from None


def _key_from_method(method: Callable[..., Any], args: Any, kwargs: Any) -> str | None:
    try:
        inspect.signature(method).bind(*(args or ()), **(kwargs or {}))
    except TypeError as error:
        raise KeyRefused(
            f"it does not take the arguments of the job ({error}). It is a method: self comes first, then the job's "
            "own parameters"
        ) from None
    made = method(*(args or ()), **(kwargs or {}))
    return None if made is None else checked_key(made)


def _header(headers: Any) -> object:
    if headers is None:
        return None
    for name, value in headers.items():
        if isinstance(name, (str, bytes)) and name.lower() in ("retry-after", b"retry-after"):
            return value
    return None


def _headers(request: Any) -> dict[str, Any]:
    return request.headers or {}


def _life_number(request: Any) -> int:
    """Return a number that is higher for each replay, and within one for each replacement of the job by itself.

    Both keep the job's id and count its attempts from 0 again.
    """
    replay = _count(_headers(request).get(REPLAY_NUMBER_HEADER))
    replacement = _count(getattr(request, "replaced_task_nesting", 0))
    return min(replay, 20_000) * _MOST_REPLACEMENTS + min(replacement, _MOST_REPLACEMENTS - 1)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _database(job: Job) -> str:
    return "default" if job.using is None else job.using
