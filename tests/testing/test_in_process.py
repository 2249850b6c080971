"""Jobs run in the process of a test, without a broker and under all their policies."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery import _state, chain, chord, group
from django.contrib.auth.models import User
from django.db import transaction
from django.test import TestCase
from kombu.exceptions import EncodeError

from jobs import PermanentError, TransientError
from jobs.errors import PayloadTooLarge
from jobs.models import IdempotencyRecord, JobProgress, OutboxMessage
from jobs.testing import InProcessBroker, NeverEnding, NotRunYet, in_process
from tests.applications import Application
from tests.testing import shop


@pytest.fixture(autouse=True)
def current_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the shop the application of the process, as in a project; other tests have tasks of the same names."""
    monkeypatch.setattr(_state._tls, "current_app", shop.app)


@pytest.fixture
def office() -> Iterator[InProcessBroker]:
    shop.effects.clear()
    shop.failures.clear()
    with in_process() as broker:
        yield broker


@pytest.fixture(params=["in a transaction that never commits", "in a database that commits"])
def database(request: pytest.FixtureRequest) -> str:
    """Both of pytest-django's kinds: the outbox and on_commit differ."""
    if request.param == "in a database that commits":
        request.getfixturevalue("transactional_db")
    else:
        request.getfixturevalue("db")
    return str(request.param)


def outcomes(office: InProcessBroker) -> list[tuple[str, str]]:
    return [(ran.task, ran.outcome) for ran in office.run_jobs()]


# What is collected


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


# What runs


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


# How it ends


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (lambda: shop.app.send_task("shop.typo"), "unregistered"),
        (lambda: shop.rejects.delay(requeue=False), "rejected"),
        (lambda: shop.rejects.delay(requeue=True), "rejected"),
        (lambda: shop.exits.delay(), "worker_lost"),
        (lambda: shop.plain.apply_async(serializer="yaml"), "undecodable"),
        (lambda: shop.plain.apply_async(countdown=60, expires=30), "expired"),
        (lambda: shop.add.apply_async((1, 2), countdown=60, expires=30), "expired"),
        (lambda: shop.app.send_task("shop.add", (1,)), "failed"),
    ],
)
def test_every_ending_that_a_worker_would_record_is_a_dead_letter(
    office: InProcessBroker, db: None, send, reason: str
) -> None:
    send()

    with office.expect_dead_letter(reason=reason):
        office.run_jobs()


def test_a_job_that_asks_to_be_put_back_comes_back_three_times(office: InProcessBroker, db: None) -> None:
    shop.rejects.delay(requeue=True)

    with office.expect_dead_letter(shop.rejects):
        ran = outcomes(office)

    assert [outcome for _, outcome in ran] == ["put back"] * 3 + ["dead"]


def test_an_ignored_job_is_no_dead_letter(office: InProcessBroker, db: None) -> None:
    shop.ignores.delay()

    assert outcomes(office) == [("shop.ignores", "ignored")]
    office.check()


def test_an_unexpected_dead_letter_is_reported_with_everything_once(
    office: InProcessBroker, db: None
) -> None:
    shop.failures[:] = [PermanentError("no such order")]
    shop.flaky.delay(token="s3cret")
    office.run_jobs()

    with pytest.raises(AssertionError) as failure:
        office.check()
    office.check()

    text = str(failure.value)
    assert text.startswith("1 unexpected dead letter:\n\n  shop.flaky died: failed, on attempt 1\n")
    assert "arguments  token=•••" in text
    assert "queue      default" in text
    assert "error      jobs.errors.PermanentError: no such order" in text
    assert "in flaky\n" in text
    assert "raise failures.pop(0)" in text
    assert "celery/app/trace.py" not in text
    assert "s3cret" not in text
    assert text.endswith('expect it: with expect_dead_letter("shop.flaky", reason="failed"): ...')


@pytest.mark.parametrize(
    "wanted",
    [
        {"task": shop.send_receipt},
        {"reason": "timed_out"},
        {"error": "something else"},
        {"error": re.compile("else$")},
        {"error": ValueError},
    ],
)
def test_an_expectation_that_does_not_fit_fails_with_what_died(
    office: InProcessBroker, db: None, wanted
) -> None:
    shop.failures[:] = [PermanentError("no")]
    shop.flaky.delay()

    with (
        pytest.raises(AssertionError, match=r"(?s)none came.*This one did: shop\.flaky died: failed"),
        office.expect_dead_letter(**wanted),
    ):
        office.run_jobs()
    with pytest.raises(AssertionError, match="1 unexpected dead letter"):
        office.check()


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"task": "shop.flaky"},
        {"reason": "failed"},
        {"error": "PermanentError: no"},
        {"error": re.compile("no$")},
        {"error": PermanentError},
    ],
)
def test_an_expectation_that_fits_is_met(office: InProcessBroker, db: None, wanted) -> None:
    shop.failures[:] = [PermanentError("no")]
    shop.flaky.delay()

    with office.expect_dead_letter(**wanted) as dead:
        office.run_jobs()

    assert [each.task for each in dead] == ["shop.flaky"]
    office.check()


def test_an_expectation_without_a_death_asks_whether_the_jobs_were_run(
    office: InProcessBroker, db: None
) -> None:
    with (
        pytest.raises(
            AssertionError, match=r"No job died in this block\. Is run_jobs\(\) called inside it\?"
        ),
        office.expect_dead_letter(shop.flaky),
    ):
        shop.flaky.delay()


def test_an_error_in_the_block_is_not_hidden_by_the_expectation(office: InProcessBroker, db: None) -> None:
    with pytest.raises(ZeroDivisionError), office.expect_dead_letter(shop.flaky):
        raise ZeroDivisionError


# What stands in


def test_waiting_for_a_result_before_the_jobs_ran_fails_instead_of_hanging(
    office: InProcessBroker, transactional_db: None
) -> None:
    result = shop.add.delay(1, 2)

    with pytest.raises(NotRunYet, match=r"Call run_jobs\(\) before get\(\)"):
        result.get()

    office.run_jobs()
    assert result.get() == 3


def test_an_application_that_runs_eagerly_sends_in_a_test(office: InProcessBroker, db: None) -> None:

    eager = Application("eager-shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    eager.conf.task_always_eager = True

    @eager.task(name="eager.add")
    def task(a: int, b: int) -> None:
        shop.effects.append(a + b)

    task.delay(1, 2)
    assert shop.effects == []
    office.run_jobs()

    assert shop.effects == [3]


def test_everything_is_put_back_after_the_block(db: None) -> None:
    from celery import Celery
    from celery.app.amqp import AMQP

    from jobs.idempotency import heartbeat
    from jobs.outbox import commit, producer

    def state() -> list[object]:
        return [
            AMQP.__dict__["producer_pool"],
            AMQP.__dict__["publisher_pool"],
            Celery.__dict__["backend"],
            producer.__dict__["write"],
            commit.__dict__["_send"],
            heartbeat._Process.heart,
            TestCase.__dict__["captureOnCommitCallbacks"].__func__,
        ]

    before = state()
    with in_process() as broker:
        shop.add.delay(1, 2)
        broker.run_jobs()
        assert state() != before

    assert state() == before


def test_a_block_in_a_block_is_the_same(office: InProcessBroker) -> None:
    with in_process() as inner:
        assert inner is office
    assert office.is_installed


def test_an_application_without_a_result_store_sends_no_chord(office: InProcessBroker, db: None) -> None:

    storeless = Application("storeless", broker="redis://127.0.0.1:1/0", set_as_current=False)

    @storeless.task(name="storeless.add")
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(NotImplementedError):
        chord([add.s(1, 1)], add.s(1)).apply_async()
