"""runops as real processes: killed, doubled, cut off from its broker, stopped."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from django.utils import timezone

from jobs import leases
from jobs.agent.wire import Record, WireError, WireMessage
from jobs.core.words import OperationState
from jobs.duties import all_duties
from jobs.errors import LeaseLost
from jobs.models import DeadLetter, Lease, Operation, OperationBatch, OperationItem
from jobs.operations import Actor, Selection, progress, start_purge, start_replay
from tests.postgres import PostgresServer
from tests.runops_place import LEASE_SECONDS, RunopsPlace, kill, outcome, write_letters
from tests.servers import wait_until

MARA = Actor(name="mara")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def place(request, django_db_setup, django_db_blocker) -> Iterator[RunopsPlace]:
    url = ""
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_migrated_database(f"runops_{time.monotonic_ns()}")
    with django_db_blocker.unblock(), RunopsPlace(url).entered() as entered:
        yield entered


@pytest.fixture
def sqlite_place(django_db_setup, django_db_blocker) -> Iterator[RunopsPlace]:
    with django_db_blocker.unblock(), RunopsPlace().entered() as entered:
        yield entered


def replay_all(**options: object) -> Operation:
    now = timezone.now()
    return start_replay(
        selection=Selection.of_query("", now=now), actor=MARA, why="fixed", now=now, **options
    )


def reload(operation: Operation) -> Operation:
    operation.refresh_from_db()
    return operation


def has_open_batch() -> bool:
    return OperationBatch.objects.exists()


def count_sent() -> int:
    """Count what is known to be on the broker."""
    count = OperationItem.objects.filter(state="sent").count()
    return 0 if has_open_batch() else count


def test_a_replay_of_2000_survives_kill_9_and_sends_each_letter_once(place: RunopsPlace) -> None:
    write_letters(2_000)
    operation = replay_all(rate_per_second=1_500)

    for threshold in (150, 700, 1_300):
        process = place.start_runops()
        wait_until(
            lambda at=threshold: place.queue_length() >= at, seconds=40, what=f"{threshold} letters sent"
        )
        kill(process)
    place.start_runops()
    wait_until(
        lambda: count_sent() == 2_000,
        seconds=60,
        what="all letters sent",
    )

    messages = place.queued()
    letters = Counter(message["headers"]["jobs-replay-of"] for message in messages)
    assert len(messages) == 2_000
    assert len(letters) == 2_000
    assert dict(OperationItem.objects.values_list("pk", "task_id")) == {
        message["headers"]["jobs-replay-item"]: message["headers"]["id"] for message in messages
    }

    place.report([outcome(message) for message in messages])
    wait_until(lambda: reload(operation).state == OperationState.FINISHED, seconds=60, what="the report")
    assert operation.outcome == "Of 2,000 replayed: 2,000 done."
    assert operation.events.filter(kind="resumed_after_crash").exists()


def test_a_purge_survives_kill_9_and_counts_each_letter_once(place: RunopsPlace) -> None:
    write_letters(12_000)
    now = timezone.now()
    operation = start_purge(
        selection=Selection.of_query("", now=now), actor=MARA, why="noise", now=now, typed_count=12_000
    )

    for _ in range(3):
        before = reload(operation).changed_count
        process = place.start_runops()
        wait_until(
            lambda before=before: (
                reload(operation).changed_count > before or operation.state == OperationState.FINISHED
            ),
            seconds=40,
            what="the next batch",
        )
        kill(process)
    place.start_runops()
    wait_until(lambda: reload(operation).state == OperationState.FINISHED, seconds=60, what="the end")

    assert operation.changed_count == 12_000
    assert DeadLetter.objects.filter(state="purged", purged_by=operation).count() == 12_000
    assert progress(operation, now=timezone.now()).did_all


def test_two_operators_and_a_script_at_once_send_each_letter_once(place: RunopsPlace) -> None:
    write_letters(500)
    gate = threading.Barrier(3)
    results: list[str] = []

    def operator() -> None:
        gate.wait()
        with contextlib.closing(connection):
            replay_all()

    def script() -> None:
        gate.wait()
        results.append(place.command("dead_letters", "replay", "--query", "", "--yes", "--no-wait").stdout)

    threads = [threading.Thread(target=target) for target in (operator, operator, script)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Only now, so that all three select all of the letters, however slow one of them starts.
    place.start_runops()
    wait_until(
        lambda: Operation.objects.filter(is_materialised=True).count() == Operation.objects.count(),
        seconds=30,
        what="the items",
    )
    wait_until(
        lambda: not OperationItem.objects.filter(state="pending").exists() and not has_open_batch(),
        seconds=30,
        what="all to be sent or skipped",
    )

    messages = place.queued()
    assert len(messages) == 500
    assert len({message["headers"]["jobs-replay-of"] for message in messages}) == 500
    for operation in Operation.objects.all():
        counts = progress(operation, now=timezone.now())
        assert counts.total == 500
        assert counts.waiting + counts.skipped == 500
    skipped = OperationItem.objects.filter(state="skipped")
    assert all(
        detail.startswith("already replaying in operation ")
        for detail in skipped.values_list("detail", flat=True)
    )


def test_a_letter_is_stored_within_two_seconds_of_its_death(sqlite_place: RunopsPlace) -> None:
    place = sqlite_place
    place.start_runops()
    # The first one it collects: then it has its connections, and waits for the next.
    place.report([death("job-before")])
    wait_until(DeadLetter.objects.exists, seconds=20, what="the collector")

    for number in range(3):
        place.report([death(f"job-{number}")])
        wait_until(
            lambda n=number: DeadLetter.objects.filter(task_id=f"job-{n}").exists(),
            seconds=2,
            what="the letter",
        )


def test_a_standby_takes_over_within_a_lease_when_the_holder_is_killed(place: RunopsPlace) -> None:
    first = place.start_runops()
    wait_until(lambda: holder() is not None, seconds=20, what="a holder")
    held_by = holder()
    place.start_runops()
    wait_until(lambda: "started" in place.log(2), seconds=20, what="the standby")
    # It looks for duties from then on, three times in this time.
    time.sleep(LEASE_SECONDS)

    kill(first)
    killed_at = time.monotonic()
    wait_until(
        lambda: holder() not in {None, held_by}, seconds=LEASE_SECONDS * 3, what="the standby to take over"
    )

    # The lease runs out, and the standby looks three times a lease; the rest is for a busy machine.
    assert time.monotonic() - killed_at < LEASE_SECONDS * 1.34 + 2


def test_sigterm_ends_it_within_five_seconds_and_gives_its_duties_up(sqlite_place: RunopsPlace) -> None:
    place = sqlite_place
    process = place.start_runops()
    wait_until(
        lambda: Lease.objects.exclude(holder="").count() == len(all_duties()),
        seconds=20,
        what="all duties to be taken",
    )

    asked_at = time.monotonic()
    process.send_signal(signal.SIGTERM)
    status = process.wait(timeout=10)

    assert status == 0
    assert time.monotonic() - asked_at < 5
    assert not Lease.objects.exclude(holder="").exists()
    assert "stopped." in place.log()


def test_a_broker_that_goes_and_comes_back_is_one_line_each_and_loses_nothing(
    sqlite_place: RunopsPlace,
) -> None:
    place = sqlite_place
    write_letters(50)
    place.start_runops()
    wait_until(
        lambda: Lease.objects.exclude(holder="").count() == len(all_duties()), seconds=20, what="all duties"
    )
    place.redis.stop()
    operation = replay_all()
    wait_until(lambda: "operations: waits and tries again" in place.log(), seconds=20, what="the trouble")
    time.sleep(1.5)  # long enough for several tries, each of which must stay silent

    place.redis.start()
    wait_until(lambda: place.queue_length() == 50, seconds=20, what="the letters")
    wait_until(lambda: "operations: works again" in place.log(), seconds=10, what="the recovery")

    assert place.log().count("operations: waits and tries again") == 1
    assert place.log().count("Traceback") == 0
    assert OperationItem.objects.filter(operation=operation).count() == 50


@pytest.mark.django_db(transaction=True)
def test_of_two_that_reach_for_a_duty_one_gets_it_and_the_token_grows(each_database) -> None:
    first = leases.acquire(duty="d", holder="a", seconds=60)
    assert first is not None
    assert leases.acquire(duty="d", holder="b", seconds=60) is None
    assert leases.acquire(duty="d", holder="a", seconds=60) is None

    Lease.objects.update(expires_at=timezone.now().replace(year=2020))
    second = leases.acquire(duty="d", holder="b", seconds=60)

    assert second is not None
    assert second.token == first.token + 1
    second.check()
    with pytest.raises(LeaseLost, match="no longer holds the duty d"):
        first.check()
    assert not first.renew()
    second.release()
    assert leases.acquire(duty="d", holder="c", seconds=60) is not None


@pytest.mark.django_db(transaction=True)
def test_a_renewed_lease_lives_on_and_an_expired_one_is_lost(each_database) -> None:
    lease = leases.acquire(duty="d", holder="a", seconds=60)
    assert lease is not None
    for _ in range(4):
        pass_seconds(50)
        lease.check()
        assert lease.renew()
    lease.check()

    pass_seconds(61)

    with pytest.raises(LeaseLost):
        lease.check()


def pass_seconds(seconds: float) -> None:
    """Date the ends of leases back: the database's clock decides, and a test that sleeps may oversleep."""
    Lease.objects.update(expires_at=F("expires_at") - timedelta(seconds=seconds))


def holder() -> str | None:
    return Lease.objects.filter(duty="operations").exclude(holder="").values_list("holder", flat=True).first()


def death(task_id: str) -> Record:
    headers = {"task": "shop.tasks.send", "id": task_id, "retries": 0}
    return Record(
        kind="death",
        reason="failed",
        publication_id=f"publication-{task_id}",
        attempt=0,
        at=timezone.now().timestamp(),
        task="shop.tasks.send",
        task_id=task_id,
        worker="celery@web-1",
        boot_id="boot",
        message=WireMessage(
            b"[[], {}, {}]", "application/json", "utf-8", headers, {}, "", "critical", "critical"
        ),
        error=WireError("ValueError", "no", "Traceback"),
    )
