"""What a transaction wrote leaves when it commits, only then, and holds up no request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from celery import Celery
from django.db import transaction
from django.test import TestCase
from django.utils import timezone

from jobs.broker.publish import publish as really_publish
from jobs.core.words import OutboxState
from jobs.models import OutboxMessage
from jobs.outbox import collecting, commit
from tests.outbox.enqueued import arrived, enqueue, states

PENDING, PUBLISHED = OutboxState.PENDING, OutboxState.PUBLISHED


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
