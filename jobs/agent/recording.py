"""Counts what a worker runs and tells it once a second on ``jobs.runs``; that is also its heartbeat."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import load, messages
from .batches import Batch, RunningJob, encode
from .counting import Cells
from .sender import BrokerAway, Sender
from .settings import AgentSettings

logger = logging.getLogger(__name__)

# A batch is sent so often when there is something, or as soon as so many attempts have ended.
BATCH_SECONDS = 1.0
BATCH_RECORDS = 500
# Between the one that tells at once that a job began and the next one.
LEAST_SECONDS = 0.25
# Records that are kept while they cannot be sent, and that go in one batch; further ones are dropped.
MOST_RECORDS = 5_000
MOST_RECORDS_IN_BATCH = 2_000
# How often the length of the queue is looked at.
LOOK_SECONDS = 5.0
# While the broker does not take batches: deaths go through the same connection, and a failure makes them wait.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 3.0, 30.0
# With more of them running or waiting in the worker they are told with the heartbeat only, not each second.
MANY_REQUESTS = 1_000
_MOST_ATTEMPT = 2**31 - 1


class Recorder:
    """Keeps what ended until it is told. None of its methods raises, and each may be called by any thread.

    What happens is appended to a queue, which neither another thread nor a signal handler can find half
    written; whoever sends adds it up. A batch is made once and keeps its number: when the broker may have
    taken it and did not say so, the same bytes go out again before anything else.
    """

    def __init__(
        self,
        settings: AgentSettings,
        sender: Sender,
        *,
        boot_id: str,
        hostname: str,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._sender = sender
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._owner: int | None = None
        # (at, task, queue) of what was received, and of what ended the values of a FinishedRun.
        self._events: deque[tuple[Any, ...]] = deque()
        self._cells = Cells()
        self._runs: list[tuple[Any, ...]] = []
        self._dropped = 0
        self._has_news = True
        # A batch that may have arrived, and how many attempts it counts.
        self._unsure: bytes | None = None
        self._unsure_attempts = 0
        self._is_over_cap = False
        self._looked_at = self._sent_at = self._measured_at = float("-inf")
        self._wait_seconds, self._waits_until = 0.0, float("-inf")
        self._consumer: Any = None
        self._is_solo = False
        # The numbers of the batches: also ``tell_state`` takes them, while somebody makes a batch.
        self._numbers = itertools.count(1)
        self._unsure_state: bytes | None = None
        self._batch = Batch(boot_id=boot_id, sequence=0, hostname=hostname, at=0.0, started_at=clock())

    def watch(self, consumer: Any) -> None:
        """Tell of this consumer from now on, which has connected, perhaps again."""
        self._consumer = consumer
        self._is_solo = load.pool_name(consumer) == "solo"
        self._has_news = True
        self._wait_seconds, self._waits_until = 0.0, float("-inf")

    # What the requests and the consumer report

    def receive(self, task: str, queue: str) -> None:
        """Count a message that the worker took."""
        self._events.append((self._clock(), task, queue))

    def begin(self) -> None:
        """Tell that a job began: at once after a quiet second, else within one.

        What a worker that is killed had not told is lost with it, and in the pool solo nothing else is done
        before the job ends.
        """
        self._has_news = True
        if self._monotonic() - self._sent_at >= BATCH_SECONDS:
            self.send()

    def end_request(
        self, request: Any, outcome: str, *, runtime: float | None = None, error_type: str = ""
    ) -> None:
        """Keep how an attempt ended; ``runtime`` is what the child measured, if it did."""
        try:
            now = self._clock()
            published = messages.published_at(messages.headers_of(request._message))
            started = request.time_start
            latency = None
            if started is not None:
                if published is not None:
                    eta = request._eta
                    due = published if eta is None else max(published, eta.timestamp())
                    latency = started - due if started > due else 0.0
                if runtime is None:
                    runtime = max(0.0, now - started)
            name = messages.name
            self._events.append(
                (
                    name(request.id),
                    request.jobs_task,
                    request.jobs_queue,
                    outcome,
                    _attempt(request._request_dict.get("retries")),
                    request.jobs_publication,
                    name(request._root_id),
                    published,
                    started,
                    now,
                    latency,
                    runtime,
                    name(error_type),
                )
            )
        except Exception:
            logger.exception("Job %s ended as %s and could not be counted.", request.id, outcome)
            return
        if len(self._events) >= 2 * BATCH_RECORDS:
            self.send()

    def end_message(
        self, *, task: Any, queue: str, task_id: Any, publication_id: str, published_at: float | None
    ) -> None:
        """Count a message that was received and died without becoming a job."""
        now, name = self._clock(), messages.name(task)
        self._events.append((now, name, queue))
        self._events.append(
            (
                *(messages.name(task_id), name, queue, "dead", 0, messages.name(publication_id), ""),
                *(published_at, None, now, None, None, ""),
            )
        )

    # Sending

    def send(self, *, is_goodbye: bool = False, sender: Sender | None = None) -> bool:
        """Add up what happened and send it if it is time; the last batch of a worker goes in any case.

        Through the agent's connection, or that of ``sender``. Returns False when somebody else is at it.
        """
        sender = self._sender if sender is None else sender
        # Somebody else may be at it, or this thread itself, below a signal handler.
        if self._owner == threading.get_ident() or not self._acquire(is_goodbye):
            return False
        self._owner = threading.get_ident()
        try:
            self._absorb()
            if is_goodbye:
                self._batch.is_goodbye = True
                sender.resume()
            self._send_due(sender, is_goodbye=is_goodbye)
        except BrokerAway as away:
            self._wait(away)
        except Exception:
            logger.exception("What this worker did could not be reported; it is tried again.")
        finally:
            self._owner = None
            self._lock.release()
        if is_goodbye and (uncounted := self._unsure_attempts + self._cells.attempts()):
            logger.warning(
                "%d attempts that ended here may not be counted: the last batch could not be sent.", uncounted
            )
        return True

    def tell_state(self, sender: Sender) -> None:
        """Tell what this worker is doing, and count nothing: whoever adds that up may not get on for minutes.

        For one thread, beside a ``send`` that a signal handler has interrupted. That one's batch has a lower
        number and comes later.
        """
        now = self._monotonic()
        # Another thread that sends as it should is no reason.
        if now - self._sent_at < BATCH_SECONDS or now < self._waits_until or sender.is_paused:
            return
        try:
            if self._unsure_state is None:
                if sender.runs_waiting() >= self._settings.runs_cap:
                    return
                self._unsure_state = self._make_state()
            self._sent_at = now
            sender.publish_batch(self._unsure_state)
            self._unsure_state = None
        except BrokerAway as away:
            self._wait(away)
        except Exception:
            logger.exception("This worker could not tell that it lives; it is tried again.")

    def _acquire(self, is_goodbye: bool) -> bool:
        if is_goodbye:
            return self._lock.acquire(timeout=4 * self._settings.timeout_seconds)
        return self._lock.acquire(blocking=False)

    def _absorb(self) -> None:
        events, cells, runs = self._events, self._cells, self._runs
        share, room = self._settings.history_sample, 0 if self._is_over_cap else MOST_RECORDS
        for _ in range(len(events)):
            event = events.popleft()
            if len(event) == 3:
                cells.receive(*event)
                continue
            _, task, queue, outcome, _, _, _, _, _, at, latency, runtime, _ = event
            cell = cells.end(at, task, queue, outcome, latency, runtime)
            if share < 1 and outcome == "done" and random.random() >= share:  # noqa: S311 (a sample, no secret)
                continue
            if len(runs) < room:
                runs.append(event)
            else:
                cell.dropped += 1
                self._dropped += 1

    def _send_due(self, sender: Sender, *, is_goodbye: bool) -> None:
        now = self._monotonic()
        is_heartbeat = now - self._sent_at >= self._settings.heartbeat_seconds
        has_news = self._has_news or self._runs or len(self._cells)
        if not (is_goodbye or is_heartbeat or has_news):
            return
        if not is_goodbye and now - self._sent_at < LEAST_SECONDS and len(self._runs) < BATCH_RECORDS:
            return
        if not is_goodbye and (now < self._waits_until or sender.is_paused):
            return
        if self._unsure is not None:
            self._publish(self._unsure, sender)
        if not self._is_room(now, sender, factor=2 if is_goodbye else 1):
            return
        if self._is_costly() and not (is_goodbye or is_heartbeat):
            return
        while True:
            self._unsure_attempts = self._cells.attempts()
            self._unsure = self._make()
            self._sent_at = self._monotonic()
            self._publish(self._unsure, sender)
            if len(self._runs) < BATCH_RECORDS and not (is_goodbye and self._runs):
                return

    def _publish(self, body: bytes, sender: Sender) -> None:
        sender.publish_batch(body)
        self._unsure, self._unsure_attempts = None, 0
        self._wait_seconds = 0.0

    def _is_costly(self) -> bool:
        """Return whether to tell what runs costs more than what there is to tell."""
        running = len(self._batch.running)
        return running > MANY_REQUESTS and len(self._runs) < running

    def _is_room(self, now: float, sender: Sender, *, factor: int) -> bool:
        """Look at the length of the queue now and then; with too many batches in it nothing is added.

        The counts stay here, in fewer and larger cells. The goodbye, which takes all counts along, may
        go to twice the length.
        """
        if now - self._looked_at >= LOOK_SECONDS or factor > 1:
            self._looked_at = now
            length = sender.runs_waiting()
            was_over, self._is_over_cap = self._is_over_cap, length >= factor * self._settings.runs_cap
            if self._is_over_cap and not was_over:
                logger.warning(
                    "%d batches wait on jobs.runs, and nobody reads them: this worker goes on counting, "
                    "and keeps no record of single jobs until they are fewer than %d.",
                    *(length, self._settings.runs_cap),
                )
                self._drop_records()
        return not self._is_over_cap

    def _drop_records(self) -> None:
        for _, task, queue, _, _, _, _, _, _, at, *_ in self._runs:
            self._cells.drop(at, task, queue)
        self._dropped += len(self._runs)
        self._runs = []

    def _make(self) -> bytes:
        batch, consumer = self._batch, self._consumer
        batch.at = self._clock()
        self._has_news = False
        if consumer is not None:
            self._describe(batch, consumer)
        batch.cells = self._cells.take()
        runs, self._runs = self._runs[:MOST_RECORDS_IN_BATCH], self._runs[MOST_RECORDS_IN_BATCH:]
        batch.dropped, self._dropped = self._dropped, 0
        batch.sequence = next(self._numbers)
        return encode(batch, rows=runs)

    def _make_state(self) -> bytes:
        batch = dataclasses.replace(self._batch, sequence=next(self._numbers), cells=[], runs=[], dropped=0)
        batch.at = self._clock()
        if self._consumer is not None:
            self._describe(batch, self._consumer)
        # Read last: what is told after the goodbye is one too, or the worker would be back and then lost.
        batch.is_goodbye = self._batch.is_goodbye
        return encode(batch)

    def _describe(self, batch: Batch, consumer: Any) -> None:
        now = self._monotonic()
        running = load.running_requests()
        batch.running = [
            # One of a strategy of the application's own has nothing to tell.
            self._running_job(each, batch.at)
            for each in running
            if not getattr(each, "jobs_is_recorded", True)
        ]
        concurrency = load.concurrency_of(consumer)
        # A pool that is closed tells none.
        batch.concurrency = batch.concurrency if concurrency is None else concurrency
        batch.pool = load.pool_name(consumer)
        batch.queues = load.queues_of(consumer)
        is_time = now - self._measured_at >= self._settings.heartbeat_seconds
        if is_time or sum(batch.held.values()) + sum(batch.reserved.values()) < MANY_REQUESTS:
            batch.held = load.by_queue(load.held_requests(consumer))
            batch.reserved = load.by_queue(load.reserved_requests(consumer))
        if is_time:
            self._measured_at = now
            batch.load, batch.memory_bytes = load.load_average(), load.memory_bytes(consumer)

    def _running_job(self, request: Any, now: float) -> RunningJob:
        headers = messages.headers_of(request.message)
        letter, item = messages.replay_of(headers)
        return RunningJob(
            task_id=messages.name(request.id),
            task=request.jobs_task,
            queue=request.jobs_queue,
            attempt=_attempt(request.request_dict.get("retries")),
            publication_id=request.jobs_publication,
            root_id=messages.name(request.root_id),
            published_at=messages.published_at(headers),
            started_at=now if request.time_start is None else request.time_start,
            # In the pool solo the acknowledgement leaves when the job is over.
            is_acknowledged=bool(request.acknowledged) and not self._is_solo,
            replay_of=messages.name(letter),
            replay_item=item,
        )

    def _wait(self, away: BrokerAway) -> None:
        logger.debug("What this worker did waits, since the broker did not take it: %s.", away)
        self._wait_seconds = min(max(2 * self._wait_seconds, FIRST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)
        self._waits_until = self._monotonic() + self._wait_seconds


def _attempt(retries: Any) -> int:
    if retries == 0:
        return 0
    return min(max(messages.whole(retries) or 0, 0), _MOST_ATTEMPT)
