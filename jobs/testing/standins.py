"""What takes the place of the broker and of the result store while tests run: both in memory, in this process."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

from celery import Celery, _state
from celery.app.amqp import AMQP
from celery.app.base import PendingConfiguration  # type: ignore[attr-defined]
from celery.app.utils import Settings
from celery.backends.base import DisabledBackend
from celery.backends.cache import CacheBackend
from celery.states import FAILURE, READY_STATES, SUCCESS
from kombu import Exchange, Producer, Queue
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from jobs.errors import JobsError


class NotRunYet(JobsError):
    """A test waits for a result that no worker will bring."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredMessage:
    """A message as the broker would hold it: the body in bytes, so that arguments are what a worker reads."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    queue: str
    exchange: str = ""
    routing_key: str = ""
    # The application that sent it; None when that cannot be told.
    app: Celery | None = None
    number: int = field(default_factory=itertools.count(1).__next__)

    def decode(self, app: Celery) -> Any:
        """Return the payload.

        Raises:
            Exception: kombu's, when a worker of ``app`` could not or would not read it.
        """
        body: Any = self.body
        return Message(
            body=body,
            content_type=self.content_type,
            content_encoding=self.content_encoding,
            # A copy: kombu takes the compression out.
            headers=dict(self.headers),
            accept=prepare_accept_content(app.conf.accept_content),
        ).decode()


Take = Callable[[StoredMessage], None]


class CollectingProducer(Producer):
    """A producer that prepares messages as kombu does and hands them to the test instead of a broker."""

    def __init__(self, app: Celery, take: Take) -> None:
        # Not kombu's: it opens a channel.
        self.app = app
        self.take = take
        self.serializer = app.conf.task_serializer
        self.compression = None
        self.auto_declare = False
        self.on_return = None

    @property
    def connection(self) -> Any:
        """Celery asks it for little more than how errors are translated."""
        return self.app.connection_for_write()

    def publish(self, body: Any, *, routing_key: str | None = None, **options: Any) -> None:  # type: ignore[override]
        """Take the arguments of ``kombu.Producer.publish``. What is no job is dropped: nobody listens."""
        exchange = options.pop("exchange", None) or ""
        exchange = exchange.name if isinstance(exchange, Exchange) else str(exchange)
        declare = options.pop("declare", None) or ()
        headers = dict(options.pop("headers", None) or {})
        encoded, content_type, content_encoding = self._prepare(
            body,
            options.pop("serializer", None),
            options.pop("content_type", None),
            options.pop("content_encoding", None),
            options.pop("compression", None),
            headers,
        )
        if "task" not in headers:
            return
        for name in _NOT_OF_THE_MESSAGE:
            options.pop(name, None)
        queue = next((each.name for each in declare if isinstance(each, Queue)), None)
        self.take(
            StoredMessage(
                body=encoded.encode() if isinstance(encoded, str) else bytes(encoded),
                content_type=content_type,
                content_encoding=content_encoding,
                headers=headers,
                properties={name: value for name, value in options.items() if value is not None},
                queue=str(queue or routing_key or ""),
                exchange=exchange,
                routing_key=routing_key or "",
                app=self.app,
            )
        )

    def revive(self, channel: Any) -> None:
        """Do nothing: there is no channel."""

    def release(self) -> None:
        """Do nothing: there is no pool."""

    close = release


# How to publish, not what.
_NOT_OF_THE_MESSAGE = (
    *("mandatory", "immediate", "retry", "retry_policy", "timeout", "confirm_timeout"),
    *("auto_declare", "delivery_mode", "expiration"),
)


class CollectingPool:
    """Has of kombu's producer pool what Celery uses."""

    limit = None

    def __init__(self, app: Celery, take: Take) -> None:
        self._producer = CollectingProducer(app, take)
        # Celery asks which transport it is before it sends a job with an ETA.
        self.connections = SimpleNamespace(
            connection=SimpleNamespace(transport=SimpleNamespace(driver_type="memory"))
        )

    @contextmanager
    def acquire(self, block: bool = False, timeout: float | None = None) -> Iterator[CollectingProducer]:
        """Give the producer."""
        yield self._producer


class _Shelf:
    """The few calls of a cache client that Celery's backend makes, on a dict."""

    def __init__(self) -> None:
        self._values: dict[Any, Any] = {}

    def get(self, key: Any) -> Any:
        return self._values.get(key)

    def get_multi(self, keys: Any) -> dict[Any, Any]:
        return {key: self._values[key] for key in keys if key in self._values}

    def set(self, key: Any, value: Any, expires: float = 0) -> None:
        self._values[key] = value

    def delete(self, key: Any) -> None:
        self._values.pop(key, None)

    def incr(self, key: Any, delta: int = 1) -> int:
        self._values[key] = int(self._values.get(key, 0)) + delta
        return int(self._values[key])

    def touch(self, key: Any, expires: float) -> None:
        pass


class MemoryBackend(CacheBackend):
    """Keeps results for one test, encoded as a real store would keep them."""

    def __init__(self, app: Celery) -> None:
        super().__init__(app, url="memory://")
        self.__dict__["client"] = _Shelf()

    def mark_as_done(
        self, task_id: str, result: Any, request: Any = None, store_result: bool = True, state: str = SUCCESS
    ) -> None:
        """Keep what a chord needs, as the Redis store does, also when the job's own result is ignored."""
        store_result = store_result or _is_of_chord(request)
        super().mark_as_done(task_id, result, request, store_result, state)

    def mark_as_failure(
        self,
        task_id: str,
        exc: Exception,
        traceback: str | None = None,
        request: Any = None,
        store_result: bool = True,
        call_errbacks: bool = True,
        state: str = FAILURE,
    ) -> None:
        """Keep the failure of a chord's part, as above."""
        store_result = store_result or _is_of_chord(request)
        super().mark_as_failure(task_id, exc, traceback, request, store_result, call_errbacks, state)

    def wait_for(self, task_id: str, *args: Any, **options: Any) -> Any:
        """Return a result that is there.

        Raises:
            NotRunYet: instead of waiting for ever for a worker.
        """
        meta = self.get_task_meta(task_id)
        if meta["status"] not in READY_STATES:
            raise NotRunYet(
                f"Cannot wait for the result of job {task_id}: it has not run. Call run_jobs() before get(); "
                "when it has run, it ignores its result, or its task does not store one."
            )
        return meta


class StandIns:
    """Puts the stand-ins in place of every Celery application's broker and result store, and back."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._stack: ExitStack | None = None
        self._pools: weakref.WeakKeyDictionary[AMQP, CollectingPool] = weakref.WeakKeyDictionary()
        self._backends: weakref.WeakKeyDictionary[Celery, Any] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Replace them, on the classes, so that an application that a test makes is covered as well."""
        stack = ExitStack()
        pool, backend = self._pool, self._backend
        # Celery has a name for it on both.
        stack.enter_context(mock.patch.object(AMQP, "producer_pool", property(pool)))
        stack.enter_context(mock.patch.object(AMQP, "publisher_pool", property(pool)))
        stack.enter_context(mock.patch.object(Celery, "backend", property(backend, _ignore)))
        # An eager job sees no message, no transaction and no second attempt, so eager ones are sent as well.
        for conf in (Settings, PendingConfiguration):
            stack.enter_context(mock.patch.object(conf, "task_always_eager", property(_no), create=True))
        self._stack = stack

    def remove(self) -> None:
        """Put everything back."""
        if self._stack is not None:
            self._stack.close()
            self._stack = None

    def forget_results(self) -> None:
        """Begin with empty result stores, as a new test does."""
        self._backends.clear()

    def _pool(self, amqp: AMQP) -> CollectingPool:
        pool = self._pools.get(amqp)
        if pool is None:
            pool = self._pools[amqp] = CollectingPool(amqp.app, self._take)
        return pool

    def _backend(self, app: Celery) -> Any:
        backend = self._backends.get(app)
        if backend is None:
            # Without a result store a chord cannot be sent and a result not be asked for: that stays so.
            backend = DisabledBackend(app=app) if _stores_nothing(app) else MemoryBackend(app)
            self._backends[app] = backend
        return backend


def _is_of_chord(request: Any) -> bool:
    return request is not None and bool(request.chord)


def _no(conf: Any) -> bool:
    return False


def _ignore(app: Celery, value: Any) -> None:
    """Take no other result store while tests run."""


def _stores_nothing(app: Celery) -> bool:
    name = app.backend_cls or app.conf.result_backend
    return name is None or (isinstance(name, str) and name.partition(":")[0] == "disabled")


def applications() -> list[Any]:
    """Return the applications of this process; the one that tasks are bound to first."""
    state: Any = _state
    current = state.get_current_app()
    current = current._get_current_object() if hasattr(current, "_get_current_object") else current
    others = sorted(
        (app for app in state._get_active_apps() if app is not current), key=lambda app: str(app.main)
    )
    return [current, *others]


def application_of(task: str, sender: Celery | None) -> Celery:
    """Return the application in which a job of this task would run."""
    known = [sender] if sender is not None else applications()
    for app in known:
        if task in app.tasks:
            return app
    return known[0]


def moment(text: Any) -> datetime | None:
    """Read the ETA or expiry of a message."""
    if not text:
        return None
    value = text if isinstance(text, datetime) else datetime.fromisoformat(str(text))
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
