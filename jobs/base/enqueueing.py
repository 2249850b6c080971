"""What happens between ``apply_async`` and the message: the key, the size, and which way it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult
from celery.utils import uuid
from django.db import DatabaseError, InterfaceError, transaction
from django.utils import timezone
from kombu.exceptions import EncodeError, OperationalError

from jobs.agent.wire import AWAITED_HEADER, IDEMPOTENCY_HEADER, SLOT_HEADER
from jobs.base import binding, publishing, running
from jobs.core.keys import KeyRefused
from jobs.errors import OutboxRefused, PayloadTooLarge, PolicyError
from jobs.outbox import content

if TYPE_CHECKING:
    from jobs.base.job import Job

logger = logging.getLogger(__name__)

# Written by kombu on a message that Redis gave back; a copy of it would make a first delivery look like a second.
_REDELIVERED = "redelivered"


@dataclass(slots=True)
class Sending:
    """One call of ``apply_async``; ``send`` is Celery's."""

    job: Job
    send: Callable[..., Any]
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    task_id: str | None
    producer: Any
    using: str | None
    options: dict[str, Any]

    def send_it(self) -> AsyncResult[Any]:
        """Check, choose the way and send."""
        job = self.job
        dump = job._dump_pydantic_arguments  # type: ignore[attr-defined]
        if dump is not None and self.options.get("serializer", job.serializer) != "pickle":
            # The key is made of what the worker will get.
            self.args, self.kwargs = dump(self.args, self.kwargs)
        # The job that runs sends itself again: it was checked when it was first sent.
        is_own = publishing.is_own(self.task_id, task=job.name)
        if job.typing and not is_own:
            self._check_arguments()
        self.options["headers"] = self._headers(is_own=is_own)
        queue = self.options.get("queue")
        if isinstance(queue, str) and not is_own:
            binding.check_queue(job.name, queue, job.app)
        if self.using is not None:
            binding.check_using(job.name, self.using)
        self._declare_exchange()
        self._make_error_links_a_list()
        self.task_id = self.task_id or uuid()
        if job.app.conf.task_always_eager:
            self._check_size()
            return self._send(self.producer)
        if self._belongs_into_the_outbox():
            try:
                return self._send_to_the_outbox()
            except (DatabaseError, InterfaceError) as error:
                if not is_own:
                    raise
                # A retry that waits long, while the database is away: better early in a worker than not at all.
                logger.warning("Job %s waits in a worker, not in the outbox: %s", self.task_id, error)
                self.options["ignore_result"] = bool(job.ignore_result)
        return self._send_directly(limit_bytes=None if is_own else job.payload_limit_bytes)

    @property
    def database(self) -> str:
        """The database whose transaction decides."""
        if self.using is not None:
            return self.using
        return "default" if self.job.using is None else self.job.using

    def _check_arguments(self) -> None:
        # Celery does not look at those of a job that is a class.
        try:
            binding.bind_arguments(self.job, self.args, self.kwargs)
        except TypeError as error:
            raise TypeError(
                f"Cannot enqueue {self.job.name} with these arguments: {error}. It takes {self.job._jobs_signature}; "
                "nothing was sent."
            ) from None

    def _headers(self, *, is_own: bool) -> dict[str, Any]:
        headers = dict(self.options.get("headers") or {})
        if is_own:
            headers.pop(_REDELIVERED, None)
            if self.options.get("retries", 0) != publishing.own_retries():
                # Both are for the attempt that was held back.
                headers.pop(SLOT_HEADER, None)
                headers.pop(AWAITED_HEADER, None)
            if IDEMPOTENCY_HEADER in headers:
                return headers
        else:
            # Of another job, should a body have handed its own headers on.
            headers.pop(SLOT_HEADER, None)
            headers.pop(AWAITED_HEADER, None)
            headers.pop(IDEMPOTENCY_HEADER, None)
        job = self.job
        try:
            key = running.key_of(job, self.args, self.kwargs)
            running.limit_key_of(job, self.args, self.kwargs)
        except KeyRefused as refused:
            raise PolicyError(f"Cannot enqueue {job.name}: {refused}. Nothing was sent.") from refused
        if key is not None:
            headers[IDEMPOTENCY_HEADER] = key
        return headers

    def _declare_exchange(self) -> None:
        """Have the queues of an exchange that is given by its name declared, as Celery has those of a queue.

        A retry of a job that came through an exchange names it so. On Redis a process that has not declared
        a topic exchange takes it for a direct one, finds no queue, and drops the message without a word.
        """
        exchange = self.options.get("exchange")
        if not isinstance(exchange, str) or not exchange or "declare" in self.options:
            return
        queues = self.job.app.amqp.queues.values()
        bound = [queue for queue in queues if queue.exchange is not None and queue.exchange.name == exchange]
        if bound:
            self.options["declare"] = bound

    def _make_error_links_a_list(self) -> None:
        """Put the error link of a chord's body into a list, as Celery expects it.

        ``body.set(link_error=signature)`` leaves it bare; a signature is a dict, so Celery walks over its
        keys when a job of the chord dies, and calls nobody.
        """
        chord = self.options.get("chord")
        options = chord.get("options") if isinstance(chord, Mapping) else None
        if options and isinstance(options.get("link_error"), Mapping):
            options["link_error"] = [options["link_error"]]

    def _belongs_into_the_outbox(self) -> bool:
        from jobs import outbox

        if isinstance(self.producer, outbox.OutboxProducer):
            return True
        if outbox.is_open(self.database):
            return not (publishing.is_direct() or publishing.is_own(self.task_id))
        return outbox.must_hold(
            eta=self.options.get("eta"), countdown=self.options.get("countdown"), now=timezone.now()
        )

    def _send_to_the_outbox(self) -> AsyncResult[Any]:
        from jobs import outbox

        job = self.job
        producer: Any = self.producer
        if not isinstance(producer, outbox.OutboxProducer):
            # Another one comes from a group or chord, which took it from Celery's pool: it would not wait.
            producer = outbox.OutboxProducer(using=self.database, payload_limit_bytes=job.payload_limit_bytes)
        # send_task would make a producer of it.
        self.options.pop("connection", None)
        wants_result = not self.options.get("ignore_result", job.ignore_result)
        if wants_result:
            self.options["ignore_result"] = True
            producer = publishing.UnsubscribedProducer(producer)
        result = self._send(producer)
        result.ignored = not wants_result
        return result

    def _send_directly(self, *, limit_bytes: int | None) -> AsyncResult[Any]:
        app = self.job.app
        connection = self.options.pop("connection", None)
        given = self.producer or self.options.pop("publisher", None)
        if connection is not None:
            given = app.amqp.Producer(connection, auto_declare=False)
        try:
            with app.producer_or_acquire(given) as producer:
                return self._send(
                    publishing.MeasuringProducer(producer, limit_bytes=limit_bytes, task=self.job.name)
                )
        except OperationalError as error:
            if limit_bytes is None:
                # The job that runs sends itself again, and the agent reads why it could not.
                raise
            raise publishing.NotConfirmed(
                f"Cannot enqueue {self.job.name} as job {self.task_id}: the broker did not confirm it ({error}). "
                "Unless only its answer was lost, nothing was sent. Enqueue it inside transaction.atomic(), and it "
                "waits in the outbox until the broker is back."
            ) from error

    def _check_size(self) -> None:
        """Look at the size of a job that runs here and now: it would be refused in production."""
        body: tuple[Any, ...] = (self.args or (), self.kwargs or {}, {})
        serializer = self.options.get("serializer") or self.job.serializer
        encoded = content.encode(body, serializer=serializer, compression=self.options.get("compression"))
        content.check_size(len(encoded.body), limit_bytes=self.job.payload_limit_bytes, task=self.job.name)

    def _send(self, producer: Any) -> AsyncResult[Any]:
        result: AsyncResult[Any] = self.send(
            self.args, self.kwargs, task_id=self.task_id, producer=producer, **self.options
        )
        return result


def enqueue_many(
    job: Job,
    items: Iterable[Mapping[str, Any] | Sequence[Any]],
    *,
    using: str | None,
    options: dict[str, Any],
) -> list[AsyncResult[Any]]:
    """Send every item or none, see ``Job.enqueue_many``."""
    from jobs import outbox

    for name in ("task_id", "producer", "connection", "publisher"):
        if name in options:
            raise TypeError(
                f"Cannot enqueue many jobs of {job.name} with {name}: each gets its own id, and all leave through "
                f"the outbox. Leave {name} out."
            )
    if job.app.conf.task_always_eager:
        batch = [_arguments(job, number, item) for number, item in enumerate(items)]
        return [job.apply_async(args, kwargs, using=using, **options) for args, kwargs in batch]
    if using is not None:
        # Before its transaction begins.
        binding.check_using(job.name, using)
    database = using if using is not None else "default" if job.using is None else job.using
    # Before a transaction begins: a generator may take its time.
    batch = [_arguments(job, number, item) for number, item in enumerate(items)]
    producer = outbox.OutboxProducer(using=database, payload_limit_bytes=job.payload_limit_bytes)
    results = []
    # Many rows are several statements.
    block = nullcontext() if outbox.is_open(database) else transaction.atomic(using=database)
    with block, outbox.collecting(database):
        for number, (args, kwargs) in enumerate(batch):
            try:
                results.append(job.apply_async(args, kwargs, producer=producer, using=database, **options))
            except (PolicyError, PayloadTooLarge, OutboxRefused, TypeError, EncodeError) as error:
                raise type(error)(f"Item {number} of {job.name}: {error}") from error
    return results


def _arguments(job: Job, number: int, item: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(item, Mapping):
        return (), item
    if isinstance(item, Sequence) and not isinstance(item, (str, bytes, bytearray)):
        return item, {}
    raise TypeError(
        f"Item {number} of {job.name}: {item!r:.200} is neither a mapping of keyword arguments nor a sequence of "
        "positional ones. Give for instance {'order_id': 5} or (5,)."
    )
