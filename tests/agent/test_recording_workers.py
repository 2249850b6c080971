"""What real workers tell of what they ran, on every pool."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from jobs.agent import wire
from jobs.agent.batches import Batch, bucket_of, decode
from jobs.base.running import ComesBack
from tests.agent import recorded
from tests.agent.fleet import POOLS, Fleet, Worker
from tests.servers import RedisServer, wait_until

pytestmark = pytest.mark.worker

MakeWorker = Callable[..., Worker]


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def module_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("recording"))
    yield fleet
    fleet.stop()


@pytest.fixture(params=POOLS)
def shared(request: pytest.FixtureRequest, module_fleet: Fleet) -> Worker:
    """The worker of each pool, which the tests of this file share that look at single jobs."""
    return module_fleet.worker(request.param)


def batches_of(worker: Worker) -> list[Batch]:
    with worker.redis() as client:
        return recorded.batches_on(client)


def wait_for_counts(worker: Worker, task: str, **expected: int) -> None:
    """Wait until a task's counts are these, which includes that none of them is higher."""
    try:
        wait_until(lambda: recorded.counts_of(batches_of(worker), task) == expected, seconds=30)
    except AssertionError:
        found = recorded.counts_of(batches_of(worker), task)
        raise AssertionError(f"{task}: {found} instead of {expected} ({worker.log})") from None


def latest(worker: Worker) -> Batch:
    wait_until(lambda: batches_of(worker), what=f"a batch ({worker.log})")
    return batches_of(worker)[-1]


@pytest.mark.parametrize("pool", POOLS)
def test_every_attempt_is_counted_once_by_how_it_ended(own_worker: MakeWorker, pool: str) -> None:
    worker = own_worker(pool)
    worker.backend = worker.broker_url
    worker.start()
    path = str(worker.path())
    for _ in range(5):
        worker.send("shop.mark_late", path)
    for _ in range(2):
        worker.send("shop.fail")
        worker.send("shop.fail_late")
        worker.send("shop.retry_once", str(worker.path()))
        worker.send("shop.retry_with_error")
        worker.send("shop.ignore")
        worker.send("shop.reject_late")
        worker.send("shop.replace", path)
        worker.send("shop.hold_back")
        worker.send("shop.unserialisable")
    worker.send("shop.leave")
    worker.send("shop.reject_requeue", path)
    worker.send("shop.http", expires=-1)
    worker.send("nosuch.task")
    worker.send_raw("no json", headers={"task": "shop.ship", "id": "bad"})
    late = worker.send("shop.interrupt", countdown=4)
    worker.revoke(late.task_id)

    wait_for_counts(worker, "shop.mark_late", received=5, done=5)
    wait_for_counts(worker, "shop.fail", received=2, dead=2)
    wait_for_counts(worker, "shop.fail_late", received=2, dead=2)
    wait_for_counts(worker, "shop.retry_once", received=4, retried=2, done=2)
    wait_for_counts(worker, "shop.retry_with_error", received=4, retried=2, dead=2)
    wait_for_counts(worker, "shop.ignore", received=2, ignored=2)
    wait_for_counts(worker, "shop.reject_late", received=2, dead=2)
    # The job that takes the place is one more.
    wait_for_counts(worker, "shop.replace", received=2, done=2)
    wait_for_counts(worker, "shop.mark", received=2, done=2)
    # Nothing ran: the attempt is in another message.
    wait_for_counts(worker, "shop.hold_back", received=2)
    wait_for_counts(worker, "shop.unserialisable", received=2, dead=2)
    wait_for_counts(worker, "shop.leave", received=1, dead=1)
    # Put back three times: no ending.
    wait_for_counts(worker, "shop.reject_requeue", received=4, dead=1)
    wait_for_counts(worker, "shop.http", received=1, dead=1)
    wait_for_counts(worker, "nosuch.task", received=1, dead=1)
    wait_for_counts(worker, "shop.ship", received=1, dead=1)
    wait_for_counts(worker, "shop.interrupt", received=1, revoked=1)

    worker.stop()
    batches = batches_of(worker)
    counts = recorded.counts_of(batches)
    ended = sum(number for name, number in counts.items() if name != "received")
    assert len(recorded.runs_of(batches)) == ended
    assert "dropped" not in counts
    # As many as were captured: the two ways to count agree.
    deaths = [record for record in worker.records() if record.kind == "death"]
    assert counts["dead"] == len(deaths)
    died = {(run.publication_id, run.attempt) for run in recorded.runs_of(batches) if run.outcome == "dead"}
    assert died == {(record.publication_id, record.attempt) for record in deaths}


def test_a_held_back_job_is_told_by_the_mark_that_the_job_base_sets() -> None:
    assert ComesBack("held").goes_on is True


def test_a_record_says_which_attempt_it_was_and_when(shared: Worker) -> None:
    worker = shared
    before = time.time()
    sent = worker.send("shop.retry_with_error", priority=3)

    wait_until(lambda: len(recorded.runs_of(batches_of(worker), sent.task_id)) == 2, what="both attempts")

    # With threads the retry may be over before the attempt that sent it.
    first, second = sorted(recorded.runs_of(batches_of(worker), sent.task_id), key=lambda run: run.attempt)
    assert (first.task, first.queue, first.outcome, first.attempt) == (
        "shop.retry_with_error",
        "celery",
        "retried",
        0,
    )
    assert (second.outcome, second.attempt) == ("dead", 1)
    assert first.error_type == second.error_type == "builtins.ConnectionError"
    assert first.root_id == second.root_id == sent.task_id
    assert first.publication_id != second.publication_id
    for run in (first, second):
        assert run.published_at is not None
        assert run.started_at is not None
        assert run.latency is not None
        assert run.runtime is not None
        assert before <= run.published_at <= run.started_at <= run.finished_at <= time.time()
        assert run.latency <= run.started_at - run.published_at
        assert 0 <= run.runtime <= run.finished_at - run.started_at + 0.01
    assert first.latency == pytest.approx(first.started_at - first.published_at, abs=1e-3)  # type: ignore[operator]


def test_the_latency_of_a_job_with_a_countdown_counts_from_its_time(shared: Worker) -> None:
    worker = shared
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)
    sent = worker.send("shop.nap", 0.3, eta=due)

    wait_until(lambda: recorded.runs_of(batches_of(worker), sent.task_id), what="its record")

    [run] = recorded.runs_of(batches_of(worker), sent.task_id)
    assert run.published_at is not None
    assert run.started_at is not None
    assert run.latency is not None
    assert run.runtime is not None
    assert run.latency == pytest.approx(run.started_at - due.timestamp(), abs=1e-3)
    assert 0.3 <= run.runtime < 2
    [cell] = [each for each in recorded.cells_of(batches_of(worker), "shop.nap") if each.done]
    assert (cell.latency, cell.runtime) == ({bucket_of(run.latency): 1}, {bucket_of(run.runtime): 1})
    assert (cell.latency_sum, cell.runtime_sum) == (run.latency, run.runtime)
    assert cell.minute == int(run.finished_at) // 60 * 60


def test_a_hard_time_limit_a_killed_child_and_a_terminated_job_are_one_ending_each(
    own_worker: MakeWorker,
) -> None:
    """All call two hooks of the request."""
    worker = own_worker("prefork").start()
    started, path = worker.path("started"), str(worker.path())
    terminated = worker.send("shop.wait", str(started), "never")
    worker.wait_for_line(started)
    worker.app.control.revoke(terminated.task_id, terminate=True)
    wait_for_counts(worker, "shop.wait", received=1, revoked=1)
    worker.send("shop.hard_limit")
    worker.send("shop.kill")
    worker.send("shop.memory")
    worker.send("shop.hard_limit_late", path)
    worker.send("shop.poison", path)

    wait_for_counts(worker, "shop.hard_limit", received=1, dead=1)
    wait_for_counts(worker, "shop.kill", received=1, dead=1)
    wait_for_counts(worker, "shop.memory", received=1, dead=1)
    wait_for_counts(worker, "shop.hard_limit_late", received=4, dead=1)
    wait_for_counts(worker, "shop.poison", received=4, dead=1)
    worker.run_fence()
    worker.stop()
    assert recorded.counts_of(batches_of(worker)) == {"received": 13, "dead": 5, "revoked": 1, "done": 1}


@pytest.mark.parametrize("pool", [pool for pool in POOLS if pool != "solo"])
def test_a_batch_tells_what_runs_and_what_waits_in_the_worker(own_worker: MakeWorker, pool: str) -> None:
    worker = own_worker(pool, queue="orders", environment={"JOBS_HEARTBEAT_SECONDS": "1"}).start()
    go = worker.path("go")
    early, late = worker.path("early"), worker.path("late")
    later = [worker.send("shop.mark", str(go), countdown=3_600) for _ in range(10)]
    wait_until(lambda: latest(worker).held == {"orders": len(later)}, what="those that wait for their time")
    first = worker.send("shop.wait", str(early), str(go))
    second = worker.send("shop.wait_late", str(late), str(go))
    worker.wait_for_line(early)
    worker.wait_for_line(late)
    for _ in range(3):
        worker.send("shop.nap", 0)

    # The pool gevent takes no more than it can begin and one.
    taken = {"orders": 1 if pool == "gevent" else 3}
    wait_until(
        lambda: latest(worker).reserved == taken and len(latest(worker).running) == 2,
        what=f"what it took ({worker.log})",
    )
    batch = latest(worker)
    assert batch.held == {"orders": 10}
    assert batch.queues == ["orders"]
    assert (batch.pool, batch.concurrency) == ({"threads": "thread"}.get(pool, pool), 2)
    assert batch.hostname.endswith("@test")
    assert batch.load is not None
    assert batch.memory_bytes is not None
    assert 10_000_000 < batch.memory_bytes < 4_000_000_000
    running = {job.task_id: job for job in batch.running}
    assert [running[sent.task_id].is_acknowledged for sent in (first, second)] == [True, False]
    job = running[first.task_id]
    assert (job.task, job.queue, job.attempt, job.root_id) == ("shop.wait", "orders", 0, first.task_id)
    assert job.publication_id
    assert job.published_at is not None
    assert job.published_at <= job.started_at <= batch.at

    go.write_text("")
    wait_until(lambda: latest(worker).running == [] and latest(worker).reserved == {}, what="their end")
    assert latest(worker).held == {"orders": 10}


def test_a_job_that_begins_after_a_quiet_second_is_told_of_at_once(shared: Worker) -> None:
    """A worker that is killed in the middle of it has told what it took along."""
    worker = shared
    wait_until(
        lambda: 1.2 < time.time() - latest(worker).at < 4, what="a quiet second, and no heartbeat next"
    )
    asked_at = time.time()
    started, go = worker.path("started"), worker.path("go")
    sent = worker.send("shop.wait", str(started), str(go))
    worker.wait_for_line(started)

    def telling() -> list[Batch]:
        return [batch for batch in batches_of(worker) if batch.running and batch.at >= asked_at]

    wait_until(telling, seconds=10, what=f"the job ({worker.log})")
    # The first that tells of it: a heartbeat may follow before this process looks again.
    batch = telling()[0]
    go.write_text("")

    [job] = batch.running
    # In the pool solo the acknowledgement waits until the job is over.
    assert (job.task_id, job.is_acknowledged) == (sent.task_id, worker.pool != "solo")
    assert batch.at - job.started_at < 0.9
    wait_for_counts(worker, "shop.wait", received=1, done=1)


@pytest.mark.parametrize("pool", POOLS)
def test_an_idle_worker_sends_heartbeats_and_a_stopped_one_until_its_last_job_is_over_and_says_goodbye(
    own_worker: MakeWorker, pool: str
) -> None:
    worker = own_worker(pool, environment={"JOBS_HEARTBEAT_SECONDS": "1"}).start()
    wait_until(lambda: len(batches_of(worker)) >= 3, seconds=20, what=f"heartbeats ({worker.log})")
    batches = batches_of(worker)
    assert len({batch.boot_id for batch in batches}) == 1
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(batches[1:])]
    assert all(0.7 < gap < 4 for gap in gaps), gaps

    started, go = worker.path("started"), worker.path("go")
    worker.send("shop.wait", str(started), str(go))
    worker.wait_for_line(started)
    assert worker.process is not None
    os.kill(worker.process.pid, signal.SIGTERM)
    if pool != "solo":
        stopped = len(batches_of(worker))
        wait_until(lambda: len(batches_of(worker)) >= stopped + 3, what=f"heartbeats ({worker.log})")
        assert len(latest(worker).running) == 1

    go.write_text("")
    wait_until(lambda: not worker.is_alive, seconds=30, what="its end")

    batches = batches_of(worker)
    assert [batch.is_goodbye for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert (batches[-1].running, batches[-1].held) == ([], {})
    assert recorded.counts_of(batches) == {"received": 1, "done": 1}


def test_a_worker_that_is_killed_says_no_goodbye(own_worker: MakeWorker) -> None:
    worker = own_worker("prefork").start()
    worker.run_fence()
    wait_for_counts(worker, "shop.mark", received=1, done=1)

    worker.stop(signal.SIGKILL)

    assert not any(batch.is_goodbye for batch in batches_of(worker))


def test_a_cold_shutdown_counts_what_it_ends_and_says_goodbye(own_worker: MakeWorker) -> None:
    worker = own_worker("prefork").start()
    early, late = worker.path("early"), worker.path("late")
    worker.wait_until_it_tells_of(
        worker.send("shop.wait", str(early), "never"), worker.send("shop.wait_late", str(late), "never")
    )

    worker.stop(signal.SIGQUIT)

    batches = batches_of(worker)
    assert batches[-1].is_goodbye
    # The other goes back to its queue.
    assert recorded.counts_of(batches) == {"received": 2, "dead": 1}


def test_a_soft_shutdown_tells_that_the_worker_lives(own_worker: MakeWorker) -> None:
    worker = own_worker(
        "prefork", environment={"JOBS_HEARTBEAT_SECONDS": "1", "SOFT_SHUTDOWN_SECONDS": "4"}
    ).start()
    started = worker.path("started")
    worker.wait_until_it_tells_of(worker.send("shop.wait_late", str(started), "never"))
    assert worker.process is not None
    before, asked_at = len(batches_of(worker)), time.time()
    os.kill(worker.process.pid, signal.SIGQUIT)

    wait_until(lambda: not worker.is_alive, seconds=30, what="its end")
    later = batches_of(worker)[before:]
    # By the worker's own clock: this process may look too late.
    living = [batch for batch in later if batch.at <= asked_at + 4 and not batch.is_goodbye]
    assert len(living) >= 2, [(batch.at - asked_at, batch.is_goodbye) for batch in later]
    assert later[-1].is_goodbye


@pytest.mark.parametrize(
    ("amid", "heartbeat_seconds"), [("_send_due", "1"), ("publish_record", "2")], ids=["batch", "record"]
)
def test_a_soft_shutdown_that_comes_amid_a_send_tells_that_the_worker_lives(
    own_worker: MakeWorker, own_redis: RedisServer, amid: str, heartbeat_seconds: str
) -> None:
    """The handler waits on top of the send, which holds the agent's connection, and its counts, until then."""
    worker = own_worker(
        "prefork",
        broker_url=own_redis.url,
        environment={
            "SOFT_SHUTDOWN_SECONDS": "8",
            "JOBS_AGENT_TIMEOUT_SECONDS": "30",
            "JOBS_HEARTBEAT_SECONDS": heartbeat_seconds,
        },
    ).start()
    running = worker.send("shop.wait", str(worker.path()), "never")
    worker.wait_until_it_tells_of(running)
    assert worker.process is not None
    assert own_redis.process is not None

    failing = stop_broker_amid(worker, own_redis, amid)
    try:
        os.kill(worker.process.pid, signal.SIGQUIT)
        wait_until(lambda: b"Initiating Soft Shutdown" in worker.log.read_bytes(), what="the shutdown")
    finally:
        own_redis.process.send_signal(signal.SIGCONT)
    at = time.time()

    def living() -> list[Batch]:
        return [batch for batch in told(worker) if batch.at > at and not batch.is_goodbye]

    wait_until(living, seconds=7, what=f"a heartbeat ({worker.log})")
    assert running.task_id in [job.task_id for job in living()[-1].running]
    wait_until(lambda: not worker.is_alive, seconds=30, what="its end")
    batches = told(worker)
    assert max(batches, key=lambda batch: batch.sequence).is_goodbye
    assert sorted(batch.sequence for batch in batches) == list(range(1, len(batches) + 1))
    assert recorded.counts_of(batches) == {"received": 1 + failing, "dead": 1 + failing}
    # The handler ends also what is failing; the same death twice is one to the collector, which keeps the first.
    deaths = {(each.publication_id, each.attempt): each.reason for each in reversed(worker.records())}
    assert sorted(deaths.values()) == ["failed"] * failing + ["worker_lost"]


def stop_broker_amid(worker: Worker, broker: RedisServer, function: str) -> int:
    """Let the broker stand still while the worker waits for its answer in a function of the agent's.

    Celery's own timers ask the broker too; when one of them is first, it is tried once more. Return how many
    jobs failed for it.
    """
    assert broker.process is not None
    for failing in range(1, 21):
        go = worker.path("go")
        if function == "publish_record":
            worker.wait_until_it_tells_of(worker.send("shop.wait_and_fail", str(worker.path()), str(go)))
        broker.process.send_signal(signal.SIGSTOP)
        go.touch()
        # Celery gives its own connection up after two seconds.
        with contextlib.suppress(AssertionError):
            wait_until(lambda: is_amid(worker, function), seconds=1.5)
            return failing if function == "publish_record" else 0
        broker.process.send_signal(signal.SIGCONT)
    raise AssertionError(f"never amid {function} ({worker.log})")


def is_amid(worker: Worker, function: str) -> bool:
    """Let the worker write where it is, and say whether that is in the function."""
    assert worker.process is not None
    seen = worker.log.stat().st_size
    os.kill(worker.process.pid, signal.SIGUSR1)

    def written() -> bytes:
        return worker.log.read_bytes()[seen:]

    wait_until(lambda: b"LOCAL VARIABLES" in written(), what=f"its stack ({worker.log})")
    return f"in {function}\n".encode() in written()


def told(worker: Worker) -> list[Batch]:
    """Return the batches in the order they came: an interrupted one comes after later ones."""
    with worker.redis() as client:
        return [decode(body) for body in recorded.bodies_on(client)]


@pytest.mark.parametrize("pool", POOLS)
def test_a_broker_that_restarts_costs_no_count(
    own_worker: MakeWorker, own_redis: RedisServer, pool: str
) -> None:
    worker = own_worker(pool, broker_url=own_redis.url).start()
    for _ in range(20):
        worker.send("shop.mark_late", str(worker.path()))
    wait_for_counts(worker, "shop.mark_late", received=20, done=20)
    own_redis.stop()
    wait_until(lambda: b"Connection refused" in worker.log.read_bytes(), what=f"the outage ({worker.log})")
    own_redis.start()
    for _ in range(20):
        worker.send("shop.fail")

    wait_for_counts(worker, "shop.fail", received=20, dead=20)
    wait_for_counts(worker, "shop.mark_late", received=20, done=20)
    assert len(recorded.runs_of(batches_of(worker))) == 40


def test_recording_can_be_switched_off(own_worker: MakeWorker) -> None:
    worker = own_worker("prefork", environment={"JOBS_RECORDING": "off"}).start()
    record = worker.record_of(worker.send("shop.fail"))
    worker.stop()

    assert record.reason == "failed"
    with worker.redis() as client:
        assert client.exists(wire.RUNS_QUEUE) == 0


def test_a_worker_whose_reports_nobody_reads_stops_sending_them(own_worker: MakeWorker) -> None:
    worker = own_worker("prefork", environment={"JOBS_RUNS_CAP": "10"})
    with worker.redis() as client:
        client.lpush(wire.RUNS_QUEUE, *[recorded.FILLER] * 10)
    worker.start()
    for _ in range(30):
        worker.send("shop.mark", str(worker.path()))
    worker.run_fence()
    wait_until(lambda: b"nobody reads them" in worker.log.read_bytes(), what=f"its word ({worker.log})")
    with worker.redis() as client:
        assert client.llen(wire.RUNS_QUEUE) == 10
        client.delete(wire.RUNS_QUEUE)

    wait_for_counts(worker, "shop.mark", received=31, done=31, dropped=31)
