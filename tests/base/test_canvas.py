"""Canvas of jobs, on a real Redis with a real worker and its result backend."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from celery import chain, chord, group

from jobs.agent.wire import IDEMPOTENCY_HEADER
from tests.base.place import Place
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def fresh() -> int:
    """Return a number that no other test uses as a key."""
    return uuid.uuid4().int % 1_000_000_000


def test_a_chain_hands_results_on(each_pool: Place) -> None:
    add = each_pool.task("add")

    result = chain(add.s(1, 2), add.s(3), add.s(4)).delay()

    assert each_pool.outcome(result) == 10


def test_a_chain_goes_on_after_a_retry(prefork: Place) -> None:
    result = chain(prefork.task("add_flaky").s(1, 2), prefork.task("add").s(3)).delay()

    assert prefork.outcome(result) == 6


def test_a_group_collects_results(prefork: Place) -> None:
    add = prefork.task("add")

    result = group(add.s(1, 1), prefork.task("add_flaky").s(2, 2), add.s(3, 3)).delay()

    wait_until(result.ready, what="the group")
    assert result.get(timeout=5) == [2, 4, 6]


def test_a_chord_calls_its_body_once(prefork: Place) -> None:
    header = [
        prefork.task("add").s(1, 1),
        prefork.task("add_flaky").s(2, 2),
        prefork.task("keyed").s(fresh(), 0),
    ]

    result = chord(header)(prefork.task("total").s())

    prefork.outcome(result)
    assert len(prefork.said("total", of=result.id)) == 1


def test_a_chord_whose_job_dies_fails(prefork: Place) -> None:
    result = chord([prefork.task("add").s(1, 1), prefork.task("fails").s("permanent")])(
        prefork.task("total").s()
    )

    assert "the card has expired" in str(prefork.outcome(result))
    assert prefork.said("total", of=result.id) == []


def test_links_are_called_after_the_last_attempt(prefork: Place) -> None:
    linked = prefork.task("total").si([5]).set(task_id=str(uuid.uuid4()))

    result = prefork.task("add_flaky").apply_async((1, 1), link=linked)

    assert prefork.outcome(result) == 2
    wait_until(lambda: prefork.said("total", of=linked.options["task_id"]), what="the link")


def test_error_links_are_called_once_the_job_is_dead(prefork: Place) -> None:
    result = prefork.task("fails").apply_async(("value",), link_error=prefork.task("note_error").s())

    prefork.death_of(result)
    wait_until(
        lambda: [line for line in prefork.said("error") if line["of"] == result.id], what="the error link"
    )
    prefork.settle()
    assert len([line for line in prefork.said("error") if line["of"] == result.id]) == 1
    assert len(prefork.said("start", of=result.id)) == 3


@pytest.mark.parametrize(("how", "expected"), [("job", 21), ("chain", 21), ("group", [2, 4])])
def test_a_replacement_in_a_transaction_is_sent(prefork: Place, how: str, expected: Any) -> None:
    """Replacing raises, which rolls the transaction back; an outbox row would be gone with it."""
    result = prefork.task("replaces").delay(how)

    assert prefork.outcome(result) == expected


def test_a_replacement_in_a_chain_goes_on_with_the_chain(prefork: Place) -> None:
    result = chain(prefork.task("replaces").si("job"), prefork.task("add").s(100)).delay()

    assert prefork.outcome(result) == 121


def test_stamps_are_kept_by_retries_and_callbacks(prefork: Place) -> None:
    signature = chain(prefork.task("add_flaky").s(1, 2), prefork.task("add").s(3))
    signature.stamp(tenant="north")

    result = signature.delay()

    assert prefork.outcome(result) == 6
    ids = {result.id, result.parent.id}
    stamps = [line["stamps"] for line in prefork.said() if line["id"] in ids]
    assert [each["tenant"] for each in stamps] == ["north"] * 3


def test_a_job_of_a_chain_that_is_done_already_hands_its_result_on(prefork: Place) -> None:
    keyed, x = prefork.task("keyed"), fresh()
    assert prefork.outcome(keyed.delay(x, 1)) == x + 1

    result = chain(keyed.s(x, 1), prefork.task("add").s(1)).delay()

    assert prefork.outcome(result) == x + 2
    assert len([line for line in prefork.said("keyed") if line["x"] == x]) == 1


def test_a_result_that_was_not_kept_stops_a_chain_and_says_why(prefork: Place) -> None:
    unkept, x = prefork.task("unkept"), fresh()
    assert len(prefork.outcome(unkept.delay(x))) == 70_000

    alone = unkept.delay(x)
    chained = chain(unkept.s(x), prefork.task("total").s()).apply_async()

    assert prefork.outcome(alone) is None
    assert "result" in prefork.death_of(chained.parent).error.message


def test_each_job_of_a_group_has_its_own_key(prefork: Place) -> None:
    x = fresh()

    result = group(prefork.task("keyed").s(x, y) for y in (1, 2)).delay()

    wait_until(result.ready, what="the group")
    lines = [line for line in prefork.said("keyed") if line["x"] == x]
    assert sorted(line["headers"][IDEMPOTENCY_HEADER] for line in lines) == [f"sum:{x}:1", f"sum:{x}:2"]


@pytest.mark.parametrize("form", ["set", "set to a list", "link_error"])
def test_row_59_the_error_link_of_a_chords_body_is_called_however_it_was_given(
    prefork: Place, form: str
) -> None:
    """Celery walks over a signature that is no list as over a dict, and calls nobody."""
    noted = prefork.task("note_error").si(f"row 59 {form}")
    body = prefork.task("total").s()
    if form == "set":
        body.set(link_error=noted)
    elif form == "set to a list":
        body.set(link_error=[noted])
    else:
        body.link_error(noted)

    chord([prefork.task("add").s(1, 1), prefork.task("fails").s("permanent")])(body)

    wait_until(
        lambda: [line for line in prefork.said("error") if line["of"] == f"row 59 {form}"],
        what=f"the error link ({prefork.log})",
        seconds=30,
    )
