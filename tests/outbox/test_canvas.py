"""Everything that Celery can send ends in a transaction as it ends outside of one: a real worker, real results."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.result import AsyncResult
from django.db import transaction
from django.utils import timezone

from jobs import Job
from jobs.broker import connect
from jobs.core.words import OutboxState
from jobs.models import OutboxMessage
from jobs.outbox.relay import relay_batch
from tests.agent.fleet import Worker
from tests.outbox.shop import create, lines
from tests.servers import RedisServer, wait_until

pytestmark = [pytest.mark.worker, pytest.mark.django_db(transaction=True)]

Send = Callable[[Celery], Any]


@pytest.fixture(scope="module")
def worker(redis_server: RedisServer, tmp_path_factory) -> Iterator[Worker]:
    # A number of its own: the other tests empty theirs.
    url = redis_server.url.removesuffix("/0") + "/7"
    started = Worker(
        pool="threads",
        broker_url=url,
        directory=tmp_path_factory.mktemp("canvas"),
        environment={"SHOP_BROKER_URL": url, "SHOP_BACKEND_URL": url, "SHOP_LINES_URL": url},
        program=("celery", "-A", "tests.outbox.shop"),
    )
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def application(worker: Worker) -> Iterator[Celery]:
    app = create(worker.broker_url, worker.broker_url, base=Job)
    yield app
    # Results that go later than the server would not let the test session end in peace.
    gc.collect()
    app.backend.result_consumer.stop()
    app.backend.result_consumer.subscribed_to.clear()
    app.backend.client.connection_pool.disconnect()
    app.close()


@pytest.fixture
def client(worker: Worker, application: Celery, settings) -> Celery:
    settings.BROKER_URL = worker.broker_url
    return application


def task(app: Celery, name: str) -> Any:
    return app.tasks[f"outbox.{name}"]


def single(app: Celery) -> Any:
    return task(app, "add").apply_async((1, 2))


def linked(app: Celery) -> Any:
    return task(app, "add").apply_async((1, 2), link=task(app, "add").s(10))


def linked_on_error(app: Celery) -> Any:
    return task(app, "fail").apply_async(link_error=task(app, "mourn").si())


def in_a_chain(app: Celery) -> Any:
    add = task(app, "add")
    return chain(add.s(1, 2), add.s(3), add.s(4)).apply_async()


def in_a_group(app: Celery) -> Any:
    return group(task(app, "add").s(number, 1) for number in range(4)).apply_async()


def in_a_chord(app: Celery) -> Any:
    add = task(app, "add")
    return chord((add.s(number, 1) for number in range(4)), task(app, "total").s()).apply_async()


def in_a_chain_with_a_group(app: Celery) -> Any:
    add = task(app, "add")
    return chain(add.s(1, 1), group(add.s(1), add.s(2)), task(app, "total").s()).apply_async()


def with_priority(app: Celery) -> Any:
    return task(app, "add").apply_async((1, 2), priority=6)


def with_countdown(app: Celery) -> Any:
    return task(app, "add").apply_async((1, 2), countdown=1)


def with_eta_and_expiry(app: Celery) -> Any:
    eta = datetime.now(UTC) + timedelta(seconds=1)
    return task(app, "add").apply_async((1, 2), eta=eta, expires=eta + timedelta(minutes=5))


def expired(app: Celery) -> Any:
    return task(app, "add").apply_async((1, 2), eta=datetime.now(UTC) + timedelta(seconds=2), expires=1)


CANVASES: list[tuple[Send, int]] = [
    (single, 1),
    (linked, 2),
    (linked_on_error, 2),
    (in_a_chain, 3),
    (in_a_group, 4),
    (in_a_chord, 5),
    (in_a_chain_with_a_group, 4),
    (with_priority, 1),
    (with_countdown, 1),
    (with_eta_and_expiry, 1),
    (expired, 0),
]


def outcome(result: Any) -> Any:
    wait_until(result.ready, seconds=60, what=f"{result} to end")
    if isinstance(result, AsyncResult):
        return result.state, str(result.result)
    return [(each.state, str(each.result)) for each in result.results]


def ran(worker: Worker, count: int) -> list[tuple[str, Any, Any]]:
    """Wait for so many jobs; return what ran, without ids, and empty the list."""
    with worker.redis() as redis_client:
        wait_until(lambda: len(lines(redis_client)) >= count, seconds=60, what=f"{count} jobs to run")
        found = lines(redis_client)
        redis_client.delete("shop.lines")
    return sorted((each["task"], str(each.get("sum")), each["priority"]) for each in found)


@pytest.mark.parametrize(("send", "count"), CANVASES, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_sent_in_a_transaction_ends_as_it_does_outside(
    worker, client, send: Send, count: int
) -> None:
    outside = outcome(send(client)), ran(worker, count)

    with transaction.atomic():
        result = send(client)
        written = OutboxMessage.objects.count()
    inside = outcome(result), ran(worker, count)

    assert inside == outside
    assert written >= 1
    assert set(OutboxMessage.objects.values_list("state", flat=True)) == {OutboxState.PUBLISHED}


@pytest.mark.parametrize(
    ("send", "count"),
    [(in_a_chain, 3), (in_a_group, 4), (in_a_chord, 5)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_the_relay_sends_ends_alike(worker, client, monkeypatch, send: Send, count: int) -> None:
    outside = outcome(send(client)), ran(worker, count)

    monkeypatch.setattr("jobs.outbox.commit._leave", lambda *_, **__: None)
    with transaction.atomic():
        result = send(client)
    with connect() as broker:
        relay_batch(broker, now=timezone.now() + timedelta(seconds=16))

    assert (outcome(result), ran(worker, count)) == outside


@pytest.mark.parametrize(
    "send", [send for send, _ in CANVASES], ids=lambda value: getattr(value, "__name__", None)
)
def test_nothing_of_it_is_sent_when_the_transaction_is_rolled_back(worker, client, send: Send) -> None:
    # The test before saw its jobs end, and not that they were acknowledged.
    wait_until(worker.is_drained, what="the jobs before to be acknowledged")
    with transaction.atomic():
        send(client)
        transaction.set_rollback(True)

    # One sent after it: what had been sent would have run by then, or wait with the worker for its time.
    fence = task(client, "add").apply_async((100, 1))
    outcome(fence)
    with worker.redis() as redis_client:
        assert [each["id"] for each in lines(redis_client)] == [fence.id]
        assert redis_client.llen("celery") == 0
        assert [each for each in redis_client.hvals("unacked") if fence.id.encode() not in each] == []
        redis_client.delete("shop.lines")
    assert OutboxMessage.objects.count() == 0
