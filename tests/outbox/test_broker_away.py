"""A commit while the broker is away, frozen or silent: it raises nothing, waits for nothing and keeps the row."""

from __future__ import annotations

import logging
import socket
import statistics
import threading
import time
from collections.abc import Iterator

import pytest
from celery import Celery
from django.db import transaction
from django.utils import timezone

from jobs import Job
from jobs.core.words import OutboxState
from jobs.models import OutboxMessage
from jobs.outbox import commit
from tests.outbox.enqueued import arrived, enqueue, states
from tests.outbox.shop import create
from tests.servers import RedisServer, free_port

PENDING, PUBLISHED = OutboxState.PENDING, OutboxState.PUBLISHED


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
    assert commit.breaker.is_open
    monkeypatch.setattr(commit.breaker, "_open_until", time.monotonic() + 3_600)
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

    # The quicker quarter of each: the others wait for a busy machine, and not in both halves alike.
    assert statistics.quantiles(without)[0] < 2 * statistics.quantiles(with_broker)[0]
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
