"""The agent of one worker: turns endings into records and keeps them safe."""

from __future__ import annotations

import logging
import time
import uuid
from collections import OrderedDict
from typing import Any

from celery import Celery, Task
from kombu.message import Message

from . import errors, messages, reasons
from .beats import Beats
from .endings import Ending
from .inherited import close_inherited
from .recording import BATCH_SECONDS, Recorder
from .sender import BrokerAway, Sender
from .settings import AgentSettings
from .signatures import describe_parameters
from .spool import Spool, SpoolFull, broker_directory
from .wire import Record, WireError, WireMessage, encode

logger = logging.getLogger(__name__)

# Deaths remembered, so that a second hook, or a redelivery after an acknowledgement that the broker
# did not get, is not recorded twice. The collector knows for good; this only spares it the work.
REMEMBERED = 10_000
# What one tick of the worker's timer may spend on the spool: its event loop stands still meanwhile.
DRAIN_RECORDS = 500
DRAIN_SECONDS = 0.5


class Agent:
    """Keeps what ended badly in one worker process. None of its methods raises."""

    def __init__(self, app: Celery, settings: AgentSettings, hostname: str) -> None:
        self.app = app
        self.settings = settings
        self.hostname = hostname
        self.boot_id = uuid.uuid4().hex
        self.sender = Sender(app, settings)
        self.spool = Spool(broker_directory(settings.spool_directory, _broker_url(app)), self.boot_id)
        self.recorder: Recorder | None = None
        self._beats: Beats | None = None
        if settings.is_recording:
            self.recorder = Recorder(settings, self.sender, boot_id=self.boot_id, hostname=hostname)
            self._beats = Beats(self.recorder, Sender(app, settings))
        # A cold shutdown ends what runs; a job whose start is read from now on is ended as well.
        self.is_ending_jobs = False
        self._consumer: Any = None
        self._parameters: dict[str, list[str] | None] = {}
        self._kept: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._entries: list[Any] = []
        self._tags: dict[str, str] = {}

    def watch(self, consumer: Any) -> None:
        """Use this consumer's queues and timer from now on: it has connected, perhaps again."""
        self._consumer = consumer
        self._tags = {}
        self.sender.resume()
        entries, self._entries = self._entries, []
        timer = consumer.timer
        try:
            for entry in entries:
                timer.cancel(entry)
            self._entries.append(timer.call_repeatedly(self.settings.tick_seconds, self.send_spool))
            timer.call_after(0.2, self.send_spool)
            if self.recorder is not None:
                self.recorder.watch(consumer)
                self._entries.append(timer.call_repeatedly(BATCH_SECONDS, self.recorder.send))
        except Exception:
            logger.exception("The agent has no timer; records in the spool wait for the next start.")

    @property
    def pool(self) -> Any:
        """The pool of the worker; only once it has a consumer."""
        return self._consumer.pool

    def start_last_beats(self) -> None:
        """Go on reporting while the worker shuts down; no child may be forked from now on."""
        if self._beats is not None:
            self._beats.start()

    def say_goodbye(self) -> None:
        """Send what waits in the spool, report the last of what this worker did, and that it ends.

        A signal that comes amid a publish finds the connection in use, so what its handler ends is in the
        spool though the broker is there; and the disk may be gone with the worker.
        """
        if self.spool.files():
            self.sender.resume()
            self.send_spool()
        if self._beats is not None and self.recorder is not None:
            self._beats.stop()
            self.recorder.send(is_goodbye=True)

    def leave_connection_to_parent(self, **_: Any) -> None:
        """Receiver of ``worker_process_init``, which Celery sends in each child."""
        if self._consumer is not None:
            close_inherited(self._consumer.connection)

    def send_spool(self) -> None:
        """Send what waits in the spool, within bounds."""
        if self.sender.is_paused or not self.spool.files():
            return
        try:
            sent = self.spool.drain(self.sender.publish_record, limit=DRAIN_RECORDS, seconds=DRAIN_SECONDS)
        except BrokerAway:
            return
        except Exception:
            logger.exception("The spool %s could not be sent; it is tried again.", self.spool.directory)
            return
        if sent:
            logger.info("Sent %d records from the spool.", sent)

    def queue_of(self, message: Message) -> str:
        """Return the queue a message came from, as far as a worker can tell."""
        delivery = message.delivery_info if isinstance(message.delivery_info, dict) else {}
        exchange, routing_key = (
            messages.text(delivery.get("exchange")),
            messages.text(delivery.get("routing_key")),
        )
        consumer = getattr(self._consumer, "task_consumer", None)
        tag = delivery.get("consumer_tag")
        if tag:
            # Of each message, so remembered; a tag is not used twice on a connection.
            if tag not in self._tags:
                active = getattr(consumer, "_active_tags", None) or {}
                self._tags = {str(each): str(name) for name, each in active.items()}
            if tag in self._tags:
                return self._tags[tag]
        if not exchange:
            return routing_key
        bound = [
            queue.name
            for queue in getattr(consumer, "queues", None) or ()
            if queue.exchange is not None and queue.exchange.name == exchange
        ]
        exact = [
            queue.name
            for queue in getattr(consumer, "queues", None) or ()
            if queue.name in bound and queue.routing_key == routing_key
        ]
        for candidates in (exact, bound):
            if len(candidates) == 1:
                return str(candidates[0])
        return routing_key

    def publication_of(self, request: Any) -> str:
        """Return the id of the publication a request came with."""
        return messages.publication_id(request.message, task_id=str(request.id), boot_id=self.boot_id)

    def count_message(self, message: Message) -> None:
        """Count a message that dies without becoming a job."""
        if self.recorder is None:
            return
        try:
            names, headers = self.names_of(message), messages.headers_of(message)
            task_id = messages.text(names.get("id"))
            self.recorder.end_message(
                task=names.get("task"),
                queue=messages.name(self.queue_of(message)),
                task_id=task_id,
                publication_id=messages.publication_id(message, task_id=task_id, boot_id=self.boot_id),
                published_at=messages.published_at(headers),
            )
        except Exception:
            logger.exception("A message that died could not be counted.")

    def parameters_of(self, task: Task) -> list[str] | None:
        """Return the names of a task's positional parameters."""
        name = str(task.name)
        if name not in self._parameters:
            described = describe_parameters(task)
            self._parameters[name] = None if described is None else described["names"]
        return self._parameters[name]

    def keep_request(self, request: Any, ending: Ending) -> bool:
        """Record how a job ended, and return whether the record is safe.

        A death, or for a replayed job its outcome, or an ending. True also when it was recorded
        before.
        """
        try:
            values = request.request_dict
            message = request.message
            letter, item = messages.replay_of(messages.headers_of(message))
            kind = "death" if ending.is_death else "outcome" if letter else "ending"
            return self._keep(
                Record(
                    kind=kind,
                    reason=ending.reason,
                    publication_id=self.publication_of(request),
                    attempt=messages.whole(values.get("retries")) or 0,
                    at=time.time(),
                    task=messages.text(values.get("task")),
                    task_id=str(request.id),
                    worker=self.hostname,
                    boot_id=self.boot_id,
                    root_id=messages.text(values.get("root_id")),
                    parent_id=messages.text(values.get("parent_id")),
                    published_at=messages.published_at(messages.headers_of(message)),
                    started_at=request.time_start,
                    message=messages.to_wire(message, self.queue_of(message)) if ending.is_death else None,
                    error=ending.error,
                    parameters=self.parameters_of(request.task),
                    replay_of=letter,
                    replay_item=item,
                    details=ending.details,
                )
            )
        except Exception:
            logger.exception("Job %s ended as %s and could not be recorded.", request.id, ending.reason)
            return False

    def keep_message(self, message: Message, ending: Ending) -> bool:
        """Record a message that never became a job, and return whether the record is safe."""
        try:
            names = self.names_of(message)
            headers = messages.headers_of(message)
            task_id = messages.text(names.get("id"))
            letter, item = messages.replay_of(headers)
            return self._keep(
                Record(
                    kind="death",
                    reason=ending.reason,
                    publication_id=messages.publication_id(message, task_id=task_id, boot_id=self.boot_id),
                    attempt=messages.whole(names.get("retries")) or 0,
                    at=time.time(),
                    task=messages.text(names.get("task")),
                    task_id=task_id,
                    worker=self.hostname,
                    boot_id=self.boot_id,
                    root_id=messages.text(names.get("root_id")),
                    parent_id=messages.text(names.get("parent_id")),
                    published_at=messages.published_at(headers),
                    message=messages.to_wire(message, self.queue_of(message)),
                    error=ending.error,
                    replay_of=letter,
                    replay_item=item,
                    details=ending.details,
                )
            )
        except Exception:
            logger.exception("A message ended as %s and could not be recorded.", ending.reason)
            return False

    @staticmethod
    def names_of(message: Message) -> dict[str, Any]:
        """Return task, id and the like, from the headers or, in protocol 1, from the body."""
        headers = messages.headers_of(message)
        if "task" in headers:
            return headers
        try:
            payload = message.payload
        except Exception:  # noqa: BLE001 (it is being recorded because it cannot be decoded)
            return headers
        return {**payload, **headers} if isinstance(payload, dict) else headers

    def _keep(self, record: Record) -> bool:
        key = (record.publication_id, record.attempt)
        if record.kind == "death" and key in self._kept:
            return True
        if not self._store(_encode(record), record):
            return False
        if record.kind == "death":
            self._kept[key] = None
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
        return True

    def _store(self, body: bytes, record: Record) -> bool:
        try:
            self.sender.publish_record(body)
            return True
        except BrokerAway as away:
            reason = away
        try:
            self.spool.append(body)
        except SpoolFull as full:
            logger.critical(
                "Job %s ended as %s, and neither the broker (%s) nor the spool %s (%s) took its record.",
                record.task_id,
                record.reason,
                reason,
                self.spool.directory,
                full,
            )
            return False
        logger.warning(
            "Job %s ended as %s; its record waits in the spool, since the broker did not take it: %s.",
            record.task_id,
            record.reason,
            reason,
        )
        return True


def _encode(record: Record) -> bytes:
    """Encode a record; when a header has no form at all, keep the body and say what could not be kept."""
    try:
        return encode(record)
    except Exception as error:  # noqa: BLE001 (a hostile header must not cost the whole message)
        problem = f"{type(error).__name__}: {error}"[:200]
    message = record.message
    kept = None
    if message is not None:
        kept = WireMessage(
            body=message.body,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers={name: value for name, value in message.headers.items() if _has_form(value)},
            properties={name: value for name, value in message.properties.items() if _has_form(value)},
            exchange=message.exchange,
            routing_key=message.routing_key,
            queue=message.queue,
        )
    values = {name: getattr(record, name) for name in Record.__dataclass_fields__}
    values.update(message=kept, details={"not_encoded": problem})
    return encode(Record(**values))


def _has_form(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _broker_url(app: Celery) -> str:
    url = app.conf.broker_write_url or app.conf.broker_url or ""
    return str(url[0] if isinstance(url, (list, tuple)) and url else url)


def death_of_message(reason: str, exc: BaseException, message: Message) -> Ending:
    """Return the ending of a message that never became a job."""
    details = {"content_type": messages.text(message.content_type)} if reason == reasons.UNDECODABLE else {}
    return Ending(reason, errors.describe(exc), details)


def unregistered(name: str) -> Ending:
    """Return the ending of a job whose task no module of this worker defines."""
    return Ending(
        reasons.UNREGISTERED,
        WireError(
            type="celery.exceptions.NotRegistered",
            message=f"No task named {name!r} is registered."[: errors.MESSAGE_LIMIT_CHARS],
            traceback="",
        ),
    )
