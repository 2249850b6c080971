"""A message that went through the outbox is the one that Celery would have sent by itself."""

from __future__ import annotations

import base64
import json
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import signals
from django.db import transaction
from django.utils import timezone
from kombu import Exchange, Queue

from jobs.agent.wire import IDEMPOTENCY_HEADER, PUBLICATION_HEADER, PUBLISHED_AT_HEADER
from jobs.core.words import OutboxState
from jobs.errors import OutboxRefused, PayloadTooLarge
from jobs.models import OutboxMessage
from jobs.outbox import OutboxProducer, collecting, is_open, must_hold, relay, rows
from tests.outbox.shop import create, payloads

OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": 6},
    {"countdown": 30},
    {"expires": 120},
    {"expires": datetime(2099, 1, 1, tzinfo=UTC), "priority": 3},
    {"headers": {"tenant": "blue", "day": datetime(2026, 11, 12, tzinfo=UTC), "id2": uuid.UUID(int=3)}},
    {"compression": "bzip2"},
    {"serializer": "yaml"},
    {"delivery_mode": "transient"},
    {"reply_to": "somewhere", "correlation_id_2": "x"},
    {"time_limit": 30, "soft_time_limit": 20, "shadow": "nice name"},
    {"ignore_result": True, "stamped_headers": ["monitor"], "monitor": "m-1"},
    {"routing_key": "celery", "exchange": ""},
]


def comparable(payload: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what differs between any two publications."""
    headers = {
        k: v for k, v in payload["headers"].items() if k not in (PUBLICATION_HEADER, PUBLISHED_AT_HEADER)
    }
    properties = {k: v for k, v in payload["properties"].items() if k != "delivery_tag"}
    return {**payload, "headers": headers, "properties": properties}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_a_message_is_the_one_that_celery_would_have_sent(shop, broker, options, time_machine) -> None:
    time_machine.move_to(timezone.now(), tick=False)
    add = shop.tasks["outbox.add"]
    kwargs = {"second": "grün"}

    add.apply_async((1,), kwargs, task_id="one", **options)
    with transaction.atomic():
        add.apply_async((1,), kwargs, task_id="one", producer=OutboxProducer(), **options)

    with broker.client() as client:
        queues = [key.decode() for key in client.keys("celery*")]
        direct, ours = (comparable(each) for queue in queues for each in payloads(client, queue))
    assert ours == direct


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("protocol", [1, 2])
def test_both_protocols_of_celery_leave_whole(shop, broker, protocol) -> None:
    shop.conf.task_protocol = protocol
    add = shop.tasks["outbox.add"]

    with transaction.atomic():
        add.apply_async((1, 2), task_id="one", countdown=20, expires=500, producer=OutboxProducer())

    row = OutboxMessage.objects.get()
    assert (row.task, row.task_id, row.state) == ("outbox.add", "one", OutboxState.PUBLISHED)
    assert row.eta is not None
    assert row.expires_at is not None
    assert row.eta < row.expires_at
    with broker.client() as client:
        (payload,) = payloads(client)
    body = json.loads(base64.b64decode(payload["body"]))
    assert (body["args"] if protocol == 1 else body[0]) == [1, 2]


@pytest.mark.django_db(transaction=True)
def test_the_time_of_publication_is_that_of_the_real_one(shop, broker) -> None:
    add = shop.tasks["outbox.add"]

    with transaction.atomic():
        add.apply_async((1, 2), producer=OutboxProducer())
        committed_at = timezone.now().timestamp()

    with broker.client() as client:
        (payload,) = payloads(client)
    assert payload["headers"][PUBLISHED_AT_HEADER] >= committed_at
    row = OutboxMessage.objects.get()
    assert row.headers[PUBLICATION_HEADER] == payload["headers"][PUBLICATION_HEADER]


@pytest.mark.django_db(transaction=True)
def test_the_signals_of_a_publication_come_once_and_can_add_headers(shop, broker) -> None:
    seen: list[str] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["trace"] = "t-1"
        seen.append("before")

    def after(**_: Any) -> None:
        seen.append("after")

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        with transaction.atomic():
            shop.tasks["outbox.add"].apply_async((1, 2), producer=OutboxProducer())
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)

    with broker.client() as client:
        (payload,) = payloads(client)
    assert payload["headers"]["trace"] == "t-1"
    assert seen == ["before", "after"]


@pytest.mark.django_db(transaction=True)
def test_a_named_exchange_on_redis_goes_to_the_queues_that_are_bound_to_it(shop, broker) -> None:
    exchange = Exchange("shop.events", type="topic")
    queues = [Queue("mails", exchange, routing_key="order.#"), Queue("stock", exchange, routing_key="#.paid")]
    add = shop.tasks["outbox.add"]

    with transaction.atomic():
        for number, key in enumerate(("order.paid", "order.new", "order.paid")):
            add.apply_async(
                (number, 2), exchange=exchange, routing_key=key, declare=queues, producer=OutboxProducer()
            )

    with broker.client() as client:
        mails, stock = payloads(client, "mails"), payloads(client, "stock")
    assert [json.loads(base64.b64decode(each["body"]))[0][0] for each in mails] == [0, 1, 2]
    assert [json.loads(base64.b64decode(each["body"]))[0][0] for each in stock] == [0, 2]
    assert stock[0]["properties"]["delivery_info"] == {"exchange": "shop.events", "routing_key": "order.paid"}


@pytest.mark.django_db(transaction=True)
def test_celerys_event_of_a_sent_job_is_no_job(shop, broker) -> None:
    shop.conf.task_send_sent_event = True

    with transaction.atomic():
        shop.tasks["outbox.add"].apply_async((1, 2), producer=OutboxProducer())

    assert OutboxMessage.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_enqueueing_with_any_option_talks_to_no_broker(settings, scheme) -> None:
    # Addresses of documentation (RFC 5737): a connection would hang.
    settings.BROKER_URL = f"{scheme}://192.0.2.1//"
    shop = create(settings.BROKER_URL)
    add = shop.tasks["outbox.add"]

    add.apply_async((1, 2), producer=OutboxProducer(), countdown=30, priority=3, expires=60)

    assert OutboxMessage.objects.get().state == OutboxState.PENDING


@pytest.mark.django_db
def test_a_body_above_the_limit_is_refused_and_writes_nothing(shop) -> None:
    with pytest.raises(PayloadTooLarge, match="Cannot enqueue outbox"):
        shop.tasks["outbox.add"].apply_async(("x" * 100, 2), producer=OutboxProducer(payload_limit_bytes=64))

    assert OutboxMessage.objects.count() == 0


@pytest.mark.django_db
def test_row_98_a_header_without_a_form_is_refused_where_it_is_enqueued(shop) -> None:
    with pytest.raises(Exception, match="a header has no form in JSON"):
        shop.tasks["outbox.add"].apply_async((1, 2), headers={"x": object()}, producer=OutboxProducer())


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "q" * 256}, "its queue 'qqq"),
        ({"queue": "a\x00b"}, r"its queue 'a\\x00b' is longer than 255 characters or has control characters"),
        ({"priority": "high"}, "its priority is 'high'"),
    ],
)
def test_what_a_row_cannot_keep_is_refused_with_what_to_do(shop, options, said) -> None:
    with pytest.raises(OutboxRefused, match=said):
        shop.tasks["outbox.add"].apply_async((1, 2), producer=OutboxProducer(), **options)


@pytest.mark.django_db
def test_the_idempotency_key_is_that_of_the_header(shop) -> None:
    shop.tasks["outbox.add"].apply_async(
        (1, 2), headers={IDEMPOTENCY_HEADER: "receipt:5"}, producer=OutboxProducer()
    )

    assert OutboxMessage.objects.get().idempotency_key == "receipt:5"


@pytest.mark.django_db
def test_the_producer_of_a_reply_queue_is_refused_with_what_to_do() -> None:
    with pytest.raises(OutboxRefused, match="Use a result backend other than rpc://"):
        _ = OutboxProducer().channel


@pytest.mark.django_db
def test_collecting_writes_all_by_one_statement_or_nothing(shop, django_assert_num_queries) -> None:
    add = shop.tasks["outbox.add"]

    with django_assert_num_queries(1), collecting():
        for number in range(20):
            with collecting():
                add.apply_async((number, 1), producer=OutboxProducer())

    assert OutboxMessage.objects.count() == 20
    with suppress(ZeroDivisionError), collecting():
        add.apply_async((1, 1), producer=OutboxProducer())
        raise ZeroDivisionError
    assert OutboxMessage.objects.count() == 20


@pytest.mark.django_db(transaction=True)
def test_a_transaction_is_open_in_an_atomic_block_and_without_autocommit() -> None:
    before = is_open()
    with transaction.atomic():
        inside = is_open()
    transaction.set_autocommit(False)
    try:
        manual = is_open()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)

    assert (before, inside, manual) == (False, True, True)


NOW = datetime(2026, 11, 12, 3, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("url", "options", "seconds", "is_held"),
    [
        ("redis://h", {}, 1800, False),
        ("redis://h", {}, 1801, True),
        ("rediss://h", {"visibility_timeout": 7200}, 3600, False),
        ("sentinel://h", {"visibility_timeout": 7200}, 3601, True),
        ("amqp://h", {}, 900, False),
        ("amqp://h", {}, 901, True),
        ("memory://", {}, 10**6, False),
    ],
)
def test_rows_64_and_78_a_job_further_away_than_half_the_timeout_is_held(
    settings, url, options, seconds, is_held
) -> None:
    settings.BROKER_URL, settings.BROKER_TRANSPORT_OPTIONS = url, options

    assert must_hold(eta=None, countdown=seconds, now=NOW) is is_held
    assert must_hold(eta=NOW + timedelta(seconds=seconds), countdown=None, now=NOW) is is_held
    assert must_hold(eta=None, countdown=None, now=NOW) is False


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_held_stays_when_its_transaction_commits(shop, broker) -> None:
    with transaction.atomic():
        shop.tasks["outbox.add"].apply_async((1, 2), countdown=7200, producer=OutboxProducer())

    row = OutboxMessage.objects.get()
    assert (row.state, row.claim, row.published_by) == (OutboxState.PENDING, None, "")
    assert row.eta is not None
    assert row.available_at == row.eta - timedelta(seconds=5)
    with broker.client() as client:
        assert client.llen("celery") == 0


@pytest.mark.parametrize(("seconds_left", "digits"), [(100, "1100100"), (0, "1"), (-50, "1")])
def test_a_delay_that_rabbitmq_keeps_is_counted_from_the_publication(seconds_left, digits) -> None:
    prefix = ".".join("0" * 28)

    row = relay.Row(
        id=1,
        body=b"[]",
        content_type="application/json",
        content_encoding="utf-8",
        headers="{}",
        properties='{"delivery_mode": 2}',
        queue="",
        priority=0,
        exchange="celery_delayed_27",
        routing_key=f"{prefix}.orders",
        declare="[]",
        eta=NOW + timedelta(seconds=seconds_left),
        expires_at=None,
        claim=None,
        published_by="",
        available_at=NOW,
    )

    message = rows.outgoing(row, now=NOW)

    assert message.routing_key == ".".join(digits.rjust(28, "0")) + ".orders"


@pytest.mark.django_db
def test_a_job_that_rabbitmq_keeps_itself_is_not_held(settings) -> None:
    settings.BROKER_URL = "amqp://192.0.2.1//"
    shop = create(settings.BROKER_URL)
    shop.conf.task_default_queue_type = "quorum"
    shop.conf.task_queues = [
        Queue(
            "celery",
            Exchange("celery", type="topic"),
            routing_key="celery",
            queue_arguments={"x-queue-type": "quorum"},
        )
    ]

    shop.tasks["outbox.add"].apply_async((1, 2), countdown=7200, producer=OutboxProducer())

    row = OutboxMessage.objects.get()
    assert (row.exchange, row.claim is not None) == ("celery_delayed_27", True)


@pytest.mark.django_db
def test_a_message_that_is_no_job_is_kept_as_it_is() -> None:
    """kombu's own way of calling, with what Celery never gives."""
    OutboxProducer().publish(
        {"type": "task-sent", "task": "x"},
        routing_key="audit",
        serializer="json",
        expiration=60,
        reply_to=Queue("answers"),
        delivery_mode=1,
        headers={"eta": "tomorrow"},
        exchange=Exchange("log", type="topic", delivery_mode="transient"),
    )

    row = OutboxMessage.objects.get()
    assert (row.exchange, row.routing_key, row.queue) == ("log", "audit", "")
    assert row.properties == {"reply_to": "answers", "delivery_mode": 1}
    assert row.eta is None
    assert row.expires_at is not None
    assert timedelta(seconds=50) < row.expires_at - row.created_at <= timedelta(seconds=60)


def test_a_name_that_the_package_has_not_is_refused_as_python_does() -> None:
    from jobs import outbox

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = outbox.nothing
