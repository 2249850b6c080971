"""Which attempts store RETRY before they are sent again. What that prevents is in test_retries.py."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery._state import _task_stack
from celery.exceptions import Retry

from jobs import Job
from tests.applications import Application
from tests.base.place import close


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Application("states", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    close(app)


def body(self: Job) -> None:
    """Never runs."""


def made(app: Celery, **options: Any) -> Any:
    return app.task(base=Job, bind=True, name="shop.send", lazy=False, **options)(body)


@contextmanager
def running(job: Any, **request: Any) -> Iterator[str]:
    """Have an attempt of a job run, as far as Celery is concerned; its id is of no other."""
    task_id = str(uuid.uuid4())
    job.push_request(
        **{"id": task_id, "args": (), "kwargs": {}, "called_directly": False, "retries": 0, **request}
    )
    _task_stack.push(job)
    try:
        yield task_id
    finally:
        _task_stack.pop()
        job.pop_request()


def stored(app: Celery, task_id: str) -> dict[str, Any]:
    return dict(app.backend.get_task_meta(task_id, cache=False))


def test_a_job_that_sends_itself_again_is_in_retry_and_says_why(app: Celery) -> None:
    job = made(app)

    with running(job) as task_id, pytest.raises(Retry):
        job.retry(exc=ValueError("no such order"), countdown=0)

    found = stored(app, task_id)
    assert (found["status"], repr(found["result"])) == ("RETRY", "ValueError('no such order')")
    assert found["traceback"] == "ValueError: no such order\n"


def test_an_error_may_be_given_by_its_place_or_as_text(app: Celery) -> None:
    job = made(app)

    with running(job) as by_place, pytest.raises(Retry):
        job.retry((), {}, KeyError("x"), countdown=0)
    with running(job) as as_text, pytest.raises(Retry):
        job.retry(exc="busy", countdown=0)

    assert repr(stored(app, by_place)["result"]) == "KeyError('x')"
    assert (stored(app, as_text)["status"], stored(app, as_text)["result"]) == ("RETRY", None)


def test_what_celery_stores_of_the_attempt_afterwards_does_not_count(app: Celery) -> None:
    """The next attempt may have ended meanwhile, and a failure Celery would replace in any case."""
    job = made(app)

    with running(job) as task_id:
        with pytest.raises(Retry):
            job.retry(countdown=0)
        app.backend.mark_as_failure(task_id, ValueError("no such order"))
        job.backend.mark_as_retry(task_id, None, request=job.request)
        assert job.backend.get_state(task_id) == "FAILURE"

    job.backend.mark_as_retry(task_id, None)
    assert stored(app, task_id)["status"] == "RETRY"


def test_an_attempt_that_is_sent_again_twice_says_so_once(app: Celery) -> None:
    job = made(app)

    with running(job) as task_id:
        job.retry(countdown=0, throw=False)
        app.backend.mark_as_failure(task_id, ValueError("no such order"))
        job.retry(countdown=0, throw=False)

    assert stored(app, task_id)["status"] == "FAILURE"


def test_a_job_that_takes_the_place_of_another_or_is_another_is_not_in_retry(app: Celery) -> None:
    job = made(app)

    with running(job) as task_id:
        job.apply_async(task_id=task_id, replaced_task_nesting=1)
        other = job.apply_async()

    assert (stored(app, task_id)["status"], stored(app, other.id)["status"]) == ("PENDING", "PENDING")


def test_a_replacement_that_is_retried_is_in_retry(app: Celery) -> None:
    job = made(app)

    with running(job, replaced_task_nesting=1) as task_id, pytest.raises(Retry):
        job.retry(countdown=0)

    assert stored(app, task_id)["status"] == "RETRY"


def test_the_last_attempt_is_not_in_retry(app: Celery) -> None:
    job = made(app, max_attempts=1)

    with running(job) as task_id, pytest.raises(ValueError, match="no such order"):
        job.retry(exc=ValueError("no such order"), countdown=0)

    assert stored(app, task_id)["status"] == "PENDING"


@pytest.mark.parametrize(
    ("options", "request_says", "state"),
    [
        ({"ignore_result": True}, {}, "PENDING"),
        ({"ignore_result": True}, {"ignore_result": False}, "RETRY"),
        ({}, {"ignore_result": True}, "PENDING"),
        ({"ignore_result": True, "store_errors_even_if_ignored": True}, {}, "RETRY"),
    ],
)
def test_a_job_whose_result_nobody_wants_has_no_state(
    app: Celery, options: dict[str, Any], request_says: dict[str, Any], state: str
) -> None:
    job = made(app, **options)

    with running(job, **request_says) as task_id, pytest.raises(Retry):
        job.retry(countdown=0)

    assert stored(app, task_id)["status"] == state


def test_a_state_that_cannot_be_stored_keeps_no_job_back(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Application("lost", backend="redis://127.0.0.1:1/0", set_as_current=False)
    lost.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0, "timeout": 1}}
    job = made(app, backend=lost.backend)

    with running(job) as task_id:
        with pytest.raises(Retry):
            job.retry(countdown=0)
        # Celery's own would raise, and the attempt would count as failed.
        job.backend.mark_as_retry(task_id, None, request=job.request)

    assert f"Job {task_id} is sent again; that could not be stored as its state" in caplog.text
    close(lost)


def test_a_job_may_have_a_backend_of_its_own(app: Celery, tmp_path: Path) -> None:
    own = Application("own", backend=f"file://{tmp_path}", set_as_current=False)
    job = made(app, backend=own.backend)

    with running(job) as task_id, pytest.raises(Retry):
        job.retry(countdown=0)

    assert job.backend is own.backend
    assert (stored(own, task_id)["status"], stored(app, task_id)["status"]) == ("RETRY", "PENDING")
    job.backend = app.backend
    assert job.backend is app.backend


def test_a_job_that_is_called_keeps_nothing_of_its_retry(app: Celery) -> None:
    job = made(app)

    with pytest.raises(ValueError, match="no such order"):
        job.retry(exc=ValueError("no such order"))

    assert [name for name in vars(job.request) if name.startswith("jobs_")] == []
