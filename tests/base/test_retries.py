"""``self.retry()`` by hand, retries in transactions, and copies that come twice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.agent.wire import IDEMPOTENCY_HEADER
from tests.agent.fleet import DEAD_BACKEND
from tests.base.place import Place
from tests.servers import wait_until

pytestmark = pytest.mark.worker


@pytest.mark.parametrize("how", ["plain", "countdown", "in a block"])
def test_a_retry_by_hand_runs_the_job_again(each_pool: Place, how: str) -> None:
    result = each_pool.task("by_hand").delay(how)

    assert each_pool.outcome(result) == "done"
    assert [line["attempt"] for line in each_pool.said("start", of=result.id)] == [0, 1]


def test_the_state_of_an_attempt_never_replaces_the_result_of_the_next(
    own_place: Callable[..., Place],
) -> None:
    """A group or a chord of such a job never ended. Celery stores RETRY after it has sent the retry."""
    place = own_place(LATE_RETRIES="yes")
    ways = ("plain", "countdown", "in a block", "swallowed", "swallowed, then fails")
    jobs = [("by_hand", way) for way in ways] + [("fails", "value", 1), ("held_once",)]

    states = {}
    for name, *args in jobs:
        # One at a time: its second attempt is to find a free process.
        result = place.task(name).delay(*args)
        assert place.outcome(result) == "done"
        place.settle()  # until each attempt has stored what it stores
        assert len(place.said("start", of=result.id)) == 2
        states[name, *args] = place.shop.AsyncResult(result.id).state

    assert states == dict.fromkeys(states, "SUCCESS")


def test_a_job_that_waits_for_its_retry_says_so_and_why(prefork: Place) -> None:
    result = prefork.task("much_later").delay()

    wait_until(lambda: result.state == "RETRY", what=f"the state ({prefork.log})")
    assert repr(result.result) == "TransientError('closed for the night')"
    assert "in much_later" in result.traceback


def test_a_job_is_retried_while_its_state_cannot_be_stored(own_place: Callable[..., Place]) -> None:
    """Celery would count the attempt as failed, and the agent with it, with its retry on the way."""
    place = own_place(RESULT_BACKEND=DEAD_BACKEND)

    result = place.task("by_hand").delay("plain")
    record = place.death_of(result)
    place.settle()

    assert [line["attempt"] for line in place.said("start", of=result.id)] == [0, 1]
    assert record.reason == "result_not_stored"
    assert len(place.records_of(result.id)) == 1


def test_what_a_job_sent_in_a_block_that_its_retry_rolls_back_is_not_sent(prefork: Place) -> None:
    result = prefork.task("by_hand").delay("autocommit after")

    assert prefork.outcome(result) == "done"
    prefork.settle()
    assert [line for line in prefork.said("other") if line["of"] == result.id] == []


@pytest.mark.parametrize(("ending", "count"), [("commit", 1), ("error", 0)])
def test_row_87_a_job_sent_in_a_transaction_leaves_when_it_commits(
    prefork: Place, ending: str, count: int
) -> None:
    result = prefork.task("enqueues").delay(ending)

    prefork.outcome(result)
    prefork.settle()
    wait_until(
        lambda: len([line for line in prefork.said("other") if line["of"] == result.id]) == count,
        what="the other job",
    )


def test_a_retry_by_hand_may_say_that_there_is_none_left(prefork: Place) -> None:
    result = prefork.task("by_hand").delay("only one", 99)

    record = prefork.death_of(result)

    assert len(prefork.said("start", of=result.id)) == 1
    assert record.error.message == "enough"


def test_row_49_a_job_that_swallows_its_own_retry_is_retried_and_not_done(prefork: Place) -> None:
    result = prefork.task("by_hand").delay("swallowed")

    assert prefork.outcome(result) == "done"
    prefork.settle()
    assert [line["what"] for line in prefork.said(of=result.id)] == ["start", "went on", "start"]


def test_row_49_a_job_that_swallows_its_own_retry_and_fails_is_retried_once(prefork: Place) -> None:
    result = prefork.task("by_hand").delay("swallowed, then fails")

    assert prefork.outcome(result) == "done"
    prefork.settle()
    assert [line["attempt"] for line in prefork.said("start", of=result.id)] == [0, 1]


def test_a_retry_that_is_not_thrown_lets_this_attempt_end(prefork: Place) -> None:
    result = prefork.task("by_hand").delay("not thrown")

    prefork.outcome(result)
    wait_until(lambda: len(prefork.said("start", of=result.id)) == 2, what="the second attempt")
    assert prefork.records_of(result.id) == []


def test_row_51_a_retry_keeps_queue_priority_and_key(prefork: Place) -> None:
    result = prefork.task("keyed_flaky").apply_async((51,), queue="critical", priority=6)

    assert prefork.outcome(result) == 51
    first, second = prefork.said("start", of=result.id)
    assert second["delivery"]["routing_key"] == first["delivery"]["routing_key"] == "critical"
    assert second["delivery"]["priority"] == first["delivery"]["priority"] == 6
    assert second["headers"][IDEMPOTENCY_HEADER] == first["headers"][IDEMPOTENCY_HEADER] == "f:51"


def test_row_51_a_retry_keeps_a_topic_exchange(prefork: Place) -> None:
    result = prefork.task("fails").apply_async(("value", 1), queue="news", routing_key="news.sport")

    assert prefork.outcome(result) == "done"
    first, second = prefork.said("start", of=result.id)
    for line in (first, second):
        assert (line["delivery"]["exchange"], line["delivery"]["routing_key"]) == ("topics", "news.sport")


def test_row_55_a_retry_does_not_look_redelivered(prefork: Place) -> None:
    result = prefork.task("fails").apply_async(("value", 1), headers={"redelivered": True, "mine": "kept"})

    assert prefork.outcome(result) == "done"
    first, second = prefork.said("start", of=result.id)
    assert first["headers"]["redelivered"] is True
    assert "redelivered" not in second["headers"]
    assert second["headers"]["mine"] == "kept"


def test_row_47_the_original_that_comes_back_after_its_retry_was_sent_does_not_run(
    own_place: Callable[..., Place],
) -> None:
    """The child published its retry and died before the parent acknowledged the original."""
    place = own_place()

    result = place.task("retries_then_dies").delay(47)

    assert place.outcome(result) == "second"
    place.settle()
    assert [line["attempt"] for line in place.said("start", of=result.id)] == [0, 1]


def test_row_48_a_retry_that_cannot_be_sent_is_a_dead_letter_with_the_first_error(
    own_place: Callable[..., Place],
) -> None:
    place = own_place()

    result = place.task("loses_broker").delay()
    record = place.death_of(result)

    assert record.reason == "retry_not_sent"
    assert (record.error.type, record.error.message) == ("builtins.LookupError", "the first error")


def test_row_54_a_redelivery_after_the_end_runs_nothing_and_returns_the_result(prefork: Place) -> None:
    task = prefork.task("keyed")
    result = task.delay(5, 4)
    assert prefork.outcome(result) == 9

    again = task.apply_async((5, 4), task_id=result.id)
    other = task.apply_async((5, 4))

    assert prefork.outcome(other) == 9
    prefork.settle()
    assert len([line for line in prefork.said("keyed") if line["x"] == 5]) == 1
    assert again.id == result.id


def test_a_copy_of_a_job_that_runs_comes_back_and_does_not_run_beside_it(prefork: Place) -> None:
    task = prefork.task("slow")

    first = task.delay(1, 2.5)
    wait_until(lambda: prefork.said("start", of=first.id), what="the first to start")
    second = task.delay(1, 2.5)

    assert prefork.outcome(first) == prefork.outcome(second) == "slow"
    assert prefork.said(of=second.id) == []


def test_a_body_that_calls_its_own_job_runs_the_body(each_pool: Place) -> None:
    result = each_pool.task("recursive").delay(3)

    assert each_pool.outcome(result) == 3
    assert len(each_pool.said("depth", of=result.id)) == 4
