"""FAILURE_MODES rows 42 and 43: a worker that is told to stop at once."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.agent.fleet import Sent, Worker
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def give_to_a_child_that_stands_still(worker: Worker, task: str, *args: Any) -> tuple[Sent, psutil.Process]:
    """Send a job to a worker of one child, which has it but does not say that it began until it is resumed."""
    worker.run_fence()
    assert worker.process is not None
    (child,) = psutil.Process(worker.process.pid).children()
    child.suspend()
    job = worker.send(task, *args)
    # Its log says "received" before the loop writes the job to the child, or a part of it.
    wait_until(lambda: unread_bytes(child), what="the job to be given to the child")
    return job, child


def unread_bytes(process: psutil.Process) -> int:
    """Count what waits in the pipes of a process."""
    total = 0
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        if not str(path.readlink()).startswith("pipe:"):
            continue
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            answer = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        finally:
            os.close(descriptor)
        total += int.from_bytes(answer, sys.byteorder)
    return total


def test_row_42_a_cold_shutdown_captures_what_nothing_brings_back(own_worker: Callable[..., Worker]) -> None:
    worker = own_worker("prefork").start()
    early, late = worker.path("early"), worker.path("late")
    lost = worker.send("shop.wait", str(early), "never")
    kept = worker.send("shop.wait_late", str(late), "never")
    worker.wait_until_it_tells_of(lost, kept)

    worker.stop(signal.SIGQUIT)

    records = worker.records()
    assert [(each.task_id, each.kind, each.reason) for each in records] == [
        (lost.task_id, "death", "worker_lost")
    ]
    assert records[0].details == {"cold_shutdown": True}
    assert records[0].message is not None
    assert records[0].message.body == lost.body
    with worker.redis() as client:
        waiting = client.lrange("celery", 0, -1) + client.hvals("unacked")
    assert [kept.task_id.encode() in each for each in waiting] == [True]


def test_a_cold_shutdown_also_ends_a_job_that_begins_once_the_others_were_ended(
    own_worker: Callable[..., Worker],
) -> None:
    """Celery knows only of what a child has said that it began, and would wait for the end of this one."""
    worker = own_worker("prefork", concurrency=1).start()
    started = worker.path("started")
    job, child = give_to_a_child_that_stands_still(worker, "shop.wait", str(started), "never")
    assert worker.process is not None

    os.kill(worker.process.pid, signal.SIGQUIT)
    wait_until(lambda: b"Hitting Ctrl+C again" in worker.log.read_bytes(), what="the shutdown to begin")
    child.resume()
    wait_until(lambda: not worker.is_alive, seconds=30, what="the worker to end, sooner than after 60 s")

    (record,) = worker.records()
    assert (record.task_id, record.reason, record.details) == (
        job.task_id,
        "worker_lost",
        {"cold_shutdown": True},
    )


def test_a_warm_shutdown_ends_what_runs_and_records_nothing(own_worker: Callable[..., Worker]) -> None:
    worker = own_worker("prefork").start()
    started, go = worker.path("started"), worker.path("go")
    worker.send("shop.wait", str(started), str(go))
    worker.wait_for_line(started)

    assert worker.process is not None
    worker.process.send_signal(signal.SIGTERM)
    go.write_text("")
    wait_until(lambda: not worker.is_alive, seconds=20)

    assert worker.records() == []


@pytest.mark.parametrize("size", [10, 200_000], ids=["small", "larger than its pipe"])
def test_a_job_given_to_a_child_just_before_a_warm_shutdown_runs_once(
    own_worker: Callable[..., Worker], size: int
) -> None:
    """Celery forgot it, since the child had not answered, and it ran again: in one of ten restarts under load."""
    # It says when the loop that reads what children answer has ended.
    worker = own_worker("prefork", concurrency=1, arguments=("-l", "DEBUG")).start()
    path = worker.path("late")
    _, child = give_to_a_child_that_stands_still(worker, "shop.mark_late", str(path), "x" * size)
    assert worker.process is not None

    os.kill(worker.process.pid, signal.SIGTERM)
    wait_until(lambda: b"Worker: Stopping Consumer" in worker.log.read_bytes(), what="the consumer to close")
    child.resume()
    wait_until(lambda: not worker.is_alive, seconds=20, what="the worker to end, sooner than after 30 s")

    assert len(worker.lines(path)) == 1
    assert worker.is_drained()
    assert worker.records() == []


def test_a_child_that_never_answers_does_not_keep_a_worker_from_closing(
    own_worker: Callable[..., Worker],
) -> None:
    worker = own_worker("prefork", concurrency=1).start()
    path = worker.path("late")
    _, child = give_to_a_child_that_stands_still(worker, "shop.mark_late", str(path), "x")
    assert worker.process is not None

    os.kill(worker.process.pid, signal.SIGTERM)
    wait_until(lambda: b"do not answer" in worker.log.read_bytes(), seconds=20, what="the patience to end")
    child.kill()
    wait_until(lambda: not worker.is_alive, seconds=40, what="the worker to end")

    assert not worker.is_drained()
