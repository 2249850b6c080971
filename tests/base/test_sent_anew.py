"""Jobs that start anew under the id that they had: none of them is taken for an old copy, and lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.agent.wire import REPLAY_ITEM_HEADER, REPLAY_NUMBER_HEADER, REPLAY_OF_HEADER
from tests.base.place import Place

pytestmark = pytest.mark.worker


def test_a_job_that_replaces_itself_after_a_retry_goes_on(prefork: Place) -> None:
    """What takes its place has its id and its key, and counts attempts from 0 again."""
    result = prefork.task("next_page").delay(1)

    assert prefork.outcome(result) == 2
    assert [(line["page"], line["attempt"]) for line in prefork.said("page", of=result.id)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
    ]


def test_a_dead_job_that_is_sent_anew_under_its_id_runs(prefork: Place) -> None:
    task = prefork.task("works_later")
    prefork.death_of(task.apply_async((7,), task_id="later-7"))
    with prefork.redis() as client:
        client.set("test:works:7", 1)
        client.delete("celery-task-meta-later-7")

    again = task.apply_async((7,), task_id="later-7")

    assert prefork.outcome(again) == "done"
    assert [line["attempt"] for line in prefork.said("start", of="later-7")] == [0, 1, 0]


def test_an_old_copy_of_a_replay_does_not_say_how_its_job_ended(own_place: Callable[..., Place]) -> None:
    """It would resolve the letter, which the next attempt's death then could not open again."""
    place = own_place()
    headers = {REPLAY_OF_HEADER: "0" * 32, REPLAY_ITEM_HEADER: 1, REPLAY_NUMBER_HEADER: 1}

    result = place.task("retries_then_dies").apply_async((48,), {"fails": True}, headers=headers)
    record = place.death_of(result)
    place.settle()

    assert [line["attempt"] for line in place.said("start", of=result.id)] == [0, 1]
    assert (record.reason, record.replay_item) == ("failed", 1)
    assert place.records_of(result.id) == [record]
