"""FAILURE_MODES rows 42 and 43: a worker that is told to stop at once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.agent.fleet import Worker
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def test_row_42_a_cold_shutdown_captures_what_nothing_brings_back(own_worker: Callable[..., Worker]) -> None:
    worker = own_worker("prefork").start()
    early, late = worker.path("early"), worker.path("late")
    lost = worker.send("shop.wait", str(early), "never")
    kept = worker.send("shop.wait_late", str(late), "never")
    worker.wait_for_line(early)
    worker.wait_for_line(late)

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
