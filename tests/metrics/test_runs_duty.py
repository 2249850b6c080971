"""The duty "runs" of runops: counts what waits on a real Redis, tells what it cannot read, and gives up on the silent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from kombu import Connection, Producer

from jobs import duties, leases
from jobs.agent import batches
from jobs.agent.batches import Batch
from jobs.agent.wire import RUNS_QUEUE
from jobs.broker import connect
from jobs.broker.inbox import Inbox
from jobs.errors import BrokerUnavailable, LeaseLost
from jobs.leases import HeldLease
from jobs.metrics import collecting
from jobs.metrics.collecting import RunsCollector
from jobs.metrics.storing import store
from jobs.models import DeadLetter, Lease, Rollup, Run, WorkerBoot
from tests.metrics.batches import make_batch, make_run, make_running
from tests.servers import RedisServer

pytestmark = pytest.mark.django_db


def send(url: str, *bodies: bytes, content_type: str = batches.CONTENT_TYPE) -> None:
    """Publish as an agent does, through kombu."""
    with Connection(url) as to_broker:
        producer = Producer(to_broker)
        for body in bodies:
            producer.publish(
                body,
                exchange="",
                routing_key=RUNS_QUEUE,
                content_type=content_type,
                content_encoding="binary",
            )


def fresh(**fields: Any) -> Batch:
    now = timezone.now().timestamp()
    return make_batch([make_run(finished_at=now)], at=now, **fields)


@pytest.fixture
def lease() -> HeldLease:
    held = leases.acquire(duty="runs", holder="test", seconds=60)
    assert held is not None
    return held


def look_for_a_silent_worker_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store([make_batch(running=[make_running()])], now=timezone.now() - timedelta(seconds=40))
    monkeypatch.setattr(duties, "LOST_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(duties, "COLLECT_WAIT_SECONDS", 0.01)


def test_a_round_counts_what_waits(broker: RedisServer, lease: HeldLease) -> None:
    send(broker.url, *(batches.encode(fresh(sequence=number)) for number in range(1, 6)))
    collect = duties.runs_duty()

    assert collect(lease) == duties.RUNS_EVERY_SECONDS

    assert Run.objects.count() == WorkerBoot.objects.get().attempts == 5
    with broker.client() as client:
        assert client.llen(RUNS_QUEUE) == client.llen(f"{RUNS_QUEUE}.taken") == 0


def test_a_full_round_is_followed_by_the_next_at_once(
    broker: RedisServer, lease: HeldLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The limit is a default of the collector's.
    monkeypatch.setattr(RunsCollector.collect, "__kwdefaults__", {"limit": 2, "wait_seconds": 1.0})
    send(broker.url, *(batches.encode(fresh(sequence=number)) for number in range(1, 4)))
    collect = duties.runs_duty()

    assert collect(lease) == 0.0
    assert collect(lease) == duties.RUNS_EVERY_SECONDS
    assert Run.objects.count() == 3


def test_what_cannot_be_read_is_told_on_the_lease(broker: RedisServer, lease: HeldLease) -> None:
    send(broker.url, b"garbage", batches.encode(fresh()))
    collect = duties.runs_duty()

    collect(lease)

    assert leases.remark_of("runs").startswith("1 batch on jobs.runs could not be read or counted: ")
    assert Run.objects.count() == 1
    # The others are counted: nothing keeps the duty from being done, and no lag is to be told.
    assert leases.undone(["runs"]) == []
    row = Lease.objects.get(duty="runs")
    assert (row.trouble, row.trouble_since) == ("", None)


def test_a_remark_that_stands_is_not_written_again(broker: RedisServer, lease: HeldLease) -> None:
    send(broker.url, b"garbage")
    collect = duties.runs_duty()
    collect(lease)

    with CaptureQueriesContext(connection) as queries:
        collect(lease)

    assert [each["sql"] for each in queries if 'UPDATE "jobs_lease"' in each["sql"]] == []
    assert leases.remark_of("runs") != ""


def test_what_could_not_be_read_is_taken_back_after_an_outage_of_the_database(
    broker: RedisServer, lease: HeldLease
) -> None:
    """The duty begins anew after an error, and nothing could be written while the database was away."""
    send(broker.url, b"garbage")
    duties.runs_duty()(lease)
    assert leases.remark_of("runs") != ""

    duties.runs_duty()(lease)

    assert leases.remark_of("runs") == ""


def test_what_cannot_be_read_stands_beside_a_trouble_and_after_it(
    broker: RedisServer, lease: HeldLease
) -> None:
    send(broker.url, b"garbage")
    collect = duties.runs_duty()
    collect(lease)
    told = leases.remark_of("runs")

    lease.tell_trouble("BrokerUnavailable: it does not answer")
    assert [each.trouble for each in leases.undone(["runs"])] == ["BrokerUnavailable: it does not answer"]
    assert leases.remark_of("runs") == told != ""

    # As runops does when a round has worked.
    lease.tell_trouble("")
    collect(lease)
    assert leases.undone(["runs"]) == []
    assert leases.remark_of("runs") == told


def test_a_silent_worker_is_given_up_once_all_was_heard(
    broker: RedisServer, lease: HeldLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_for_a_silent_worker_at_once(monkeypatch)
    collect = duties.runs_duty()

    collect(lease)
    assert not DeadLetter.objects.exists()
    monkeypatch.setattr(collecting, "LEVEL_FOR", timedelta(0))
    collect(lease)

    assert WorkerBoot.objects.get().lost_at is not None
    assert DeadLetter.objects.get().worker == "celery@pay-1"


def test_nobody_is_given_up_while_the_broker_is_full_and_the_duty_says_why(
    broker: RedisServer, lease: HeldLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses what workers tell and answers who reads: a whole fleet looked lost after half a minute."""
    look_for_a_silent_worker_at_once(monkeypatch)
    monkeypatch.setattr(collecting, "LEVEL_FOR", timedelta(0))
    collect = duties.runs_duty()

    with broker.client() as client:
        client.config_set("maxmemory", "1")
        try:
            collect(lease)
            collect(lease)
        finally:
            client.config_set("maxmemory", "0")

    assert WorkerBoot.objects.get().lost_at is None
    told = "Workers cannot tell that they live, so none is given up for lost: The broker "
    assert lease.hindrance.startswith(told)
    assert "maxmemory" in lease.hindrance
    # The next message is not tried at once.
    monkeypatch.setattr(collecting, "PROBE_AFTER", timedelta(0))
    collect(lease)
    collect(lease)
    assert WorkerBoot.objects.get().lost_at is not None
    assert lease.hindrance == leases.remark_of("runs") == ""


def test_who_lost_the_lease_gives_up_on_nobody(
    broker: RedisServer, lease: HeldLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_for_a_silent_worker_at_once(monkeypatch)
    monkeypatch.setattr(collecting, "LEVEL_FOR", timedelta(0))
    Lease.objects.filter(duty="runs").update(holder="another", token=lease.token + 1)

    with pytest.raises(LeaseLost):
        duties.runs_duty()(lease)

    assert not DeadLetter.objects.exists()


def test_what_was_taken_and_not_acknowledged_is_counted_once(
    broker: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the commit and the acknowledgement."""
    send(broker.url, *(batches.encode(fresh(sequence=number)) for number in range(1, 4)))
    inbox = Inbox(connect(), RUNS_QUEUE)
    with monkeypatch.context() as patched:

        def crash(_taken: Any) -> None:
            raise BrokerUnavailable("it went away")

        patched.setattr(inbox, "ack", crash)
        with pytest.raises(BrokerUnavailable):
            RunsCollector(inbox).collect(wait_seconds=0, now=timezone.now())
    inbox.close()
    send(broker.url, batches.encode(fresh(sequence=4)))

    again = Inbox(connect(), RUNS_QUEUE)
    collector = RunsCollector(again)
    while collector.collect(wait_seconds=0, now=timezone.now()):
        pass
    again.close()

    assert Run.objects.count() == WorkerBoot.objects.get().attempts == 4
    assert sum(Rollup.objects.filter(level="day", scope="all").values_list("done", flat=True)) == 4
    with broker.client() as client:
        assert client.llen(f"{RUNS_QUEUE}.taken") == 0


def test_the_two_queues_of_the_agents_keep_apart(broker: RedisServer) -> None:
    send(broker.url, b"a batch")

    letters, runs = Inbox(connect()), Inbox(connect(), RUNS_QUEUE)

    assert letters.take(10, 0) == []
    assert [one.body for one in runs.take(10, 0)] == [b"a batch"]
    assert (letters.depth(), runs.depth()) == (0, 1)
    letters.close()
    runs.close()


def test_an_error_names_the_queue(broker: RedisServer) -> None:
    with pytest.raises(BrokerUnavailable, match=r"while reading jobs\.runs: "):
        Inbox(Connection("redis://127.0.0.1:1/0"), RUNS_QUEUE).take(1, 0)
