"""What else happens between a message and the end of its job."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from jobs.agent.wire import IDEMPOTENCY_HEADER
from jobs.base.running import asked_wait
from jobs.errors import TransientError
from tests.base.place import Place
from tests.servers import wait_until

PROGRESS = "SELECT done, total, note FROM jobs_jobprogress WHERE task_id = ?"


def rows(place: Place, query: str, task_id: str) -> list[tuple[Any, ...]]:
    """Ask the worker's database."""
    with sqlite3.connect(place.directory / "db.sqlite3", timeout=30) as connection:
        return connection.execute(query, (task_id,)).fetchall()


@pytest.mark.worker
def test_a_job_that_cannot_be_held_back_goes_back_to_its_queue(own_place: Callable[..., Place]) -> None:
    """Its child has lost the broker, so it cannot send the job again; the worker can give it back."""
    place = own_place()

    result = place.task("cannot_be_held").delay()

    assert place.outcome(result) == "done"
    assert place.records_of(result.id) == []


@pytest.mark.worker
def test_a_retry_that_waits_for_hours_waits_in_the_outbox(prefork: Place) -> None:
    result = prefork.task("much_later").delay()

    wait_until(
        lambda: rows(prefork, "SELECT state FROM jobs_outboxmessage WHERE task_id = ?", result.id),
        what="the row",
    )
    prefork.settle()
    assert result.state == "RETRY"


@pytest.mark.worker
def test_jobs_without_a_key_run_and_are_retried_while_the_database_is_away(
    own_place: Callable[..., Place],
) -> None:
    place = own_place(DATABASE_URL="postgres://nobody@127.0.0.1:1/nothing?connect_timeout=2")

    recovers = place.task("fails").delay("value", 2)
    waits = place.task("much_later").delay()

    assert place.outcome(recovers) == "done"
    wait_until(lambda: waits.state == "RETRY", what=f"the retry ({place.log})")
    assert place.records_of(waits.id) == []


@pytest.mark.worker
def test_progress_is_there_while_a_job_runs_and_gone_when_it_is_done(prefork: Place) -> None:
    result = prefork.task("progresses").delay(0.4, waits=True)

    wait_until(lambda: rows(prefork, PROGRESS, result.id), what="progress")
    with prefork.redis() as client:
        client.set(f"test:go:{result.id}", 1)
    prefork.outcome(result)
    wait_until(lambda: not rows(prefork, PROGRESS, result.id), what="no progress")


@pytest.mark.worker
def test_the_last_progress_of_a_job_that_dies_stays(prefork: Place) -> None:
    result = prefork.task("progresses").apply_async((0.05,), {"fails": True})

    prefork.death_of(result)

    wait_until(lambda: rows(prefork, PROGRESS, result.id) == [(4, 5, "step 4")], what="the last line")


@pytest.mark.worker
@pytest.mark.parametrize("header", ["", 5, None, "x\0", "x" * 256])
def test_a_key_that_cannot_be_one_is_made_anew(prefork: Place, header: Any) -> None:
    x = abs(hash(str(header))) % 1_000_000_000
    sent = prefork.shop.send_task("base.keyed", (x, 1), headers={IDEMPOTENCY_HEADER: header})

    assert prefork.outcome(sent) == x + 1
    again = prefork.task("keyed").delay(x, 1)

    assert prefork.outcome(again) == x + 1
    assert len([line for line in prefork.said("keyed") if line["x"] == x]) == 1


@pytest.mark.worker
def test_the_key_of_the_message_counts_more_than_the_arguments(prefork: Place) -> None:
    first = prefork.shop.send_task("base.keyed", (71, 1), headers={IDEMPOTENCY_HEADER: "kept by a replay"})
    assert prefork.outcome(first) == 72

    second = prefork.shop.send_task("base.keyed", (72, 1), headers={IDEMPOTENCY_HEADER: "kept by a replay"})

    assert prefork.outcome(second) == 72
    assert prefork.said("keyed", of=second.id) == []


@pytest.mark.worker
def test_a_job_whose_key_cannot_be_made_dies_at_once_and_says_why(prefork: Place) -> None:
    sent = prefork.shop.send_task("base.keyed", (None, 1))

    record = prefork.death_of(sent)

    assert record.reason == "failed"
    assert record.error.message == (
        "Cannot run base.keyed: idempotency_key='sum:{x}:{y}': {x} is None; give it a value, or name another parameter."
    )


@pytest.mark.worker
def test_a_retry_by_hand_of_an_atomic_job_leaves_nothing_of_the_first_attempt(prefork: Place) -> None:
    result = prefork.task("atomic_by_hand").delay(81)

    assert prefork.outcome(result) == "81-1"
    assert len(prefork.said("start", of=result.id)) == 2


class Response:
    """An answer of an HTTP library; of requests, one with an error is false."""

    def __init__(self, headers: Any) -> None:
        self.headers = headers

    def __bool__(self) -> bool:
        return False


class HTTPError(Exception):
    def __init__(self, response: Any = None, headers: Any = None) -> None:
        super().__init__("429")
        self.response = response
        if headers is not None:
            self.headers = headers


class Moody(Exception):
    @property
    def response(self) -> Any:
        raise RuntimeError("the response has not been read")


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (ValueError("x"), None),
        (TransientError("x"), None),
        (TransientError("x", retry_after=7), 7),
        (TransientError("x", retry_after=0), 0),
        (TransientError("x", retry_after=-1), None),
        (HTTPError(Response({"Retry-After": "9"})), 9),
        (HTTPError(Response({"retry-after": "9"})), 9),
        (HTTPError(Response({b"retry-after": b"9"})), 9),
        (HTTPError(Response({"Content-Type": "9"})), None),
        (HTTPError(Response(None)), None),
        (HTTPError(), None),
        (HTTPError(headers={"RETRY-AFTER": "3"}), 3),
        (HTTPError(Response({"Retry-After": "soon"}), {"Retry-After": "4"}), 4),
        (HTTPError({"ResponseMetadata": {}}), None),
        (HTTPError(Response("not a mapping")), None),
        (Moody(), None),
    ],
)
def test_what_an_error_asks_to_wait_is_found_where_libraries_put_it(
    error: Exception, seconds: float | None
) -> None:
    assert asked_wait(error) == seconds
