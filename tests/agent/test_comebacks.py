"""FAILURE_MODES rows 22, 24, 40, 52: a job that comes back may not do so for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.agent.fleet import Worker
from tests.servers import wait_until

pytestmark = pytest.mark.worker

OwnWorker = Callable[..., Worker]


def test_row_22_a_job_that_kills_its_child_comes_back_three_times(prefork: Worker) -> None:
    path = prefork.path()
    sent = prefork.send("shop.poison", str(path))

    record = prefork.record_of(sent)

    assert (record.kind, record.reason) == ("death", "worker_lost")
    assert record.details == {"signal": "SIGKILL", "comebacks": 3}
    assert prefork.lines(path) == ["ran"] * 4
    assert record.message is not None
    assert record.message.body == sent.body
    assert prefork.state_of(sent) == "FAILURE"


def test_row_40_a_job_that_asks_to_be_put_back_comes_back_three_times(worker: Worker) -> None:
    path = worker.path()

    record = worker.record_of(worker.send("shop.reject_requeue", str(path)))

    assert (record.kind, record.reason) == ("death", "rejected")
    assert record.details == {"requeue": True, "comebacks": 3}
    assert worker.lines(path) == ["ran"] * 4


def test_row_52_a_job_that_always_runs_out_of_time_comes_back_three_times(prefork: Worker) -> None:
    path = prefork.path()

    record = prefork.record_of(prefork.send("shop.hard_limit_late", str(path)))

    assert (record.kind, record.reason) == ("death", "timed_out")
    assert record.details == {"hard_limit": 1, "comebacks": 3}
    assert prefork.lines(path) == ["ran"] * 4


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_job_that_takes_the_whole_worker_down_dies_and_its_neighbours_do_not(
    own_worker: OwnWorker, pool: str
) -> None:
    worker = own_worker(pool, concurrency=1)
    path, others = worker.path("poison"), worker.path("others")
    # With threads it holds all four by then; the loop of solo fetches no other while a job runs.
    sent = worker.send("shop.take_all_down", str(path), {"threads": 4, "solo": 1}[pool])
    for number in range(3):
        worker.send("shop.mark_late", str(others), str(number))

    for _ in range(4):
        worker.start()
        wait_until(lambda: not worker.is_alive, seconds=70, what=f"the worker to die ({worker.log})")
        worker.restore_unacknowledged()
    worker.start()
    record = worker.record_of(sent)

    assert (record.kind, record.reason) == ("death", "worker_lost")
    assert record.details == {"comebacks": 3}
    assert worker.lines(path) == ["ran"] * 4
    # Fetched by each dying worker, started by none.
    assert sorted(worker.lines(others)) == ["0", "1", "2"]
    assert [each.task_id for each in worker.records()] == [sent.task_id]
    with worker.redis() as client:
        assert client.keys("jobs.deliveries.*") == []


def test_the_number_of_comebacks_can_be_set(own_worker: OwnWorker) -> None:
    worker = own_worker("prefork", environment={"JOBS_MAX_COMEBACKS": "0"}).start()
    path = worker.path()

    record = worker.record_of(worker.send("shop.poison", str(path)))

    assert record.details["comebacks"] == 0
    assert worker.lines(path) == ["ran"]
