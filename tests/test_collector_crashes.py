"""A crash anywhere, or two collectors at once: every death is written, none twice."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction

from jobs.agent.wire import CONTENT_TYPE, DEAD_QUEUE, encode
from jobs.broker import connect
from jobs.broker.inbox import Inbox, Taken
from jobs.collector import Collector
from jobs.collector.storing import store
from jobs.errors import BrokerUnavailable
from jobs.models import DeadLetter, Death, FailureGroup
from tests.factories import NOW, make_record, make_taken
from tests.postgres import default_database

pytestmark = pytest.mark.django_db


def publish(*records) -> None:
    with connect() as sender, sender.Producer() as producer:
        for record in records:
            producer.publish(
                encode(record), routing_key=DEAD_QUEUE, content_type=CONTENT_TYPE, content_encoding="utf-8"
            )


class AckLost(Inbox):
    """The process is killed between the commit and the acknowledgement."""

    def ack(self, taken: list[Taken]) -> None:
        raise BrokerUnavailable("killed before the acknowledgement")


def test_a_crash_after_the_commit_adds_nothing_when_the_batch_comes_again(broker):
    publish(*(make_record() for _ in range(5)))
    crashed = AckLost(connect())
    with pytest.raises(BrokerUnavailable):
        Collector(crashed).collect(now=NOW)
    crashed.close()

    survivor = Inbox(connect())
    collected = Collector(survivor).collect(now=NOW)

    assert collected == 5
    assert (DeadLetter.objects.count(), Death.objects.count()) == (5, 5)
    assert survivor.depth() == 0


class NoCommit(Collector):
    """The process is killed in the middle of its transaction."""

    def collect(self, **options) -> int:
        with transaction.atomic():
            self._write(self._inbox.take(3, 0), now=NOW)
            raise ZeroDivisionError


def test_a_crash_before_the_commit_loses_nothing(broker):
    publish(*(make_record() for _ in range(5)))
    crashed = Inbox(connect())
    with pytest.raises(ZeroDivisionError):
        NoCommit(crashed).collect()
    crashed.close()
    assert DeadLetter.objects.count() == 0

    survivor = Collector(Inbox(connect()))
    batches = [survivor.collect(now=NOW, wait_seconds=0) for _ in range(3)]

    assert batches == [3, 2, 0]
    assert DeadLetter.objects.count() == 5


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_two_collectors_with_the_same_batch_write_it_once(postgres_server):
    """The lease makes this rare; the unique key makes it harmless."""
    url = postgres_server.create_migrated_database("two_collectors")
    records = [make_record(error_type=f"shop.E{n % 7}") for n in range(60)]
    taken = [make_taken(record) for record in records]
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def collect() -> None:
        collector = Collector(OneBatch(taken))
        try:
            start.wait(timeout=10)
            collector.collect(now=NOW)
        except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
            failures.append(error)
        finally:
            connection.close()

    with default_database(url):
        threads = [threading.Thread(target=collect) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)

        assert failures == []
        assert (DeadLetter.objects.count(), Death.objects.count()) == (60, 60)
        assert FailureGroup.objects.count() == 7


class OneBatch:
    """Gives every collector the same messages, as a redelivery does."""

    def __init__(self, taken: list[Taken]) -> None:
        self.taken = taken

    def take(self, limit: int, wait_seconds: float) -> list[Taken]:
        return self.taken

    def ack(self, taken: list[Taken]) -> None:
        assert taken == self.taken


def test_storing_a_batch_again_writes_nothing(django_assert_max_num_queries):
    records = [make_record() for _ in range(20)]
    store(records, now=NOW)

    with django_assert_max_num_queries(4):
        again = store(records, now=NOW)

    assert (again.letters, again.deaths) == (0, 0)
