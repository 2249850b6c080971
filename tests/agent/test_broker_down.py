"""The broker is stopped at the moment of death: nothing is lost, nothing is doubled."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.agent.fleet import POOLS, Worker
from tests.servers import RedisServer, wait_until

pytestmark = pytest.mark.worker


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.remove()


@pytest.fixture
def workers(own_redis: RedisServer, tmp_path: Path) -> Iterator[list[Worker]]:
    """A worker of each pool, each on a database of its own of the one broker."""
    made = [
        Worker(
            pool=pool, broker_url=f"redis://127.0.0.1:{own_redis.port}/{number}", directory=tmp_path / pool
        )
        for number, pool in enumerate(POOLS)
    ]
    try:
        with ThreadPoolExecutor(len(made)) as threads:
            yield list(threads.map(Worker.start, made))
    finally:
        for worker in made:
            worker.kill()


def spooled(worker: Worker) -> list[dict[str, object]]:
    found = []
    for path in worker.spool.rglob("*.jsonl"):
        # A file goes when all of it was sent.
        with contextlib.suppress(FileNotFoundError):
            found += [json.loads(line) for line in path.read_text().splitlines()]
    return found


def wait_until_sent(worker: Worker) -> None:
    """Wait until the spool is empty: a record is with the broker a moment before its file goes."""
    wait_until(lambda: not spooled(worker), what=f"the spool to be empty ({worker.log})")


def refuse_records(worker: Worker) -> None:
    """Make the broker refuse what is put on ``jobs.dead``, as one that is full or read-only does."""
    with worker.redis() as client:
        client.set("jobs.dead", "no list")


def accept_records(worker: Worker) -> None:
    with worker.redis() as client:
        client.delete("jobs.dead")


def test_a_death_while_the_broker_is_down_is_not_lost(workers: list[Worker], own_redis: RedisServer) -> None:
    go = workers[0].path("go")
    jobs = []
    for worker in workers:
        started = worker.path("started")
        jobs.append(worker.send("shop.wait_and_fail", str(started), str(go)))
        worker.wait_for_line(started)
        # A child has begun a job before its parent acknowledges it; a solo worker does so after the job only.
        if worker.pool != "solo":
            wait_until(worker.is_drained, what=f"the acknowledgement ({worker.log})")

    own_redis.stop()
    go.write_text("")
    for worker in workers:
        # Celery's prefork parent does not look at what its children finished before it has reconnected.
        wait_until(
            lambda log=worker.log: b"no such order" in log.read_bytes(), what=f"the death ({worker.log})"
        )
        if worker.pool != "prefork":
            wait_until(lambda worker=worker: spooled(worker), what=f"the spool ({worker.log})")
    own_redis.start()

    for worker, sent in zip(workers, jobs, strict=True):
        if worker.pool == "solo":
            # Its acknowledgement waits for the loop that the job stops: the job comes back and dies again.
            wait_until(
                lambda worker=worker, sent=sent: worker.records_of(sent.task_id),
                seconds=40,
                what=f"the record ({worker.log})",
            )
            worker.restore_unacknowledged()
        record = worker.record_of(sent, seconds=40)
        assert (record.kind, record.reason) == ("death", "failed"), worker.log
        assert record.message is not None
        assert record.message.body == sent.body
        assert record.error is not None
        assert record.error.message == "no such order"
        wait_until_sent(worker)


def test_what_the_broker_refuses_is_spooled_and_sent_once(workers: list[Worker]) -> None:
    jobs = {}
    for worker in workers:
        refuse_records(worker)
        jobs[worker.pool] = [worker.send("shop.fail_late", number) for number in range(3)]
        jobs[worker.pool].append(worker.send("nosuch.task"))
    for worker in workers:
        wait_until(lambda worker=worker: len(spooled(worker)) == 4, what=f"the spool ({worker.log})")
        wait_until(worker.is_drained, what=f"the queue to be drained ({worker.log})")

    for worker in workers:
        accept_records(worker)

    for worker in workers:
        for sent in jobs[worker.pool]:
            record = worker.record_of(sent)
            assert record.message is not None
            assert record.message.body == sent.body
        wait_until_sent(worker)


def test_row_48_a_retry_that_cannot_be_sent_is_a_death(
    own_worker: Callable[..., Worker], own_redis: RedisServer
) -> None:
    worker = own_worker("prefork", broker_url=own_redis.url).start()
    started, go = worker.path("started"), worker.path("go")
    sent = worker.send("shop.wait_and_retry", str(started), str(go))
    worker.wait_for_line(started)
    wait_until(worker.is_drained, what=f"the acknowledgement ({worker.log})")

    own_redis.stop()
    go.write_text("")
    wait_until(lambda: b"reject requeue=False" in worker.log.read_bytes(), seconds=20, what=str(worker.log))
    own_redis.start()

    record = worker.record_of(sent, seconds=40)
    assert (record.kind, record.reason) == ("death", "retry_not_sent")
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("builtins.ConnectionError", "mail relay refused")
    assert "in wait_and_retry" in record.error.traceback
    assert "Connection refused" in record.details["publish_error"]


def test_the_spool_of_a_dead_worker_is_sent_by_the_next(own_worker: Callable[..., Worker]) -> None:
    first = own_worker("prefork").start()
    refuse_records(first)
    jobs = [first.send("shop.fail", number) for number in range(2)]
    wait_until(lambda: len(spooled(first)) == 2, seconds=20, what=f"the spool ({first.log})")
    first.stop(9)
    [spool_file] = first.spool.rglob("*.jsonl")
    with spool_file.open("ab") as file:
        file.write(b'{"v": 1, "kind": "dea')
    accept_records(first)

    second = own_worker(
        "prefork", broker_url=first.broker_url, environment={"JOBS_SPOOL_DIRECTORY": str(first.spool)}
    ).start()

    for sent in jobs:
        assert second.record_of(sent).reason == "failed"
    wait_until(lambda: not list(first.spool.rglob("*.jsonl")), what=f"the spool to be gone ({second.log})")
    assert [path.read_bytes() for path in first.spool.rglob("*.torn")] == [b'{"v": 1, "kind": "dea\n']


def test_a_worker_does_not_wait_for_a_broker_that_is_down_for_each_job(
    own_worker: Callable[..., Worker], own_redis: RedisServer
) -> None:
    worker = own_worker("threads", broker_url=own_redis.url, concurrency=8).start()
    go = worker.directory / "go"
    for _ in range(8):
        started = worker.path("started")
        worker.send("shop.wait_and_fail", str(started), str(go))
        worker.wait_for_line(started)

    own_redis.stop()
    go.write_text("")

    wait_until(lambda: len(spooled(worker)) == 8, seconds=5, what=f"the spool ({worker.log})")


def test_a_message_whose_capture_failed_everywhere_is_not_acknowledged(
    own_worker: Callable[..., Worker], tmp_path: Path
) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("no directory")
    worker = own_worker("prefork", environment={"JOBS_SPOOL_DIRECTORY": str(blocked)}).start()
    with worker.redis() as client:
        client.set("jobs.dead", "not a list: the broker refuses what is put here")
    late = worker.send("shop.fail_late")
    unknown = worker.send("nosuch.task")

    def held() -> list[bytes]:
        with worker.redis() as client:
            return client.hvals("unacked")

    for job, reason in ((late, "failed"), (unknown, "unregistered")):
        lost = f"Job {job.task_id} ended as {reason}, and neither the broker".encode()
        wait_until(lambda lost=lost: lost in worker.log.read_bytes(), what=f"{lost!r} ({worker.log})")
    path = worker.path()
    worker.send("shop.mark", str(path))
    worker.wait_for_line(path)

    assert sorted(any(sent.task_id.encode() in each for each in held()) for sent in (late, unknown)) == [
        True,
        True,
    ]
    assert worker.is_alive
