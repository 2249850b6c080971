"""The state RETRY of a job, stored before its next attempt is sent.

Celery sends first and stores then. An attempt that ends in between has its result replaced by RETRY, on Redis
too: Celery looks whether there is a result and stores a moment later. Whoever waits for that job, its group or
its chord, then waits for ever. No wait before the next attempt is long enough: a process may stand still.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

from celery.exceptions import Retry

if TYPE_CHECKING:
    from jobs.base.job import Job

logger = logging.getLogger(__name__)

# Set on a request: the error that it is retried for, and that its RETRY is stored, or cannot be.
_ERROR, _IS_NOTED = "jobs_retry_error", "jobs_retry_is_noted"


class WithoutRetries:
    """A result backend for an attempt whose RETRY is stored already: Celery's own would come too late."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def mark_as_retry(self, *args: Any, **kwargs: Any) -> None:
        """Store nothing."""


def backend_of(job: Job, backend: Any) -> Any:
    """Return what the attempt that runs is to store its states in."""
    return WithoutRetries(backend) if getattr(job.request, _IS_NOTED, False) else backend


def remember_error(job: Job, error: Any) -> None:
    """Keep the error that ``self.retry()`` was given, for the state."""
    request: Any = job.request
    if not request.called_directly:
        setattr(request, _ERROR, error)


def note_retry(job: Job) -> None:
    """Store RETRY for the attempt that runs, as Celery does once it is sent.

    A backend that does not take it must not keep the job: it is sent all the same. Celery would also count
    such an attempt as failed, with its successor on the way.
    """
    request: Any = job.request
    if request.is_eager or getattr(request, _IS_NOTED, False):
        return
    backend: Any = job.backend
    setattr(request, _IS_NOTED, True)
    # What the message says goes before what the task says.
    said = vars(request).get("ignore_result")
    is_ignored = job.ignore_result if said is None else said
    if is_ignored and not job.store_errors_even_if_ignored:
        return
    try:
        # Celery's own choice of what is stored of it.
        error = Retry(exc=vars(request).pop(_ERROR, None)).exc
        shown = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else None
        backend.mark_as_retry(request.id, error, shown, request=request)
    except Exception as error:  # noqa: BLE001 - the result backend's, of any kind
        logger.warning("Job %s is sent again; that could not be stored as its state: %r", request.id, error)
