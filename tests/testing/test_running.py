"""Jobs that were collected run in the process, under all their policies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery import chain, chord, group
from django.contrib.auth.models import User
from django.db import transaction
from django.test import TestCase

from jobs import PermanentError, TransientError
from jobs.models import IdempotencyRecord, JobProgress, OutboxMessage
from jobs.testing import InProcessBroker, NeverEnding
from tests.testing import shop
from tests.testing.outcomes import outcomes

pytestmark = pytest.mark.usefixtures("current_application")


def test_jobs_run_with_their_children_until_nothing_is_left(office: InProcessBroker, database: str) -> None:
    shop.parent.delay(2)

    ran = outcomes(office)

    assert ran == [("shop.parent", "done"), ("shop.send_receipt", "done"), ("shop.send_receipt", "done")]
    assert shop.effects == [(0, "en"), (1, "en")]
    assert office.run_jobs() == []


def test_two_jobs_of_a_key_run_once_and_give_one_result(office: InProcessBroker, database: str) -> None:
    shop.send_receipt.delay(5)
    shop.send_receipt.delay(5)

    ran = office.run_jobs()

    assert [each.result for each in ran] == ["receipt 5", "receipt 5"]
    assert shop.effects == [(5, "en")]
    assert IdempotencyRecord.objects.get().state == "done"


def test_an_error_is_retried_without_waiting_under_the_same_id_and_key(
    office: InProcessBroker, database: str
) -> None:
    shop.failures[:] = [ConnectionError("away"), TransientError("busy", retry_after=3000)]
    shop.send_receipt.delay(5)

    ran = office.run_jobs()

    assert [each.outcome for each in ran] == ["retried", "retried", "done"]
    assert {(each.job.task_id, each.job.key) for each in ran} == {(ran[0].job.task_id, "receipt:5")}
    assert [each.job.retries for each in ran] == [0, 1, 2]
    office.enqueued.assert_one()
    office.check()


def test_the_last_attempt_that_fails_is_a_dead_letter(office: InProcessBroker, database: str) -> None:
    shop.failures[:] = [ConnectionError("away")] * 3

    with office.expect_dead_letter(shop.flaky, reason="retries_exhausted", error=ConnectionError) as dead:
        shop.flaky.delay()
        office.run_jobs()

    assert len(dead) == 1
    assert len(shop.effects) == 3
    office.check()


def test_a_permanent_error_is_a_dead_letter_at_once(office: InProcessBroker, database: str) -> None:
    shop.failures[:] = [PermanentError("no such order")]

    with office.expect_dead_letter(shop.send_receipt, reason="failed", error="no such order"):
        shop.send_receipt.delay(5)
        office.run_jobs()

    assert len(shop.effects) == 1
    assert IdempotencyRecord.objects.get().state == "free"


def test_what_an_atomic_job_did_is_rolled_back_with_it(office: InProcessBroker, database: str) -> None:
    with office.expect_dead_letter(shop.make_user):
        shop.make_user.delay("ann", fails=True)
        office.run_jobs()
    shop.make_user.delay("ann")
    office.run_jobs()

    assert User.objects.get().username == "ann"


def test_rate_and_concurrency_do_not_hold_up_a_test(office: InProcessBroker, database: str) -> None:
    for _ in range(3):
        shop.slow.delay()

    office.run_jobs()

    assert shop.effects == ["slow"] * 3


def test_progress_is_seen_while_it_runs_and_kept_when_it_dies(office: InProcessBroker, database: str) -> None:
    shop.failures[:] = [PermanentError("broken file")]

    with office.expect_dead_letter(shop.import_rows):
        shop.import_rows.delay(7)
        office.run_jobs()
    assert (JobProgress.objects.get().done, JobProgress.objects.get().total) == (1, 2)

    shop.import_rows.delay(8)
    office.run_jobs()
    assert JobProgress.objects.count() == 1


def test_links_and_chains_go_on_with_the_results(office: InProcessBroker, database: str) -> None:
    chain(shop.add.s(1, 2), shop.add.s(10)).apply_async(link=shop.add.s(100))

    office.run_jobs()

    assert shop.effects == [("add", 1, 2), ("add", 3, 10), ("add", 13, 100)]


def test_an_errback_runs_when_a_job_dies(office: InProcessBroker, database: str) -> None:
    shop.failures[:] = [PermanentError("no")]
    shop.send_receipt.apply_async((5,), link_error=[shop.plain.si("failed")])

    with office.expect_dead_letter(shop.send_receipt):
        office.run_jobs()

    assert ("plain", "failed") in shop.effects


def test_a_chord_gives_its_results_to_its_body(office: InProcessBroker, database: str) -> None:
    result = chord(group(shop.add.s(number, 1) for number in range(3)), shop.plain.s()).apply_async()

    office.run_jobs()

    assert shop.effects[-1] == ("plain", [1, 2, 3])
    assert result.get() == [1, 2, 3]


def test_a_chord_whose_part_dies_does_not_run_its_body(office: InProcessBroker, database: str) -> None:
    shop.failures[:] = [PermanentError("no")]
    chord([shop.add.s(1, 1), shop.send_receipt.s(5)], shop.plain.s()).apply_async()

    with office.expect_dead_letter(shop.send_receipt):
        office.run_jobs()

    assert [effect for effect in shop.effects if effect[0] == "plain"] == []


def test_a_job_that_replaces_itself_goes_on_as_the_other(office: InProcessBroker, db: None) -> None:
    result = shop.replaces.delay()

    office.run_jobs()

    assert result.get() == 42


def test_jobs_run_in_the_order_in_which_they_are_due(office: InProcessBroker, database: str) -> None:
    shop.plain.apply_async(("in two days",), countdown=172_800)
    shop.plain.apply_async(("in a day",), countdown=86_400)
    shop.plain.delay("now")

    office.run_jobs()

    assert [value for _, value in shop.effects] == ["now", "in a day", "in two days"]


def test_a_retry_by_hand_of_a_plain_task_is_counted(office: InProcessBroker, db: None) -> None:
    shop.by_hand.delay()

    with office.expect_dead_letter(shop.by_hand, reason="retries_exhausted", error="not yet"):
        office.run_jobs()

    assert len(shop.effects) == 3


def test_jobs_that_are_left_stay_enqueued(office: InProcessBroker, db: None) -> None:
    shop.app.send_task("billing.charge", (5,))
    shop.plain.delay()

    assert [ran.task for ran in office.run_jobs(leave=["billing.charge"])] == ["shop.plain"]
    office.enqueued.assert_one("billing.charge", args=[5])


def test_on_commit_callbacks_of_a_test_run_once_and_before_the_jobs(
    office: InProcessBroker, db: None
) -> None:
    """Row 93: TestCase never runs on_commit."""
    transaction.on_commit(lambda: shop.plain.delay("from a callback"))

    office.run_jobs()
    office.run_jobs()

    assert shop.effects == [("plain", "from a callback")]


def test_jobs_of_a_transaction_leave_with_its_commit_and_nothing_goes_wrong_quietly(
    office: InProcessBroker, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        shop.send_receipt.delay(5)

    ran = office.run_jobs()

    assert [each.outcome for each in ran] == ["done"]
    assert [row.published_by for row in OutboxMessage.objects.all()] == ["commit"]
    assert [record.message for record in caplog.records if record.name.startswith("jobs.outbox")] == []


def test_a_callback_that_fails_fails_the_test_and_a_robust_one_does_not(
    office: InProcessBroker, db: None
) -> None:
    transaction.on_commit(lambda: 1 // 0, robust=True)
    transaction.on_commit(lambda: 1 // 0)

    with pytest.raises(ZeroDivisionError):
        office.run_jobs()


def test_callbacks_that_a_test_captured_and_ran_are_not_run_again(office: InProcessBroker, db: None) -> None:
    """Row 93: captureOnCommitCallbacks leaves them where they were."""
    with TestCase.captureOnCommitCallbacks(execute=True) as callbacks, transaction.atomic():
        transaction.on_commit(lambda: shop.plain.delay("captured"))
        shop.send_receipt.delay(5)

    office.run_jobs()

    assert len(callbacks) == 2
    assert sorted(map(str, shop.effects)) == ["('plain', 'captured')", "(5, 'en')"]


def test_callbacks_that_were_only_looked_at_still_run(office: InProcessBroker, db: None) -> None:
    with TestCase.captureOnCommitCallbacks():
        transaction.on_commit(lambda: shop.plain.delay("looked at"))

    office.run_jobs()

    assert shop.effects == [("plain", "looked at")]


def test_jobs_cannot_run_inside_a_transaction_of_the_test(office: InProcessBroker, database: str) -> None:
    with transaction.atomic():
        shop.send_receipt.delay(5)
        with pytest.raises(RuntimeError, match=r"Call run_jobs\(\) after the block"):
            office.run_jobs()


def test_jobs_cannot_be_run_from_a_job(office: InProcessBroker, db: None) -> None:
    @shop.app.task(name="shop.recursive")
    def recursive() -> None:
        with pytest.raises(RuntimeError, match="Cannot run jobs inside a job"):
            office.run_jobs()
        shop.effects.append("refused")

    recursive.delay()
    office.run_jobs()

    assert shop.effects == ["refused"]


def test_a_job_that_never_ends_is_stopped(office: InProcessBroker, db: None) -> None:
    shop.forever.delay()

    with pytest.raises(NeverEnding, match=r"50 attempts ran, and these still wait: shop\.forever \(1\)"):
        office.run_jobs(limit=50)


def test_a_job_whose_key_somebody_holds_is_stopped(office: InProcessBroker, db: None) -> None:
    now = datetime.now(UTC)
    IdempotencyRecord.objects.create(
        task="shop.send_receipt",
        key="receipt:5",
        state="running",
        task_id="another",
        lease_expires_at=now + timedelta(hours=1),
        created_at=now,
        started_at=now,
        updated_at=now,
    )
    shop.send_receipt.delay(5)

    with pytest.raises(NeverEnding, match="it was held back 20 times"):
        office.run_jobs()


def test_the_outbox_says_that_what_ran_was_published(office: InProcessBroker, database: str) -> None:
    with transaction.atomic():
        shop.send_receipt.delay(5)
    shop.send_receipt.apply_async((6,), countdown=864_000)

    office.run_jobs()

    assert {message.state for message in OutboxMessage.objects.all()} == {"published"}


def test_rows_that_the_test_did_not_write_are_left_alone(office: InProcessBroker, db: None) -> None:
    with transaction.atomic():
        shop.send_receipt.delay(5)
    office.begin_test()

    office.enqueued.assert_none()
    assert office.run_jobs() == []
    assert OutboxMessage.objects.get().state == "pending"
