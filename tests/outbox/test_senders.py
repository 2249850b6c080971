"""The connections of a process that its commits share, and the breaker that spares them a broker that is away."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

import pytest
from django.db import connection, transaction

from jobs import conf
from jobs.core.words import OutboxState
from jobs.outbox import commit
from jobs.outbox.breaker import Breaker
from tests.outbox.enqueued import arrived, enqueue, states

PENDING, PUBLISHED = OutboxState.PENDING, OutboxState.PUBLISHED


class TestBreaker:
    """Times are monotonic seconds that the test sets."""

    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("jobs.outbox.breaker.time.monotonic", lambda: self.now)

    def test_it_opens_on_the_first_failure_and_lets_one_try_after_a_while(self) -> None:
        breaker = Breaker()
        assert breaker.lets_through()
        assert breaker.failed()

        self.now += 4.9
        early = breaker.lets_through()
        self.now += 0.2
        tries = [breaker.lets_through() for _ in range(3)]

        assert (early, tries) == (False, [True, False, False])

    def test_each_failed_try_doubles_the_while_up_to_half_a_minute(self) -> None:
        breaker = Breaker()
        breaker.failed()
        whiles = []
        for _ in range(5):
            began = self.now
            while not breaker.lets_through():
                self.now += 0.5
            whiles.append(self.now - began)
            breaker.failed()

        assert whiles == [5, 10, 20, 30, 30]

    def test_threads_that_fail_together_count_as_one_failure(self) -> None:
        breaker = Breaker()
        news = [breaker.failed() for _ in range(8)]

        self.now += 5
        assert breaker.lets_through()
        assert news == [True, *[False] * 7]

    def test_success_closes_it(self) -> None:
        breaker = Breaker()
        breaker.failed()
        self.now += 5
        breaker.lets_through()

        assert breaker.succeeded()
        assert not breaker.succeeded()
        assert [breaker.lets_through() for _ in range(3)] == [True] * 3
        assert not breaker.is_open


def test_at_most_four_connections_are_kept(settings, broker) -> None:
    senders = commit.Senders()
    with ExitStack() as stack:
        for _ in range(6):
            connection, is_fresh = stack.enter_context(senders.borrowed(conf.current()))
            connection.connect()
            assert is_fresh

    kept = senders.left_behind()
    for _, connection in kept:
        connection.release()
    assert len(kept) == 4


def test_a_connection_to_another_broker_is_not_used(settings, broker) -> None:
    senders = commit.Senders()
    with senders.borrowed(conf.current()) as (first, _):
        pass
    settings.BROKER_URL = broker.url.removesuffix("/0") + "/1"
    with senders.borrowed(conf.current()) as (second, is_fresh):
        pass

    assert is_fresh
    assert second is not first


def test_threads_share_the_connections_and_lose_no_row(database, shop, broker) -> None:
    if database == "sqlite":
        connection.cursor().execute("PRAGMA busy_timeout=60000")
    errors: list[Exception] = []

    def work(first: int) -> None:
        try:
            for number in range(first, first + 10):
                with transaction.atomic():
                    enqueue(shop, number)
        except Exception as error:  # noqa: BLE001 - handed to the test
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(n * 10,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)

    assert errors == []
    assert sorted(arrived(broker)) == list(range(60))
    assert set(states().values()) == {PUBLISHED}


def test_a_forked_process_opens_its_own_connection_and_leaves_its_parents_alone(
    database, shop, broker
) -> None:
    with transaction.atomic():
        enqueue(shop, 1)
    connection.close()

    child = os.fork()
    if child == 0:
        try:
            for number in (10, 11):
                with transaction.atomic():
                    enqueue(shop, number)
            connection.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with transaction.atomic():
        enqueue(shop, 2)

    assert sorted(arrived(broker)) == [1, 2, 10, 11]
    assert set(states().values()) == {PUBLISHED}
