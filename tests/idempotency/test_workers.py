"""What brokers and dying processes deliver twice runs once: real workers, real Redis.

Named after the rows of the failure catalogue.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jobs.core.words import LedgerState
from jobs.models import IdempotencyRecord, JobProgress
from tests.idempotency.keyed_place import KeyedPlace, Line
from tests.migrated import migrated_database
from tests.servers import wait_until

pytestmark = [pytest.mark.worker, pytest.mark.timeout(400)]


def keyed_place(directory: Path) -> KeyedPlace:
    return KeyedPlace(directory, f"sqlite:///{migrated_database(directory / 'keys.sqlite3')}")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[KeyedPlace]:
    """A worker with three processes, a Redis and a database."""
    directory: Path = tmp_path_factory.mktemp("keyed")
    place = keyed_place(directory)
    try:
        place.start(concurrency=3)
        yield place
    finally:
        place.close()


@pytest.fixture
def numbers(place: KeyedPlace, django_db_blocker) -> Iterator[Iterator[int]]:
    """Numbers that no other test has used; the workers' database is the test's."""
    with django_db_blocker.unblock(), place.database():
        used = [line.number for line in place.lines()]
        yield iter(range(max(used, default=0) + 1, 1_000_000))
    place.start_again_if_dead()


def said(place: KeyedPlace) -> str:
    """What the worker has logged."""
    assert place.worker is not None
    return place.worker.log.read_text(errors="replace")


def received(place: KeyedPlace, task_id: str) -> int:
    """How often a worker has received a job."""
    return said(place).count(f"[{task_id}] received")


def deliver_again(place: KeyedPlace, task_id: str) -> None:
    """Let the visibility timeout of what is not acknowledged be over, as kombu does then."""
    assert place.worker is not None
    before = received(place, task_id)
    place.worker.restore_unacknowledged()
    wait_until(lambda: received(place, task_id) > before, seconds=60, what="the second delivery")


def given_back_and_idle(place: KeyedPlace) -> bool:
    """Give back what is not acknowledged, until nothing is left."""
    assert place.worker is not None
    place.start_again_if_dead()
    place.worker.restore_unacknowledged()
    return place.is_idle()


def state_of(number: int) -> str | None:
    line = IdempotencyRecord.objects.filter(key=f"effect:{number}").first()
    return None if line is None else line.state


def test_row_65_a_job_longer_than_the_visibility_timeout_does_not_run_beside_itself(place, numbers, tmp_path):
    number, go = next(numbers), tmp_path / "go"
    task_id = place.send("keys.long", number, str(go))
    wait_until(lambda: state_of(number) == LedgerState.RUNNING, seconds=60, what="the job to run")

    deliver_again(place, task_id)
    deliver_again(place, task_id)
    go.touch()
    wait_until(lambda: state_of(number) == LedgerState.DONE, seconds=90, what="the long job")
    place.wait_until_idle(seconds=90)

    assert received(place, task_id) >= 3
    assert len([line for line in place.lines("begin") if line.number == number]) == 1
    assert place.effects()[number] == 1


def test_the_second_copy_of_a_long_job_waits_and_gets_its_result(place, numbers, tmp_path):
    number, go = next(numbers), tmp_path / "go"
    first = place.send("keys.long", number, str(go))
    wait_until(lambda: state_of(number) == LedgerState.RUNNING, seconds=60, what="the first copy")

    second = place.send("keys.long", number, str(go))
    held = f"Job {second} waits: job {first} runs the same idempotency key."
    wait_until(lambda: held in said(place), seconds=60, what="the second copy to be held back")
    go.touch()
    wait_until(lambda: state_of(number) == LedgerState.DONE, seconds=90, what="the long job")
    place.wait_until_idle(seconds=90)

    begun = [line.task_id for line in place.lines("begin") if line.number == number]
    assert begun == [first]
    assert IdempotencyRecord.objects.get(key=f"effect:{number}").task_id == first


def test_row_64_a_job_that_waits_longer_than_the_visibility_timeout_runs_once(place, numbers):
    """Published by somebody else's client; Job itself would hold it in the outbox."""
    number = next(numbers)
    # Time for both redeliveries on a full machine.
    task_id = place.send("keys.outside", number, countdown=10.0)
    wait_until(lambda: received(place, task_id), seconds=60, what="the job to be fetched")

    deliver_again(place, task_id)
    deliver_again(place, task_id)
    wait_until(lambda: state_of(number) == LedgerState.DONE, seconds=90, what="the delayed job")
    place.wait_until_idle(seconds=90)

    assert received(place, task_id) >= 3
    assert place.effects()[number] == 1


def test_row_53_a_job_whose_broker_goes_away_while_it_runs_is_not_run_again(place, numbers, tmp_path):
    number, go = next(numbers), tmp_path / "go"
    place.send("keys.long", number, str(go))
    wait_until(lambda: state_of(number) == LedgerState.RUNNING, seconds=60, what="the job to run")

    place.server.stop()
    go.touch()
    wait_until(lambda: state_of(number) == LedgerState.DONE, seconds=60, what="the job to end")
    place.server.start()
    # The worker could not acknowledge it on the lost connection, so it comes again when its time is over.
    wait_until(lambda: given_back_and_idle(place), seconds=120, what="the second delivery to end")

    assert place.effects()[number] == 1


@pytest.mark.parametrize("victim", ["child", "parent"])
def test_row_54_and_108_a_job_that_was_done_before_its_process_died_is_not_run_again(place, numbers, victim):
    number = next(numbers)
    flag = Path(f"{place.notes}.{victim}.success")

    place.send("keys.mortal", number, "success", victim)
    wait_until(flag.exists, seconds=60, what="the process to be killed")
    if victim == "parent":
        die_with_children(place)
    place.wait_until_idle(seconds=120)

    assert state_of(number) == LedgerState.DONE
    assert place.effects()[number] == 1
    assert not [record for record in place.records() if record.kind == "death"]


@pytest.mark.parametrize("victim", ["child", "parent"])
def test_row_47_an_attempt_that_died_after_it_had_sent_its_retry_is_not_run_beside_it(place, numbers, victim):
    number = next(numbers)
    flag = Path(f"{place.notes}.{victim}.retry")

    place.send("keys.mortal", number, "retry", victim)
    wait_until(flag.exists, seconds=60, what="the process to be killed")
    if victim == "parent":
        die_with_children(place)
    wait_until(lambda: state_of(number) == LedgerState.DONE, seconds=120, what="the retry")
    place.wait_until_idle(seconds=120)

    attempts = [line.rest[0] for line in place.lines("effect") if line.number == number]
    assert attempts == ["0", "1"]


def test_a_job_that_takes_its_process_with_it_runs_three_times_and_dies(place, numbers):
    """Each hold publishes it anew, so that the agent's own count begins again; the ledger's does not."""
    number = next(numbers)

    task_id = place.send("keys.deadly", number)
    wait_until(
        lambda: [r for r in place.records() if r.task_id == task_id and r.kind == "death"],
        seconds=120,
        what="the death",
    )
    place.wait_until_idle(seconds=90)

    deaths = [record for record in place.records() if record.task_id == task_id and record.kind == "death"]
    assert [record.reason for record in deaths] == ["worker_lost"]
    assert len([line for line in place.lines("begin") if line.number == number]) == 3
    assert state_of(number) == LedgerState.FREE


def test_what_an_atomic_body_enqueues_leaves_with_its_commit_only(place, numbers):
    number = next(numbers)

    place.send("keys.ordering", number)
    wait_until(lambda: state_of(number + 2) == LedgerState.DONE, seconds=90, what="the job that was enqueued")
    place.wait_until_idle(seconds=90)

    assert place.effects()[number + 2] == 1
    assert place.effects()[number + 1] == 0, "the first attempt was rolled back, and its job was sent"


def die_with_children(place: KeyedPlace) -> None:
    """Its parent has been killed: end the rest of that worker, and start another."""
    assert place.worker is not None
    assert place.worker.process is not None
    assert place.worker.process.wait(timeout=60) == -signal.SIGKILL
    place.start_again_if_dead()


def test_the_heartbeat_keeps_a_lease_in_a_process_of_prefork_and_not_in_its_parent(place, numbers):
    line = beaten(place, next(numbers))

    assert place.worker is not None
    assert place.worker.process is not None
    parent = psutil.Process(place.worker.process.pid)
    assert line.pid in {child.pid for child in parent.children()}
    assert parent.num_threads() <= 4, "the parent has threads, and forks"


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_the_heartbeat_keeps_a_lease_in_every_other_pool(pool, tmp_path, django_db_blocker):
    place = keyed_place(tmp_path)
    try:
        place.start(pool=pool, concurrency=1 if pool == "solo" else 2)
        with django_db_blocker.unblock(), place.database():
            beaten(place, 1)
    finally:
        place.close()


def beaten(place: KeyedPlace, number: int) -> Line:
    """Run a job until its lease was extended twice; return what it wrote down."""
    assert place.worker is not None
    place.send("keys.beat", number)

    def lines() -> list[Line]:
        return [line for line in place.lines() if line.number == number]

    wait_until(lines, seconds=120, what=f"the job, see {place.worker.log}")
    assert [line.what for line in lines()] == ["extended"]
    wait_until(lambda: state_of(number) == LedgerState.DONE, what="the record")
    wait_until(lambda: not JobProgress.objects.exists(), what="the progress to be deleted")
    return lines()[0]
