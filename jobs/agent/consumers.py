"""What Celery calls with a message that never becomes a job: captures first, then lets Celery reject it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from celery.exceptions import InvalidTaskError
from celery.utils.imports import symbol_by_name
from celery.worker import consumer as celery_consumer
from celery.worker import state as celery_state
from kombu.exceptions import ContentDisallowed
from kombu.message import Message

from . import messages, reasons
from .agent import Agent, death_of_message, unregistered
from .deliveries import Deliveries
from .endings import Ending
from .requests import capturing
from .stopping import is_shutting_down, let_children_answer

logger = logging.getLogger(__name__)

# celery-types knows only the public half of it.
Consumer: Any = celery_consumer.Consumer


def capturing_consumer(base: type[Any], agent: Agent) -> type[Any]:
    """Return the consumer class of a worker, with capture in front of its own."""
    return type(
        f"Capturing{base.__name__}",
        (CapturingConsumer, base),
        {"jobs_agent": agent, "jobs_deliveries": Deliveries(agent), "__module__": __name__},
    )


class CapturingConsumer(Consumer):
    """In front of what the ``worker_consumer`` setting names."""

    jobs_agent: Agent
    jobs_deliveries: Deliveries
    # What the broker knows jobs by that waited here when the connection was lost.
    jobs_waiting_tags: Sequence[str] = ()

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Message], Any]:
        """Refuse messages without task or id before Celery looks them up."""
        self.jobs_agent.watch(self)
        self._give_back_waiting()
        on_task_received = super().create_task_handler(*args, **kwargs)

        @functools.wraps(on_task_received)
        def on_message(message: Message) -> Any:
            problem = messages.header_problem(message)
            if problem:
                return self.on_invalid_task(None, message, InvalidTaskError(problem))
            return on_task_received(message)

        return on_message

    def on_close(self) -> Any:
        """Let the children start what they were given, before Celery forgets it."""
        let_children_answer(self)
        if is_shutting_down():
            self.jobs_agent.start_last_beats()
        # Celery cancels and forgets those that wait for their time. Older releases keep no such list.
        waiting = tuple(getattr(celery_state, "scheduled_requests", ()))
        result = super().on_close()
        self.jobs_waiting_tags = [
            request.message.delivery_tag
            for request in waiting
            if not request.acknowledged and getattr(request._eta_timer_entry, "canceled", False)
        ]
        return result

    def _give_back_waiting(self) -> None:
        """Put jobs that waited for their time in this worker back on their queues, once it has reconnected.

        Redis itself would hand them out again after the visibility timeout, an hour later. One that somebody
        else has put back is left alone.
        """
        tags, self.jobs_waiting_tags = self.jobs_waiting_tags, []
        # A channel of RabbitMQ has no qos: that broker itself puts back what was not acknowledged.
        give_back = getattr(getattr(self.task_consumer.channel, "qos", None), "restore_by_tag", None)
        if give_back is None:
            return
        for tag in tags:
            give_back(tag)
        if tags:
            logger.warning("%s jobs that waited for their time are on their queues again.", len(tags))

    def on_connection_error_after_connected(self, exc: BaseException) -> Any:
        """Reconnect as Celery does, and let what is still done on the old connection fail as on a broken one.

        Celery 5.7 closes it a second time, and acknowledges on it jobs that end meanwhile. kombu has cleared
        it by then, and on Redis that is an AttributeError, which nobody expects: it ended every worker in
        which a job waited for its ETA, a retry or a limit while the broker restarted.
        """
        transport = getattr(self.connection, "_transport", None)
        for channel in tuple(getattr(transport, "channels", None) or ()):
            _break_when_cleared(channel)
        return super().on_connection_error_after_connected(exc)

    def update_strategies(self) -> Any:
        """Put the capturing request in front of every task's, Celery's own tasks included."""
        for task in self.app.tasks.values():
            task.Request = capturing(symbol_by_name(task.Request), self.jobs_agent, self.jobs_deliveries)
        result = super().update_strategies()
        for name, strategy in self.strategies.items():
            self.strategies[name] = _checking(strategy)
        return result

    def on_unknown_task(self, body: Any, message: Message, exc: BaseException) -> Any:
        """Capture a job whose task is not registered here."""
        names = self.jobs_agent.names_of(message)
        ending = unregistered(messages.text(names.get("task")))
        return self._bury(
            message, ending, lambda: super(CapturingConsumer, self).on_unknown_task(body, message, exc)
        )

    def on_unknown_message(self, body: Any, message: Message) -> Any:
        """Capture a message that is no job."""
        ending = death_of_message(
            reasons.MALFORMED, InvalidTaskError("It is no message of Celery's."), message
        )
        return self._bury(
            message, ending, lambda: super(CapturingConsumer, self).on_unknown_message(body, message)
        )

    def on_invalid_task(self, body: Any, message: Message, exc: BaseException) -> Any:
        """Capture a job that cannot be run, or whose content type is not accepted."""
        reason = reasons.UNDECODABLE if isinstance(exc, ContentDisallowed) else reasons.MALFORMED
        return self._bury(
            message,
            death_of_message(reason, exc, message),
            lambda: super(CapturingConsumer, self).on_invalid_task(body, message, exc),
        )

    def on_decode_error(self, message: Message, exc: BaseException) -> Any:
        """Capture a message whose body cannot be decoded; Celery acknowledges it."""
        return self._bury(
            message,
            death_of_message(reasons.UNDECODABLE, exc, message),
            lambda: super(CapturingConsumer, self).on_decode_error(message, exc),
        )

    def _bury(self, message: Message, ending: Ending, then: Callable[[], Any]) -> None:
        self.jobs_agent.count_message(message)
        if not self.jobs_agent.keep_message(message, ending):
            return  # unacknowledged, it is the only copy that is left
        try:
            then()
        except Exception as error:  # noqa: BLE001 (the result backend, mostly; the message is captured)
            logger.warning(
                "A message ended as %s, and Celery's own bookkeeping failed: %r", ending.reason, error
            )
        if not message.acknowledged:
            message.reject_log_error(logger, self.connection_errors)


def _checking(strategy: Callable[..., Any]) -> Callable[..., Any]:
    """Check the shape of the body in front of a strategy, which would end the worker over it."""

    @functools.wraps(strategy)
    def task_message_handler(message: Message, *args: Any, **kwargs: Any) -> Any:
        problem = messages.body_problem(message)
        if problem:
            raise InvalidTaskError(problem)
        return strategy(message, *args, **kwargs)

    return task_message_handler


def _break_when_cleared(channel: Any) -> None:
    """Have a channel of Redis raise ConnectionError, which callers expect, once its connection was cleared."""
    original = getattr(channel, "_connparams", None)
    if original is None:
        return

    def parameters(*args: Any, **kwargs: Any) -> Any:
        if channel.connection is None or channel.connection.client is None:
            raise ConnectionError("The connection to the broker was lost, and another one is in its place.")
        return original(*args, **kwargs)

    channel._connparams = parameters
