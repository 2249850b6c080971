"""Which way a job leaves, and what is refused before it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from kombu.exceptions import EncodeError, OperationalError
from pydantic import BaseModel

from jobs import Job
from jobs.agent.wire import IDEMPOTENCY_HEADER, SLOT_HEADER
from jobs.errors import JobsError, PayloadTooLarge, PolicyError
from jobs.models import OutboxMessage
from jobs.outbox import commit
from tests.applications import Application
from tests.base import shop
from tests.base.place import close
from tests.migrated import migrated_database
from tests.servers import RedisServer

# Nothing listens on port 1: whatever talks to it fails at once.
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def app(broker: RedisServer) -> Iterator[Celery]:
    """The shop on the session's Redis, without a result backend."""
    app = shop.create(broker.url)
    yield app
    close(app)


@pytest.fixture
def lost_app(broker: RedisServer) -> Iterator[Celery]:
    """The shop with a broker and a result backend that are both away."""
    app = shop.create(NOWHERE, NOWHERE)
    app.conf.update(task_publish_retry=False, redis_socket_connect_timeout=1)
    app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0, "timeout": 1}}
    yield app
    close(app)


def waiting(broker: RedisServer, queue: str = "celery") -> list[dict[str, Any]]:
    with broker.client() as client:
        return [json.loads(each) for each in client.lrange(queue, 0, -1)]


def rows() -> list[OutboxMessage]:
    return list(OutboxMessage.objects.order_by("id"))


def _next(x: int) -> int:
    return x + 1


def send_and_fail(job: Any, x: int) -> None:
    """Send a job in a transaction that rolls back."""
    with transaction.atomic():
        job.delay(x)
        raise ZeroDivisionError


def test_a_job_outside_a_transaction_goes_to_the_broker(app: Celery, broker: RedisServer) -> None:
    """Without the mark django_db: no database is asked."""
    result = app.tasks["base.keyed"].delay(1, 2)

    (message,) = waiting(broker)
    assert message["headers"]["id"] == result.id
    assert message["headers"][IDEMPOTENCY_HEADER] == "sum:1:2"


def test_a_job_called_as_a_function_is_its_function(app: Celery) -> None:
    """Without the mark django_db: the ledger is not asked."""
    keyed: Any = app.task(base=Job, shared=False, name="plain.keyed", idempotency_key="{x}")(_next)

    assert [keyed(1), keyed(1)] == [2, 2]


@pytest.mark.django_db
def test_row_87_a_job_in_a_transaction_is_a_row_and_no_message(app: Celery, broker: RedisServer) -> None:
    result = app.tasks["base.keyed"].apply_async((1,), queue="critical", priority=3, countdown=5)

    (row,) = rows()
    assert (row.task_id, row.task, row.idempotency_key) == (result.id, "base.keyed", "sum:1:1")
    assert (row.queue, row.priority) == ("critical", 3)
    assert row.eta is not None
    assert waiting(broker, "critical") == []


@pytest.mark.django_db(transaction=True)
def test_row_87_a_job_of_a_rolled_back_transaction_never_leaves(app: Celery, broker: RedisServer) -> None:
    with pytest.raises(ZeroDivisionError):
        send_and_fail(app.tasks["base.keyed"], 1)

    assert rows() == []
    assert waiting(broker) == []


@pytest.mark.django_db(transaction=True)
def test_row_87_a_job_of_a_committed_transaction_leaves_at_once(app: Celery, broker: RedisServer) -> None:
    with transaction.atomic():
        result = app.tasks["base.keyed"].delay(1)
        assert waiting(broker) == []

    assert [message["headers"]["id"] for message in waiting(broker)] == [result.id]


@pytest.mark.django_db(transaction=True)
def test_row_91_a_savepoint_that_rolls_back_takes_its_jobs_along_and_no_others(
    app: Celery, broker: RedisServer
) -> None:
    keyed = app.tasks["base.keyed"]

    with transaction.atomic():
        kept = keyed.delay(1)
        with pytest.raises(ZeroDivisionError):
            send_and_fail(keyed, 2)

    assert [message["headers"]["id"] for message in waiting(broker)] == [kept.id]


@pytest.mark.django_db(transaction=True)
def test_row_92_a_broker_that_is_away_at_commit_does_not_fail_the_request(
    app: Celery, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own: the process remembers for a while that its broker was away.
    monkeypatch.setattr(commit, "breaker", commit.Breaker())
    settings.BROKER_URL = NOWHERE

    with transaction.atomic():
        result = app.tasks["base.keyed"].delay(1)

    assert [row.task_id for row in rows()] == [result.id]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("make", "tasks"),
    [
        (lambda add, total: add.s(1, 2), ["base.add"]),
        (lambda add, total: chain(add.s(1, 2), add.s(3)), ["base.add"]),
        (lambda add, total: add.s(1, 2).set(link=total.s(), link_error=total.s()), ["base.add"]),
    ],
)
def test_canvas_in_a_transaction_becomes_rows_while_broker_and_backend_are_away(
    lost_app: Celery, make: Callable[..., Any], tasks: list[str]
) -> None:
    signature = make(lost_app.tasks["base.add"], lost_app.tasks["base.total"])

    result = signature.apply_async()

    assert [row.task for row in rows()] == tasks
    assert result.id


@pytest.mark.django_db
def test_a_group_in_a_transaction_becomes_rows_while_the_broker_is_away(broker: RedisServer) -> None:
    """It takes a producer from Celery's pool for its jobs, and hands that to each of them.

    It also asks the result backend to tell of its results, whatever its jobs do.
    """
    app = shop.create(NOWHERE, broker.url)
    add = app.tasks["base.add"]

    result = group(add.s(1, 2), add.s(3, 4)).apply_async()

    assert [row.task_id for row in rows()] == [each.id for each in result.results]
    close(app)


@pytest.mark.django_db
def test_a_chord_in_a_transaction_becomes_rows(broker: RedisServer) -> None:
    app = shop.create(NOWHERE, broker.url)
    add, total = app.tasks["base.add"], app.tasks["base.total"]

    chord([add.s(1, 2), add.s(3, 4)])(total.s())

    assert [row.task for row in rows()] == ["base.add", "base.add"]
    bodies = [json.loads(bytes(row.body)) for row in rows()]
    assert all(embed["chord"]["task"] == "base.total" for _, _, embed in bodies)
    close(app)


@pytest.mark.django_db
def test_a_job_in_a_transaction_still_wants_its_result(lost_app: Celery) -> None:
    result = lost_app.tasks["base.add"].delay(1, 2)

    assert (
        json.loads(
            rows()[0].headers if isinstance(rows()[0].headers, str) else json.dumps(rows()[0].headers)
        )["ignore_result"]
        is False
    )
    assert result.ignored is False


@pytest.mark.django_db
@pytest.mark.parametrize("option", ["producer", "connection"])
def test_a_producer_or_a_connection_is_no_way_around_the_outbox(
    app: Celery, broker: RedisServer, option: str
) -> None:
    with app.connection_for_write() as own:
        given: Any = own if option == "connection" else app.amqp.Producer(own)
        app.tasks["base.add"].apply_async((1, 2), **{option: given})

    assert len(rows()) == 1
    assert waiting(broker) == []


def test_a_connection_of_the_callers_own_is_used_outside_a_transaction(
    lost_app: Celery, broker: RedisServer
) -> None:
    elsewhere = Application(broker=broker.url, set_as_current=False)
    with elsewhere.connection_for_write() as own:
        lost_app.tasks["base.add"].apply_async((1, 2), connection=own, ignore_result=True)
    close(elsewhere)

    assert len(waiting(broker)) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("when", ["eta", "countdown"])
def test_a_job_that_starts_later_than_half_the_visibility_timeout_waits_in_the_outbox(
    app: Celery, broker: RedisServer, when: str
) -> None:
    late = {"eta": timezone.now() + timedelta(hours=2), "countdown": 7200}[when]
    soon = {"eta": timezone.now() + timedelta(minutes=2), "countdown": 120}[when]

    held = app.tasks["base.add"].apply_async((1, 2), **{when: late})
    sent = app.tasks["base.add"].apply_async((1, 2), **{when: soon})

    assert [row.task_id for row in rows()] == [held.id]
    assert [message["headers"]["id"] for message in waiting(broker)] == [sent.id]


def test_a_body_above_the_limit_is_refused_with_size_limit_and_advice(
    app: Celery, broker: RedisServer
) -> None:
    with pytest.raises(PayloadTooLarge) as refused:
        app.tasks["base.other"].delay("x" * 262_144)

    assert "262,2" in str(refused.value)
    assert "its limit is 262,144 (payload_limit_bytes)" in str(refused.value)
    assert "pass its id" in str(refused.value)
    assert waiting(broker) == []


def test_the_limit_counts_what_a_message_carries_besides_its_arguments(
    app: Celery, broker: RedisServer
) -> None:
    link = app.tasks["base.other"].s("x" * 262_144)

    with pytest.raises(PayloadTooLarge):
        app.tasks["base.other"].apply_async(("small",), link=link)

    assert waiting(broker) == []


def test_a_body_at_the_limit_is_sent_byte_for_byte_as_celery_would(app: Celery, broker: RedisServer) -> None:
    app.tasks["base.other"].delay("é ☃ \ud83d")
    Celery.send_task(app, "base.other", ("é ☃ \ud83d",), task_type=None)

    second, first = waiting(broker)
    assert first["body"] == second["body"]
    assert first["content-encoding"] == second["content-encoding"]


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_a_compressed_body_is_measured_as_it_is_sent(
    app: Celery, broker: RedisServer, compression: str
) -> None:
    app.tasks["base.other"].apply_async(("x" * 262_144,), compression=compression)

    (message,) = waiting(broker)
    assert "compression" in message["headers"]


def test_row_98_an_argument_that_cannot_be_serialised_is_refused_where_it_is_sent(
    app: Celery, broker: RedisServer
) -> None:
    with pytest.raises(EncodeError):
        app.tasks["base.other"].delay(object())

    assert waiting(broker) == []


@pytest.mark.django_db
def test_row_98_an_argument_that_cannot_be_serialised_makes_no_row(app: Celery) -> None:
    with pytest.raises(EncodeError):
        app.tasks["base.other"].delay(object())

    assert rows() == []


def test_row_101_a_queue_that_is_not_declared_is_refused_with_the_nearest(
    app: Celery, broker: RedisServer
) -> None:
    with pytest.raises(PolicyError) as refused:
        app.tasks["base.other"].apply_async(("x",), queue="critcal")

    assert "Did you mean 'critical'? Queues are celery, critical, news" in str(refused.value)
    with broker.client() as client:
        assert client.keys("*critcal*") == []


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((None,), "{x} is None"),
        (([1],), "{x} is of type list"),
    ],
)
def test_a_key_that_cannot_be_made_is_refused_where_the_job_is_sent(
    app: Celery, args: tuple[Any, ...], why: str
) -> None:
    with pytest.raises(PolicyError) as refused:
        app.tasks["base.keyed"].apply_async(args)

    assert "Cannot enqueue base.keyed: idempotency_key='sum:{x}:{y}': " in str(refused.value)
    assert why in str(refused.value)
    assert "Nothing was sent." in str(refused.value)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"z": 1})])
def test_arguments_that_do_not_fit_are_refused_of_functions_and_of_classes(
    app: Celery, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    class Adds(Job):
        name = "base.adds"

        def run(self, x: int, y: int = 1) -> int:
            return x + y

    for job in (app.tasks["base.keyed"], app.register_task(Adds())):
        with pytest.raises(TypeError, match="Cannot enqueue"):
            job.apply_async(args, kwargs)


def test_a_body_that_hands_its_headers_on_does_not_hand_on_its_key(app: Celery, broker: RedisServer) -> None:
    inherited = {IDEMPOTENCY_HEADER: "of another", SLOT_HEADER: 5.0, "tenant": "north"}

    app.tasks["base.add"].apply_async((1, 2), headers=inherited)
    app.tasks["base.keyed"].apply_async((1, 2), headers=inherited)

    keyed, plain = waiting(broker)
    assert keyed["headers"][IDEMPOTENCY_HEADER] == "sum:1:2"
    assert IDEMPOTENCY_HEADER not in plain["headers"]
    for message in (keyed, plain):
        assert SLOT_HEADER not in message["headers"]
        assert message["headers"]["tenant"] == "north"


class Order(BaseModel):
    """What a job with ``pydantic=True`` takes."""

    id: int


def test_a_key_of_a_pydantic_job_is_made_of_what_the_worker_gets(app: Celery, broker: RedisServer) -> None:
    def ship(order: Order) -> None:
        """Ship it."""

    job: Any = app.task(
        base=Job, shared=False, name="base.ship", pydantic=True, idempotency_key="ship:{order[id]}"
    )(ship)

    job.delay(Order(id=5))
    job.delay({"id": 6})

    assert [each["headers"][IDEMPOTENCY_HEADER] for each in waiting(broker)] == ["ship:6", "ship:5"]


@pytest.mark.django_db
def test_many_jobs_are_one_statement(app: Celery) -> None:
    items: list[Any] = [{"x": 1}, (2,), [3, 4]]

    with CaptureQueriesContext(
        connection,
    ) as queries:
        results = app.tasks["base.keyed"].enqueue_many(items, priority=2)

    inserts = [query for query in queries.captured_queries if query["sql"].startswith("INSERT")]
    assert len(inserts) == 1
    assert [row.task_id for row in rows()] == [result.id for result in results]
    assert [row.idempotency_key for row in rows()] == ["sum:1:1", "sum:2:1", "sum:3:4"]


@pytest.mark.django_db(transaction=True)
def test_many_jobs_leave_at_once_outside_a_transaction(app: Celery, broker: RedisServer) -> None:
    results = app.tasks["base.add"].enqueue_many((x, 1) for x in range(300))

    assert {message["headers"]["id"] for message in waiting(broker)} == {result.id for result in results}


@pytest.mark.django_db(transaction=True)
def test_more_jobs_than_one_statement_holds_are_still_all_or_none(app: Celery) -> None:
    with pytest.raises(PolicyError, match="Item 2500"):
        app.tasks["base.keyed"].enqueue_many([(x if x != 2_500 else None, 1) for x in range(3_000)])
    assert rows() == []

    app.tasks["base.keyed"].enqueue_many([(x, 1) for x in range(3_000)])

    assert OutboxMessage.objects.count() == 3_000


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("item", "error", "why"),
    [
        ({"x": None}, PolicyError, "Item 2 of base.keyed: Cannot enqueue base.keyed: idempotency_key="),
        ({"z": 1}, TypeError, "Item 2 of base.keyed: Cannot enqueue base.keyed with these arguments"),
        ({"x": 1, "y": "x" * 300_000}, PayloadTooLarge, "Item 2 of base.keyed: Cannot enqueue base.keyed"),
        ("text", TypeError, "Item 2 of base.keyed: 'text' is neither a mapping"),
        (7, TypeError, "Item 2 of base.keyed: 7 is neither a mapping"),
    ],
)
def test_one_wrong_job_of_many_sends_none_and_is_named(
    app: Celery, broker: RedisServer, item: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error) as refused:
        app.tasks["base.keyed"].enqueue_many([{"x": 1}, {"x": 2}, item, {"x": 3}])

    assert str(refused.value).startswith(why)
    assert rows() == []
    assert waiting(broker) == []


@pytest.mark.django_db
@pytest.mark.parametrize("option", ["task_id", "producer", "connection", "publisher"])
def test_an_option_that_cannot_be_for_many_is_refused(app: Celery, option: str) -> None:
    with pytest.raises(TypeError, match=f"with {option}"):
        app.tasks["base.keyed"].enqueue_many([(1,)], **{option: "x"})


@pytest.fixture
def second_database(tmp_path: Path, settings, django_db_blocker) -> Iterator[str]:
    """A database "orders" beside the default one."""
    connections.settings["orders"] = {
        **connections.settings["default"],
        "NAME": str(migrated_database(tmp_path / "orders.sqlite3")),
    }
    connections["orders"] = connections.create_connection("orders")
    settings.JOBS_OUTBOX_DATABASES = ("default", "orders")
    with django_db_blocker.unblock():
        yield "orders"
        connections["orders"].close()
    del connections["orders"]
    del connections.settings["orders"]


@pytest.mark.parametrize("how", ["policy", "call", "many"])
def test_the_transaction_of_another_database_decides_when_asked(
    app: Celery, broker: RedisServer, second_database: str, how: str
) -> None:
    policy = {"using": "orders"} if how == "policy" else {}
    job: Any = app.task(base=Job, shared=False, name=f"base.of_{how}", **policy)(_next)

    with transaction.atomic(using="orders"):
        if how == "many":
            job.enqueue_many([(1,)], using="orders")
        else:
            job.apply_async((1,), **({"using": "orders"} if how == "call" else {}))
        assert OutboxMessage.objects.using("orders").count() == 1
        assert waiting(broker) == []

    assert len(waiting(broker)) == 1


@pytest.mark.parametrize("many", [False, True])
def test_a_database_that_no_relay_looks_into_is_refused_where_the_job_is_sent(
    app: Celery, broker: RedisServer, second_database: str, settings, many: bool
) -> None:
    """A job that is held there would wait for ever."""
    settings.JOBS_OUTBOX_DATABASES = ("default",)
    job: Any = app.task(base=Job, shared=False, name=f"base.unrelayed_{many}")(_next)

    send = partial(job.enqueue_many, [(1,)]) if many else partial(job.apply_async, (1,), countdown=24 * 3600)

    with pytest.raises(
        PolicyError, match="the relay does not look into that database, it looks into default"
    ):
        send(using="orders")

    assert OutboxMessage.objects.using("orders").count() == 0
    assert waiting(broker) == []


def test_a_job_of_the_default_database_is_refused_when_no_relay_looks_into_that(
    app: Celery, second_database: str, settings
) -> None:
    settings.JOBS_OUTBOX_DATABASES = ("orders",)

    job: Any = app.task(base=Job, shared=False, name="base.of_default")(_next)

    with pytest.raises(PolicyError, match="using='default'"):
        job.delay(1)


def test_a_broker_that_is_away_is_told_outside_a_transaction(lost_app: Celery) -> None:
    with pytest.raises(OperationalError, match="did not confirm it") as caught:
        lost_app.tasks["base.add"].apply_async((1, 2), ignore_result=True, task_id="one")

    assert isinstance(caught.value, JobsError)
    assert "base.add as job one" in str(caught.value)
    assert "transaction.atomic()" in str(caught.value)
