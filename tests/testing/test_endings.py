"""How jobs end in the process, and what a test expects to die."""

from __future__ import annotations

import re

import pytest

from jobs import PermanentError
from jobs.testing import InProcessBroker
from tests.testing import shop
from tests.testing.outcomes import outcomes

pytestmark = pytest.mark.usefixtures("current_application")


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
