"""Real workers that are killed, or only stand still, while they run jobs; a real Redis, and once RabbitMQ."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from kombu import Connection

from jobs.agent.wire import RUNS_QUEUE
from jobs.broker import connect
from jobs.broker.inbox import Inbox
from jobs.collector import Collector
from jobs.core.words import LetterState, Reason
from jobs.metrics import lost
from jobs.metrics.collecting import RunsCollector
from jobs.metrics.workers import boots_now
from jobs.models import DeadLetter, Run, WorkerBoot
from tests.agent.fleet import Sent, Worker
from tests.rabbit import VirtualHost
from tests.servers import RedisServer, wait_until

pytestmark = pytest.mark.django_db


class Place:
    """A broker, the collectors in this process, and workers that this test starts."""

    def __init__(self, connection: Callable[[], Connection], url: str, directory: Path) -> None:
        self.inboxes = Inbox(connection(), RUNS_QUEUE), Inbox(connection())
        self.runs, self.letters = RunsCollector(self.inboxes[0]), Collector(self.inboxes[1])
        self.url = url
        self.directory = directory
        self.workers: list[Worker] = []

    def worker(self, pool: str = "prefork", **options: Any) -> Worker:
        worker = Worker(
            pool=pool, broker_url=self.url, directory=self.directory / f"w{len(self.workers)}", **options
        )
        self.workers.append(worker)
        return worker.start()

    def collect(self) -> None:
        """Read what was told until now, of both kinds."""
        while self.runs.collect(wait_seconds=0, now=timezone.now()):
            pass
        while self.letters.collect(wait_seconds=0, now=timezone.now()):
            pass

    def wait_for_running(self, sent: Sent) -> None:
        """Wait until a worker has told that it runs the job."""

        def is_told() -> bool:
            self.collect()
            return any(
                job["task_id"] == sent.task_id
                for boot in boots_now(now=timezone.now())
                for job in boot.running
            )

        wait_until(is_told, seconds=60, what="the worker to tell what it runs")

    def wait_for_end(self, sent: Sent) -> None:
        def is_told() -> bool:
            self.collect()
            told = Run.objects.filter(task_id=sent.task_id).exclude(error_type=lost.ERROR_TYPE)
            return told.exists()

        wait_until(is_told, seconds=60, what="the worker to tell what ended")

    def stop(self) -> None:
        for worker in self.workers:
            # Also one that stands still.
            worker.kill()
        for inbox in self.inboxes:
            inbox.close()


@pytest.fixture
def place(broker: RedisServer, tmp_path: Path) -> Iterator[Place]:
    place = Place(connect, broker.url, tmp_path)
    yield place
    place.stop()


@pytest.fixture
def rabbit_place(rabbit: VirtualHost, settings: Any, tmp_path: Path) -> Iterator[Place]:
    settings.BROKER_URL = rabbit.url
    place = Place(connect, rabbit.url, tmp_path)
    yield place
    place.stop()


def with_children(worker: Worker, number: int) -> None:
    """Send a signal to the worker and all its children."""
    assert worker.process is not None
    os.killpg(worker.process.pid, number)


def start_waiting(place: Place, worker: Worker, task: str = "shop.wait") -> tuple[Sent, Path]:
    """Let the worker begin a job, and return the file that lets it go on."""
    started, go = worker.path(), worker.path()
    sent = worker.send(task, str(started), str(go))
    worker.wait_for_line(started)
    place.wait_for_running(sent)
    return sent, go


def half_a_minute_later() -> Any:
    return timezone.now() + timedelta(seconds=31)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_row_24_early_ack_and_whole_worker_killed(place: Place, pool: str) -> None:
    worker = place.worker(pool)
    sent, _ = start_waiting(place, worker)

    worker.kill()
    place.collect()
    assert lost.declare_lost(now=half_a_minute_later()) == 1

    letter = DeadLetter.objects.get()
    assert (letter.task_id, letter.task, letter.reason) == (sent.task_id, "shop.wait", Reason.WORKER_LOST)
    assert letter.unreplayable
    assert [boot.state for boot in boots_now(now=timezone.now())] == ["lost"]


def test_the_late_acknowledged_job_of_a_killed_worker_runs_again_and_leaves_no_letter(place: Place) -> None:
    worker = place.worker()
    sent, go = start_waiting(place, worker, "shop.wait_late")

    worker.kill()
    place.collect()
    assert lost.declare_lost(now=half_a_minute_later()) == 0
    go.touch()

    def is_given_back() -> bool:
        worker.restore_unacknowledged()
        with worker.redis() as client:
            return bool(client.llen(worker.queue))

    wait_until(is_given_back, what="the broker to give the job back")
    place.worker()
    place.wait_for_end(sent)

    assert Run.objects.get(task_id=sent.task_id).outcome == "done"
    assert not DeadLetter.objects.exists()


def test_a_worker_that_only_stood_still_is_back_and_its_job_ends_beside_the_death_that_was_counted(
    place: Place,
) -> None:
    worker = place.worker()
    sent, go = start_waiting(place, worker)

    with_children(worker, signal.SIGSTOP)
    place.collect()
    assert lost.declare_lost(now=half_a_minute_later()) == 1
    assert DeadLetter.objects.get().state == LetterState.DEAD
    with_children(worker, signal.SIGCONT)
    go.touch()
    place.wait_for_end(sent)

    letter = DeadLetter.objects.get()
    assert letter.state == LetterState.RESOLVED
    assert letter.error.endswith(lost.CAME_BACK)
    runs = Run.objects.filter(task_id=sent.task_id).order_by("pk")
    assert list(runs.values_list("outcome", "error_type")) == [("dead", lost.ERROR_TYPE), ("done", "")]
    assert [boot.state for boot in boots_now(now=timezone.now())] == ["online"]


def test_a_job_that_dies_after_its_worker_came_back_has_a_letter_with_its_message(place: Place) -> None:
    worker = place.worker()
    sent, go = start_waiting(place, worker, "shop.wait_and_fail")

    with_children(worker, signal.SIGSTOP)
    place.collect()
    lost.declare_lost(now=half_a_minute_later())
    with_children(worker, signal.SIGCONT)
    go.touch()
    place.wait_for_end(sent)
    wait_until(lambda: place.collect() or DeadLetter.objects.count() == 2, what="the death to be collected")

    presumed, real = DeadLetter.objects.order_by("pk")
    assert (presumed.state, real.state, real.reason) == (
        LetterState.RESOLVED,
        LetterState.DEAD,
        Reason.FAILED,
    )
    assert bytes(real.message.body) == sent.body


def test_a_worker_that_is_stopped_says_goodbye_and_is_never_lost(place: Place) -> None:
    worker = place.worker()
    place.collect()

    worker.stop()
    place.collect()

    assert lost.declare_lost(now=timezone.now() + timedelta(hours=2)) == 0
    assert [boot.state for boot in boots_now(now=timezone.now())] == ["gone"]


def test_batches_come_through_rabbitmq_too(rabbit_place: Place) -> None:
    worker = rabbit_place.worker()
    sent, _ = start_waiting(rabbit_place, worker)
    worker.kill()
    rabbit_place.collect()

    assert lost.declare_lost(now=half_a_minute_later()) == 1

    assert DeadLetter.objects.get().task_id == sent.task_id
    assert WorkerBoot.objects.get().missing == []
    again = Inbox(connect(), RUNS_QUEUE)
    assert again.depth() == 0
    again.close()
