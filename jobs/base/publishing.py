"""How a job's messages leave: through the outbox, or directly after a look at their size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery._state import get_current_worker_task
from kombu.exceptions import OperationalError

from jobs.errors import JobsError
from jobs.outbox import content

_is_direct: ContextVar[bool] = ContextVar("jobs_publish_directly", default=False)


class NotConfirmed(JobsError, OperationalError):
    """The broker did not confirm a job that was enqueued outside a transaction. It is kombu's OperationalError too."""


@contextmanager
def directly() -> Iterator[None]:
    """Publish everything inside at once, whatever transaction is open.

    A job that sends itself again ends its body with an exception, and that rolls an outbox row back.
    """
    token = _is_direct.set(True)
    try:
        yield
    finally:
        _is_direct.reset(token)


def is_direct() -> bool:
    """Return whether ``directly`` is in force."""
    return _is_direct.get()


def is_own(task_id: str | None, *, task: str | None = None) -> bool:
    """Return whether this id is that of the job that is running: a retry, a hold or a replacement.

    With ``task`` also whether it is the same task, which a replacement need not be.
    """
    running = get_current_worker_task() if task_id is not None else None
    if running is None or running.request.id != task_id:
        return False
    return task is None or running.name == task


def is_replacement(options: Mapping[str, Any]) -> bool:
    """Return whether these options of ``apply_async`` are those of what takes the place of the job that is running."""
    running = get_current_worker_task()
    before = 0 if running is None else getattr(running.request, "replaced_task_nesting", 0)
    return (options.get("replaced_task_nesting") or 0) > (before or 0)


def own_retries() -> int:
    """Return the number of the attempt that is running, counted from 0."""
    running = get_current_worker_task()
    return 0 if running is None else int(running.request.retries or 0)


class MeasuringProducer:
    """A kombu producer that refuses a body above a job's limit before anything is sent."""

    def __init__(self, producer: Any, *, limit_bytes: int | None, task: str) -> None:
        self._producer = producer
        self._limit_bytes = limit_bytes
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        serializer: str | None = None,
        compression: str | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        **options: Any,
    ) -> Any:
        """Serialise once, look at the size, and publish those bytes.

        Raises:
            PayloadTooLarge: with size, limit and what to do.
        """
        encoded = content.encode(
            body,
            serializer=serializer or self._producer.serializer,
            compression=compression or self._producer.compression,
            content_type=content_type,
            content_encoding=content_encoding,
        )
        content.check_size(len(encoded.body), limit_bytes=self._limit_bytes, task=self._task)
        headers = dict(headers or {})
        if encoded.compression is not None:
            headers["compression"] = encoded.compression
        return self._producer.publish(
            encoded.body,
            headers=headers,
            # Not None, for which the producer would compress once more by its own default.
            compression="",
            content_type=encoded.content_type,
            content_encoding=encoded.content_encoding,
            **options,
        )


class UnsubscribedProducer:
    """An outbox producer for a job whose result is kept, sent without a word to the result backend.

    Celery subscribes to the result when it sends a job. In a transaction that would make the request
    wait for the backend's server, so the job is sent as one without result, and its header put right here.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, *, headers: dict[str, Any], **options: Any) -> Any:
        """Publish with the result wanted again."""
        return self._producer.publish(body, headers={**headers, "ignore_result": False}, **options)
