"""What an error of a job means, with real workers on every pool."""

from __future__ import annotations

import pytest

from tests.base.place import Place

pytestmark = pytest.mark.worker


def test_a_job_that_fails_is_tried_as_often_as_it_may_be(each_pool: Place) -> None:
    result = each_pool.task("fails").delay("value")

    record = each_pool.death_of(result)

    assert [line["attempt"] for line in each_pool.said("start", of=result.id)] == [0, 1, 2]
    assert (record.reason, record.error.type) == ("retries_exhausted", "builtins.ValueError")


def test_a_job_that_recovers_ends_well(each_pool: Place) -> None:
    result = each_pool.task("fails").delay("value", 2)

    assert each_pool.outcome(result) == "done"
    assert len(each_pool.said("start", of=result.id)) == 3
    assert each_pool.records_of(result.id) == []


@pytest.mark.parametrize(
    ("kind", "reason", "error"),
    [
        ("permanent", "failed", "jobs.errors.PermanentError"),
        ("refused", "failed", "tests.base.shop.Refused"),
        ("too late", "expired", "tests.base.shop.TooLate"),
        ("invented", "failed", "tests.base.shop.Invented"),
    ],
)
def test_a_permanent_error_is_not_tried_again(each_pool: Place, kind: str, reason: str, error: str) -> None:
    result = each_pool.task("fails").delay(kind)

    record = each_pool.death_of(result)

    assert len(each_pool.said("start", of=result.id)) == 1
    assert (record.reason, record.error.type) == (reason, error)


@pytest.mark.parametrize("kind", ["permanent", "refused"])
def test_a_permanent_error_on_the_last_attempt_is_no_exhausted_retry(each_pool: Place, kind: str) -> None:
    """It comes through the pool's pipe as an exception, and not all exceptions can."""
    result = each_pool.task("fails").apply_async((kind,), retries=2)

    assert each_pool.death_of(result).reason == "failed"


def test_a_job_with_one_attempt_has_failed_and_exhausted_nothing(each_pool: Place) -> None:
    result = each_pool.task("fails_once").delay("value")

    assert each_pool.death_of(result).reason == "failed"
    with each_pool.redis() as client:
        assert client.llen("celery") == 0


def test_a_soft_time_limit_is_tried_again_and_then_timed_out(each_pool: Place) -> None:
    result = each_pool.task("fails").delay("soft")

    record = each_pool.death_of(result)

    assert len(each_pool.said("start", of=result.id)) == 3
    assert record.reason == "timed_out"


@pytest.mark.parametrize("kind", ["after", "http"])
def test_what_the_other_side_asks_to_wait_is_waited(prefork: Place, kind: str) -> None:
    result = prefork.task("fails").delay(kind, 1)

    assert prefork.outcome(result) == "done"
    first, second = prefork.said("start", of=result.id)
    assert second["at"] - first["at"] >= 1


def test_a_retry_after_that_says_nothing_is_not_waited_for(prefork: Place) -> None:
    result = prefork.task("fails").delay("hostile", 1)

    assert prefork.outcome(result) == "done"


def test_row_46_exhausted_however_the_retry_was_asked_for(prefork: Place) -> None:
    by_hand = prefork.task("by_hand").delay("plain", 99)
    raised = prefork.task("fails").delay("value")

    assert prefork.death_of(by_hand).reason == "retries_exhausted"
    assert prefork.death_of(raised).reason == "retries_exhausted"


def test_row_14_arguments_that_do_not_fit_are_not_tried_again_and_say_so(each_pool: Place) -> None:
    result = each_pool.shop.send_task("base.one_argument", (1, 2))

    record = each_pool.death_of(result)

    assert record.reason == "failed"
    assert "too many positional arguments" in record.error.message
    assert "Was its signature changed while the job waited?" in record.error.message


def test_the_frames_of_a_traceback_end_in_the_job(prefork: Place) -> None:
    from jobs.core.fingerprint import application_frames

    record = prefork.death_of(prefork.task("fails").delay("value"))

    frames = application_frames(record.error.traceback)

    assert [frame.function for frame in frames] == ["fails"]
