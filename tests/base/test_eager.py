"""Row 100: jobs that run here and now, by ``apply()`` or ``task_always_eager``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain
from django.db import transaction

from jobs import Job, PermanentError, TransientError
from jobs.errors import HeldBack, PayloadTooLarge, PolicyError
from jobs.models import IdempotencyRecord, OutboxMessage
from tests.applications import Application
from tests.base.place import close

pytestmark = pytest.mark.django_db


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Application("eager", broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    yield app
    close(app)


@pytest.fixture
def runs() -> list[Any]:
    """What the bodies of the test wrote down."""
    return []


def job(app: Celery, function: Any, **options: Any) -> Any:
    return app.task(base=Job, shared=False, lazy=False, bind=True, name="eager.job", **options)(function)


def failing(runs: list[Any], error: Exception) -> Any:
    def body(self: Job, x: int = 0) -> int:
        runs.append(self.request.retries)
        raise error

    return body


def counting(runs: list[Any]) -> Any:
    def body(self: Job, x: int) -> int:
        runs.append(x)
        return x + 1

    return body


def test_row_100_a_key_counts_and_a_second_job_returns_the_first_ones_result(
    app: Celery, runs: list[Any]
) -> None:
    task = job(app, counting(runs), idempotency_key="e:{x}")

    results = [task.delay(1).get(), task.delay(1).get(), task.apply((1,)).get()]

    assert (results, runs) == ([2, 2, 2], [1])
    assert IdempotencyRecord.objects.get().key == "e:1"


def test_row_100_in_a_transaction_it_runs_at_once_and_writes_no_outbox(app: Celery, runs: list[Any]) -> None:
    task = job(app, counting(runs))

    with transaction.atomic():
        task.delay(1)

    assert runs == [1]
    assert not OutboxMessage.objects.exists()


def test_row_100_every_attempt_is_made_at_once_and_the_jobs_own_error_is_raised(
    app: Celery, runs: list[Any]
) -> None:
    task = job(app, failing(runs, ConnectionError("away")), max_attempts=3)

    with pytest.raises(ConnectionError, match="away"):
        task.delay()

    assert runs == [0, 1, 2]


def test_row_100_a_permanent_error_is_raised_after_one_attempt(app: Celery, runs: list[Any]) -> None:
    task = job(app, failing(runs, PermanentError("no")))

    with pytest.raises(PermanentError, match="no"):
        task.delay()

    assert runs == [0]


def test_the_log_has_a_permanent_error_in_one_line(
    app: Celery, runs: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is an answer of the job; Celery would call it unexpected and add the traceback, as for a bug."""
    task = job(app, failing(runs, PermanentError("no such order")))

    with caplog.at_level("INFO", logger="celery.app.trace"):
        task.apply(throw=False)

    lines = [
        (record.levelname, record.exc_info) for record in caplog.records if "no such order" in record.message
    ]
    assert lines == [("INFO", None)]


def test_without_propagation_the_result_says_how_it_ended(app: Celery, runs: list[Any]) -> None:
    task = job(app, failing(runs, TransientError("busy", retry_after=3600)), max_attempts=2)

    result = task.apply(throw=False)

    assert (result.state, runs) == ("FAILURE", [0, 1])
    assert isinstance(result.result, TransientError)


def test_what_production_would_refuse_is_refused(app: Celery, runs: list[Any]) -> None:
    task = job(app, counting(runs), idempotency_key="e:{x}", payload_limit_bytes=1_000)

    with pytest.raises(PayloadTooLarge):
        task.delay("x" * 1_000)
    with pytest.raises(PolicyError, match="is None"):
        task.delay(None)
    with pytest.raises(TypeError, match="Cannot enqueue"):
        task.delay(1, 2)
    assert runs == []


def test_rate_and_concurrency_do_not_count(app: Celery, runs: list[Any]) -> None:
    task = job(app, counting(runs), rate="1/h", concurrency=1)

    task.delay(1)
    task.delay(2)

    assert runs == [1, 2]


def test_many_jobs_run_one_after_the_other(app: Celery, runs: list[Any]) -> None:
    results = job(app, counting(runs)).enqueue_many([(1,), {"x": 2}])

    assert [result.get() for result in results] == [2, 3]


def test_a_chain_hands_results_on(app: Celery, runs: list[Any]) -> None:
    task = job(app, counting(runs))

    assert chain(task.s(1), task.s(), task.s()).delay().get() == 4


def test_a_key_that_runs_elsewhere_cannot_be_waited_for_and_says_so(app: Celery, runs: list[Any]) -> None:
    def body(self: Job, x: int) -> int:
        runs.append(x)
        return int(self.app.tasks["eager.job"].delay(x).get(disable_sync_subtasks=False))

    task = job(app, body, idempotency_key="e:{x}")

    with pytest.raises(HeldBack, match="runs the same idempotency key"):
        task.apply((1,), throw=True)
    assert runs == [1]


def test_retry_by_hand_runs_again(app: Celery, runs: list[Any]) -> None:
    def body(self: Job, x: int) -> str:
        runs.append(self.request.retries)
        if self.request.retries < 2:
            raise self.retry(countdown=3600)
        return "done"

    assert job(app, body).delay(1).get() == "done"
    assert runs == [0, 1, 2]


def test_progress_of_a_function_call_is_nowhere_written(app: Celery) -> None:
    def body(self: Job) -> str:
        self.progress(1, 2)
        return "done"

    assert job(app, body)() == "done"
