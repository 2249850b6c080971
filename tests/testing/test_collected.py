"""Jobs that a test sends are collected, as a worker would read them."""

from __future__ import annotations

import contextlib
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from kombu.exceptions import EncodeError

from jobs.errors import PayloadTooLarge
from jobs.testing import InProcessBroker
from tests.testing import shop

pytestmark = pytest.mark.usefixtures("current_application")


def test_a_job_sent_outside_a_transaction_is_collected_and_needs_no_broker(
    office: InProcessBroker, transactional_db: None
) -> None:
    result = shop.send_receipt.delay(5)

    job = office.enqueued.assert_one(
        shop.send_receipt,
        args=[5],
        kwargs={},
        arguments={"order_id": 5, "language": "en"},
        queue="critical",
        key="receipt:5",
    )
    assert job.task_id == result.id


def test_a_job_sent_in_a_transaction_is_collected_once_before_and_after_its_commit(
    office: InProcessBroker, database: str
) -> None:
    with transaction.atomic():
        shop.send_receipt.delay(5)
        office.enqueued.assert_one(shop.send_receipt, key="receipt:5", queue="critical")

    office.enqueued.assert_one(shop.send_receipt, key="receipt:5", queue="critical")


def test_a_job_of_a_transaction_that_rolled_back_is_not_enqueued(
    office: InProcessBroker, database: str
) -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        shop.send_receipt.delay(5)
        raise ZeroDivisionError

    office.enqueued.assert_none()
    assert office.run_jobs() == []


def test_many_jobs_at_once_are_collected_in_their_order(office: InProcessBroker, database: str) -> None:
    shop.add.enqueue_many([(1, 2), {"a": 3, "b": 4}])

    assert [job.arguments for job in office.enqueued.of(shop.add)] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def test_a_plain_task_is_collected_as_well(office: InProcessBroker, db: None) -> None:
    shop.plain.delay(value=1)

    office.enqueued.assert_one("shop.plain", kwargs={"value": 1}, args=[], queue="default", key="")


def test_arguments_are_those_that_a_worker_would_read(office: InProcessBroker, db: None) -> None:
    number = uuid.uuid4()

    shop.plain.delay(value=(1, {2: number}))

    office.enqueued.assert_one(shop.plain, kwargs={"value": [1, {"2": number}]})


def test_an_argument_that_json_cannot_carry_fails_where_it_is_sent(office: InProcessBroker, db: None) -> None:
    with pytest.raises(EncodeError):
        shop.add.delay(object(), 1)
    with pytest.raises(EncodeError):
        shop.plain.delay(object())

    office.enqueued.assert_none()


def test_arguments_above_the_limit_are_refused_as_in_production(
    office: InProcessBroker, database: str
) -> None:
    with pytest.raises(PayloadTooLarge, match="payload_limit_bytes"):
        shop.flaky.delay("x" * 300_000)

    office.enqueued.assert_none()


def test_an_eta_is_compared_with_two_seconds_of_room(office: InProcessBroker, database: str) -> None:
    shop.send_receipt.apply_async((5,), countdown=7200)
    due = datetime.now(UTC) + timedelta(hours=2)

    office.enqueued.assert_one(shop.send_receipt, eta=due)
    office.enqueued.assert_none(shop.send_receipt, eta=due + timedelta(minutes=1))
    office.enqueued.assert_none(shop.send_receipt, eta=None)


def test_a_failed_assertion_shows_every_job_and_what_does_not_match(
    office: InProcessBroker, db: None
) -> None:
    shop.send_receipt.delay(5)
    shop.plain.delay(value="x")

    with pytest.raises(AssertionError) as failure:
        office.enqueued.assert_one(shop.send_receipt, arguments={"order_id": 6, "no": 1}, queue="low")

    assert str(failure.value).splitlines() == [
        "Expected 1 job shop.send_receipt arguments={'order_id': 6, 'no': 1} queue='low'; 0 of 2 enqueued match.",
        "  1. shop.plain(value='x')  queue=default",
        "       another task",
        "  2. shop.send_receipt(order_id=5, language='en')  queue=critical  key=receipt:5",
        "       argument order_id is 5, not 6",
        "       no argument no",
        "       queue is 'critical', not 'low'",
    ]


def test_a_failed_assertion_masks_what_the_console_masks(office: InProcessBroker, db: None) -> None:
    shop.flaky.delay(token="s3cret")

    with pytest.raises(AssertionError) as failure:
        office.enqueued.assert_none()

    assert "s3cret" not in str(failure.value)
    assert "shop.flaky(token=•••)" in str(failure.value)


def test_what_is_no_task_is_refused_by_assertions(office: InProcessBroker) -> None:
    with pytest.raises(TypeError, match="Pass the task itself, or its name"):
        office.enqueued.assert_none(42)
