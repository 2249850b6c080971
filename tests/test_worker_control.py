"""What an operator does to workers and to jobs in them, on real workers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from jobs import worker_control
from jobs.audit import Actor
from jobs.errors import BrokerUnavailable, WorkerRefused
from jobs.models import AuditEntry
from tests.agent.fleet import Fleet, Worker
from tests.factories import NOW
from tests.metrics_rows import make_boot
from tests.servers import free_port, wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.worker]

MARA = Actor(name="mara")
WHY = "the feed is late"


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("controlled"))
    yield fleet
    fleet.stop()


@pytest.fixture(autouse=True)
def _patience(monkeypatch) -> None:
    """All of these workers answer; on a busy machine not each within the seconds that a page waits."""
    monkeypatch.setattr(worker_control, "ANSWER_SECONDS", 20.0)
    monkeypatch.setattr(worker_control, "BROADCAST_SECONDS", 3.0)


@pytest.fixture
def worker(workers, settings) -> Worker:
    worker = workers.worker("prefork")
    settings.BROKER_URL = worker.broker_url
    return worker


@pytest.fixture
def threads(workers, settings) -> Worker:
    worker = workers.worker("threads")
    settings.BROKER_URL = worker.broker_url
    return worker


def name_of(worker: Worker) -> str:
    replies: list[Any] = []

    def answers() -> bool:
        # Redis keeps no broadcast for a worker that does not listen yet.
        replies.extend(worker.app.control.ping(timeout=2, limit=1))
        return bool(replies)

    wait_until(answers, seconds=60, what="an answer of the worker")
    return str(next(iter(replies[0])))


def children(worker: Worker) -> int:
    assert worker.process is not None
    return len(psutil.Process(worker.process.pid).children())


def audited() -> list[tuple[str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("action", "text"))


def act(service: Any, worker: Worker | str) -> None:
    hostname = worker if isinstance(worker, str) else name_of(worker)
    service(hostname=hostname, actor=MARA, why=WHY, now=NOW)


def test_a_worker_grows_by_one_process_and_shrinks_by_it(worker):
    before, name = children(worker), name_of(worker)

    act(worker_control.grow, worker)
    wait_until(lambda: children(worker) == before + 1, what="one more process")
    act(worker_control.shrink, worker)
    wait_until(lambda: children(worker) == before, what="one process less")

    assert audited() == [
        ("grow_worker", f"told {name} to run 1 more job at a time"),
        ("shrink_worker", f"told {name} to run 1 job less at a time"),
    ]
    entry = AuditEntry.objects.order_by("id").first()
    assert (entry.actor, entry.why) == ("mara", WHY)


def test_a_worker_whose_processes_are_all_busy_refuses_to_shrink(worker):
    starts = [worker.path("started") for _ in range(worker.concurrency)]
    go = worker.path("go")
    for start in starts:
        worker.send("shop.wait", str(start), str(go))
    wait_until(lambda: all(start.exists() for start in starts), what="all processes to be busy")

    with pytest.raises(
        WorkerRefused, match=r"did not shrink: all of its processes are busy\. Wait until one is idle\."
    ):
        act(worker_control.shrink, worker)

    go.touch()
    wait_until(worker.is_drained, what="the jobs to end")
    assert [action for action, _ in audited()] == ["shrink_worker", "shrink_worker_refused"]


def test_a_pool_of_threads_says_that_it_cannot_grow(threads):
    with pytest.raises(WorkerRefused, match="did not grow: its pool cannot do that"):
        act(worker_control.grow, threads)


def test_the_last_process_is_not_taken_away(worker):
    make_boot(name_of(worker), concurrency=1)

    with pytest.raises(
        WorkerRefused, match=r"one less would take messages and run none\. Shut it down instead\."
    ):
        act(worker_control.shrink, worker)

    assert audited() == []


def test_a_worker_that_is_told_to_shut_down_finishes_its_job_and_ends(workers, settings):
    worker = workers.own("prefork", broker_url=workers.database_url()).start()
    settings.BROKER_URL = worker.broker_url
    try:
        started, go = worker.path("started"), worker.path("go")
        worker.send("shop.wait", str(started), str(go))
        wait_until(started.exists, what="the job to start")

        act(worker_control.shut_down, worker)
        wait_until(
            lambda: b"Got shutdown from remote" in worker.log.read_bytes(), what="the shutdown to begin"
        )
        assert worker.is_alive
        go.touch()
        wait_until(lambda: not worker.is_alive, what="the worker to end")

        assert worker.process is not None
        assert worker.process.returncode == 0
        assert b"succeeded" in worker.log.read_bytes()
    finally:
        worker.stop(signal.SIGKILL)
    assert [action for action, _ in audited()] == ["shut_down_worker"]


@pytest.mark.parametrize("service", [worker_control.grow, worker_control.shrink, worker_control.shut_down])
def test_a_worker_that_is_not_there_is_refused_and_the_refusal_is_audited(worker, service, monkeypatch):
    monkeypatch.setattr(worker_control, "ANSWER_SECONDS", 0.3)

    with pytest.raises(WorkerRefused, match="celery@nowhere did not answer within"):
        act(service, "celery@nowhere")

    (_, asked), (action, refused) = audited()
    assert asked.startswith("told celery@nowhere")
    assert action.endswith("_refused")
    assert refused.startswith(f"was refused: {asked}. celery@nowhere did not answer")


def test_a_broker_that_is_away_is_told_and_audited(settings):
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"

    with pytest.raises(BrokerUnavailable, match="Trying again is safe"):
        act(worker_control.grow, "celery@web-1")

    assert [action for action, _ in audited()] == ["grow_worker", "grow_worker_refused"]


def test_a_running_job_is_stopped_and_is_no_dead_letter(worker):
    started, go = worker.path("started"), worker.path("go")
    sent = worker.send("shop.wait", str(started), str(go))
    wait_until(started.exists, what="the job to start")
    name = name_of(worker)

    done = worker_control.revoke(task_id=sent.task_id, terminate=True, actor=MARA, why=WHY, now=NOW)

    assert (done.workers, done.stopped_by) == (1, name)
    wait_until(worker.is_drained, what="the message to be gone")
    worker.run_fence()
    assert worker.state_of(sent) == "REVOKED"
    assert not [record for record in worker.records_of(sent.task_id) if record.kind == "death"]
    assert audited() == [
        ("revoke_job", f"revoked job {sent.task_id} and told its worker to stop it with SIGTERM")
    ]


def test_row_33_a_job_that_waits_is_revoked_before_it_starts(worker):
    go, marks = worker.path("go"), worker.path("mark")
    starts = [worker.path("started") for _ in range(worker.concurrency)]
    for start in starts:
        worker.send("shop.wait", str(start), str(go))
    wait_until(lambda: all(start.exists() for start in starts), what="the worker to be busy")
    sent = worker.send("shop.mark", str(marks))

    done = worker_control.revoke(task_id=sent.task_id, actor=MARA, why=WHY, now=NOW)
    go.touch()
    wait_until(worker.is_drained, what="all messages to be gone")
    worker.run_fence()

    assert (done.workers, done.stopped_by) == (1, "")
    assert not marks.exists()


def test_a_job_that_a_thread_runs_is_revoked_but_goes_on(threads):
    started, go = threads.path("started"), threads.path("go")
    sent = threads.send("shop.wait", str(started), str(go))
    wait_until(started.exists, what="the job to start")

    with pytest.raises(
        WorkerRefused, match=r"could not stop it: its pool cannot do that.* It runs to its end"
    ):
        worker_control.revoke(task_id=sent.task_id, terminate=True, actor=MARA, why=WHY, now=NOW)

    go.touch()
    wait_until(threads.is_drained, what="the job to end")


def test_nothing_is_revoked_when_no_worker_answers(broker, monkeypatch):
    monkeypatch.setattr(worker_control, "BROADCAST_SECONDS", 0.2)

    with pytest.raises(WorkerRefused, match=r"no worker answered within 0\.2 s"):
        worker_control.revoke(task_id="8f3c", actor=MARA, why=WHY, now=NOW)

    assert [action for action, _ in audited()] == ["revoke_job", "revoke_job_refused"]
