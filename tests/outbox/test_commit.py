"""What a transaction wrote leaves when it commits, only then, and holds up no request."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta

import pytest
from celery import Celery
from django.db import connection, transaction
from django.test import TestCase
from django.utils import timezone

from jobs import Job, conf
from jobs.broker.publish import publish as really_publish
from jobs.core.words import OutboxState
from jobs.models import OutboxMessage
from jobs.outbox import OutboxProducer, collecting, commit
from jobs.outbox.breaker import Breaker
from tests.outbox.shop import create, payloads
from tests.servers import RedisServer, free_port

PENDING, PUBLISHED = OutboxState.PENDING, OutboxState.PUBLISHED


def enqueue(shop: Celery, number: int, **options) -> None:
    shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer(), **options)


def arrived(broker: RedisServer, queue: str = "celery") -> list[int]:
    """Return the first argument of the jobs on a queue, in the order in which they were sent."""
    with broker.client() as client:
        return [json.loads(base64.b64decode(each["body"]))[0][0] for each in payloads(client, queue)]


def states() -> dict[int, str]:
    return {
        json.loads(bytes(row.body))[0][0]: row.state for row in OutboxMessage.objects.order_by("created_at")
    }


@pytest.fixture
def black_hole() -> Iterator[str]:
    """The address of a listener that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        kept: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    kept.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(timeout=10)
        for each in kept:
            each.close()


def test_a_rollback_sends_nothing_and_leaves_nothing(database, shop, broker) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        enqueue(shop, 1)
        enqueue(shop, 2)
        raise ZeroDivisionError

    assert (arrived(broker), states()) == ([], {})


def test_row_87_a_commit_sends_exactly_the_rows_and_nothing_before_it(database, shop, broker) -> None:
    with transaction.atomic():
        for number in range(5):
            enqueue(shop, number)
        before = arrived(broker)

    assert before == []
    assert arrived(broker) == [0, 1, 2, 3, 4]
    assert states() == dict.fromkeys(range(5), PUBLISHED)
    assert set(OutboxMessage.objects.values_list("published_by", flat=True)) == {"commit"}


def test_all_rows_of_a_transaction_leave_in_one_batch(database, shop, broker, monkeypatch) -> None:
    batches: list[int] = []

    def counted(connection, messages, **options):
        batches.append(len(messages))
        return really_publish(connection, messages, **options)

    monkeypatch.setattr(commit, "publish", counted)
    with transaction.atomic():
        enqueue(shop, 0)
        with transaction.atomic():
            enqueue(shop, 1)
        with transaction.atomic():
            enqueue(shop, 2)
        with collecting():
            enqueue(shop, 3)
            enqueue(shop, 4)

    assert batches == [5]
    assert arrived(broker) == [0, 1, 2, 3, 4]


def roll_back_inner(shop: Celery, number: int) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        enqueue(shop, number)
        raise ZeroDivisionError


def first_is_rolled_back(shop: Celery) -> None:
    roll_back_inner(shop, 1)
    enqueue(shop, 2)


def middle_is_rolled_back(shop: Celery) -> None:
    enqueue(shop, 2)
    roll_back_inner(shop, 1)
    enqueue(shop, 3)


def last_is_rolled_back(shop: Celery) -> None:
    enqueue(shop, 2)
    roll_back_inner(shop, 1)


def outer_savepoint_is_rolled_back(shop: Celery) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        with transaction.atomic():
            enqueue(shop, 1)
        raise ZeroDivisionError
    with transaction.atomic():
        enqueue(shop, 2)


def inner_holds_outer_goes_on(shop: Celery) -> None:
    with transaction.atomic():
        enqueue(shop, 2)
        roll_back_inner(shop, 1)
        with transaction.atomic():
            enqueue(shop, 3)


def savepoint_by_hand_is_rolled_back(shop: Celery) -> None:
    enqueue(shop, 2)
    savepoint = transaction.savepoint()
    enqueue(shop, 1)
    transaction.savepoint_rollback(savepoint)
    enqueue(shop, 3)


def all_after_a_savepoint_by_hand_is_rolled_back(shop: Celery) -> None:
    savepoint = transaction.savepoint()
    enqueue(shop, 1)
    transaction.savepoint_rollback(savepoint)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (first_is_rolled_back, [2]),
        (middle_is_rolled_back, [2, 3]),
        (last_is_rolled_back, [2]),
        (outer_savepoint_is_rolled_back, [2]),
        (inner_holds_outer_goes_on, [2, 3]),
        # Django does not take the callbacks of these away.
        (savepoint_by_hand_is_rolled_back, [2, 3]),
        (all_after_a_savepoint_by_hand_is_rolled_back, []),
    ],
)
def test_row_91_a_savepoint_takes_its_own_jobs_with_it_and_no_other(
    database, shop, broker, body: Callable[[Celery], None], expected: list[int]
) -> None:
    with transaction.atomic():
        body(shop)

    assert arrived(broker) == expected
    assert states() == dict.fromkeys(expected, PUBLISHED)


def test_a_transaction_after_one_that_was_rolled_back_sends_its_own_rows_only(database, shop, broker) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        enqueue(shop, 1)
        raise ZeroDivisionError
    with transaction.atomic():
        enqueue(shop, 2)

    assert arrived(broker) == [2]


def test_without_a_transaction_a_row_leaves_at_once(database, shop, broker) -> None:
    enqueue(shop, 1)

    assert (arrived(broker), states()) == ([1], {1: PUBLISHED})


def test_a_transaction_without_atomic_is_left_to_the_relay(database, shop, broker) -> None:
    transaction.set_autocommit(False)
    try:
        enqueue(shop, 1)
        transaction.commit()
    finally:
        transaction.set_autocommit(True)

    row = OutboxMessage.objects.get()
    assert arrived(broker) == []
    assert (row.state, row.claim) == (PENDING, None)
    assert row.available_at <= timezone.now()


def test_more_rows_than_a_request_should_send_are_left_to_the_relay(
    database, shop, broker, monkeypatch
) -> None:
    monkeypatch.setattr(commit, "MOST_ROWS", 3)

    with transaction.atomic():
        for number in range(5):
            enqueue(shop, number)

    assert arrived(broker) == [0, 1, 2]
    assert states() == {0: PUBLISHED, 1: PUBLISHED, 2: PUBLISHED, 3: PENDING, 4: PENDING}
    assert all(row.available_at <= timezone.now() for row in OutboxMessage.objects.filter(state=PENDING))


def test_row_99_the_relay_may_not_take_a_row_while_its_transaction_sends_it(
    database, shop, broker, monkeypatch
) -> None:
    seen: list[timedelta] = []

    def looked(connection, messages, **options):
        seen.extend(row.available_at - timezone.now() for row in OutboxMessage.objects.all())
        return really_publish(connection, messages, **options)

    monkeypatch.setattr(commit, "publish", looked)
    with transaction.atomic():
        enqueue(shop, 1)

    # Six timeouts of a second, the longest that sending can take.
    assert all(left > timedelta(seconds=6) for left in seen)
    assert len(seen) == 1


def test_a_transaction_that_takes_longer_than_the_grace_leaves_its_rows_to_the_relay(
    database, shop, broker, settings
) -> None:
    settings.JOBS_OUTBOX_GRACE_SECONDS = 6.0

    with transaction.atomic():
        enqueue(shop, 1)

    assert (arrived(broker), states()) == ([], {1: PENDING})


def test_row_89_a_broker_that_is_down_raises_nothing_and_keeps_the_row(database, settings, caplog) -> None:
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    shop = create(settings.BROKER_URL)
    after: list[str] = []

    with caplog.at_level(logging.WARNING, logger="jobs"):
        for number in range(3):
            with transaction.atomic():
                enqueue(shop, number)
                transaction.on_commit(lambda: after.append("called"))

    assert states() == dict.fromkeys(range(3), PENDING)
    assert after == ["called"] * 3
    # Said once, not once a request.
    assert len([r for r in caplog.records if "stay in the outbox" in r.message]) == 1


def test_not_even_the_first_request_after_the_broker_went_away_waits_for_it(
    database, settings, monkeypatch
) -> None:
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    slept: list[float] = []
    monkeypatch.setattr("kombu.utils.functional.sleep", slept.append)

    with transaction.atomic():
        enqueue(create(settings.BROKER_URL), 1)

    assert (states(), slept) == ({1: PENDING}, [])


def test_while_the_broker_is_known_to_be_down_rows_are_the_relays_at_once(database, settings) -> None:
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    shop = create(settings.BROKER_URL)
    with transaction.atomic():
        enqueue(shop, 1)

    with transaction.atomic():
        enqueue(shop, 2)

    first, second = OutboxMessage.objects.order_by("created_at")
    assert first.available_at > timezone.now()
    assert second.available_at <= timezone.now()
    assert (second.claim, second.published_by) == (None, "")


def test_a_broker_that_is_back_is_used_again(database, settings, monkeypatch) -> None:
    server = RedisServer()
    settings.BROKER_URL = server.url
    shop = create(server.url)
    with transaction.atomic():
        enqueue(shop, 1)
    server.start()
    try:
        with transaction.atomic():
            enqueue(shop, 2)
        while_open = arrived(server)
        monkeypatch.setattr(commit.breaker, "_open_until", time.monotonic())
        for number in (3, 4):
            with transaction.atomic():
                enqueue(shop, number)

        assert (while_open, arrived(server)) == ([], [3, 4])
    finally:
        server.remove()


def test_a_broker_that_was_started_anew_costs_no_request(database, settings, broker) -> None:
    server = RedisServer().start()
    settings.BROKER_URL = server.url
    shop = create(server.url)
    try:
        with transaction.atomic():
            enqueue(shop, 1)
        server.stop()
        server.start()
        with transaction.atomic():
            enqueue(shop, 2)

        assert arrived(server) == [1, 2]
        assert states() == {1: PUBLISHED, 2: PUBLISHED}
    finally:
        server.remove()


def seconds_of_a_request(shop: Celery, number: int) -> float:
    """Return how long a transaction with three jobs and a row of its own takes, its commit included."""
    began = time.perf_counter()
    with transaction.atomic():
        for each in range(3):
            enqueue(shop, number * 10 + each)
    return time.perf_counter() - began


def test_a_request_is_as_fast_with_the_broker_down_as_with_it_up(database, settings, broker) -> None:
    up = create(broker.url)
    settings.BROKER_URL = broker.url
    seconds_of_a_request(up, 0)
    with_broker = [seconds_of_a_request(up, number) for number in range(40)]

    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    down = create(settings.BROKER_URL)
    without = [seconds_of_a_request(down, number) for number in range(40, 80)]

    assert statistics.median(without) < 2 * statistics.median(with_broker)
    assert OutboxMessage.objects.filter(state=PENDING).count() == 120


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_row_94_a_black_holed_broker_costs_one_short_timeout_and_then_nothing(
    database, settings, black_hole, scheme
) -> None:
    settings.BROKER_URL = f"{scheme}://{black_hole}//" if scheme == "amqp" else f"redis://{black_hole}/0"
    settings.JOBS_OUTBOX_TIMEOUT_SECONDS = 0.5
    shop = create(settings.BROKER_URL)

    first = seconds_of_a_request(shop, 0)
    others = [seconds_of_a_request(shop, number) for number in range(1, 20)]

    # The timeout, and as much again for a slow machine; unbounded without one.
    assert 0.4 < first < 5
    assert sum(others) < 4
    assert OutboxMessage.objects.filter(state=PENDING).count() == 60


def test_a_broker_that_freezes_in_the_middle_does_not_hang_a_request(database, settings) -> None:
    server = RedisServer().start()
    settings.BROKER_URL, settings.JOBS_OUTBOX_TIMEOUT_SECONDS = server.url, 0.5
    shop = create(server.url)
    try:
        seconds_of_a_request(shop, 0)
        assert server.process is not None
        server.process.send_signal(19)  # SIGSTOP
        frozen = seconds_of_a_request(shop, 1)
        after = seconds_of_a_request(shop, 2)
        server.process.send_signal(18)  # SIGCONT

        assert frozen < 10
        assert after < 2
    finally:
        server.remove()


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


def test_a_row_that_the_broker_refuses_is_left_to_the_relay_and_the_others_go(database, shop, broker) -> None:
    with broker.client() as client:
        client.set("no-list", "text")

    with transaction.atomic():
        enqueue(shop, 1)
        enqueue(shop, 2, queue="no-list")
        enqueue(shop, 3)

    assert arrived(broker) == [1, 3]
    assert states() == {1: PUBLISHED, 2: PENDING, 3: PUBLISHED}
    row = OutboxMessage.objects.get(state=PENDING)
    assert (row.claim, row.attempts) == (None, 0)


def test_a_job_that_expired_within_its_transaction_is_not_sent(database, shop, broker, time_machine) -> None:
    time_machine.move_to("2026-11-12 03:00:00+00:00", tick=False)
    with transaction.atomic():
        enqueue(shop, 1, expires=10)
        time_machine.move_to("2026-11-12 03:00:11+00:00", tick=False)

    assert (arrived(broker), states()) == ([], {1: PENDING})


class TestRow93InATestCase(TestCase):
    """Django's TestCase never commits: nothing is sent unless the test asks for it."""

    @pytest.fixture(autouse=True)
    def place(self, shop, broker) -> None:
        self.shop, self.redis = shop, broker
        commit.forget()

    def test_nothing_is_sent_and_the_rows_are_there_to_look_at(self) -> None:
        enqueue(self.shop, 1)

        assert (arrived(self.redis), states()) == ([], {1: PENDING})

    def test_captured_callbacks_send_what_was_enqueued_while_they_were_captured(self) -> None:
        enqueue(self.shop, 1)
        with self.captureOnCommitCallbacks(execute=True) as first:
            enqueue(self.shop, 2)
            enqueue(self.shop, 3)
        with self.captureOnCommitCallbacks(execute=True) as second:
            enqueue(self.shop, 4)

        assert (len(first), len(second)) == (2, 1)
        assert arrived(self.redis) == [2, 3, 4]
        assert states() == {1: PENDING, 2: PUBLISHED, 3: PUBLISHED, 4: PUBLISHED}
        assert OutboxMessage.objects.get(state=PENDING).claim is None


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


def test_row_94_a_result_backend_that_is_away_holds_up_no_job_in_a_transaction(
    database, settings, black_hole
) -> None:
    settings.BROKER_URL, settings.JOBS_OUTBOX_TIMEOUT_SECONDS = f"redis://{black_hole}/0", 0.5
    shop = create(settings.BROKER_URL, settings.BROKER_URL, base=Job)
    began = time.perf_counter()

    with transaction.atomic():
        result = shop.tasks["outbox.add"].apply_async((1, 2))

    assert time.perf_counter() - began < 10
    row = OutboxMessage.objects.get()
    assert (row.task_id, row.headers["ignore_result"]) == (result.id, False)


def test_other_callbacks_between_change_nothing(database, shop, broker) -> None:
    called: list[list[int]] = []

    with transaction.atomic():
        enqueue(shop, 1)
        transaction.on_commit(lambda: called.append(arrived(broker)))
        enqueue(shop, 2)

    assert (called, arrived(broker)) == ([[1, 2]], [1, 2])


def test_a_relay_that_took_over_is_believed(database, shop, broker) -> None:
    with transaction.atomic():
        enqueue(shop, 1)
        row = OutboxMessage.objects.get()
        assert row.claim is not None
        with broker.client() as client:
            # What a relay sets for a transaction that overslept its grace.
            client.set(f"jobs.sent.outbox.{row.claim.hex}", "fence")

    assert (arrived(broker), states()) == ([], {1: PENDING})


def test_all_rows_of_a_savepoint_that_is_rolled_back_by_hand_are_nothing_to_send(database, shop) -> None:
    with transaction.atomic():
        savepoint = transaction.savepoint()
        enqueue(shop, 1)
        transaction.savepoint_rollback(savepoint)

    assert states() == {}


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
