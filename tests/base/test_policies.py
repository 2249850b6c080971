"""Policies: where they come from, and what a wrong one is told, at import or when the application starts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, shared_task
from kombu import Exchange, Queue
from pydantic import BaseModel

from jobs import Job
from jobs.core.policies import POLICIES
from jobs.errors import PolicyError
from tests.applications import Application
from tests.base.place import close


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Application("policies", broker="memory://", set_as_current=False)
    app.conf.task_queues = [
        Queue(name, Exchange(name), routing_key=name) for name in ("critical", "default", "low", "long")
    ]
    app.conf.task_default_queue = "default"
    yield app
    close(app)


def body(order_id: int, note: str = "") -> int:
    """Do it."""
    return order_id


def made(app: Celery, function: Callable[..., Any] = body, **options: Any) -> Any:
    """Return a job that the decorator made."""
    return app.task(base=Job, shared=False, name="shop.send_receipt", lazy=False, **options)(function)


def test_the_attributes_of_job_are_the_defaults_of_the_table() -> None:
    for name, policy in POLICIES.items():
        assert getattr(Job, name) == policy.default, name


def test_every_policy_can_be_set_in_the_decorator(app: Celery) -> None:
    given = {
        "idempotency_key": "receipt:{order_id}",
        "atomic": True,
        "using": "default",
        "idempotency_lease_seconds": 30,
        "max_attempts": 7,
        "backoff_base_seconds": 2,
        "backoff_factor": 2.5,
        "backoff_cap_seconds": 60,
        "payload_limit_bytes": 1_000,
        "soft_time_limit": 5,
        "time_limit": 8,
        "rate": "10/30s",
        "concurrency": 3,
        "limit_key": "{order_id}",
        "queue": "critical",
    }
    assert given.keys() == POLICIES.keys()

    job = made(app, **given)

    assert {name: getattr(job, name) for name in given} == given
    assert job.max_retries == 6


def test_a_class_gives_its_policies_to_its_subclasses_and_their_jobs(app: Celery) -> None:
    class Api(Job):
        max_attempts = 8
        queue = "low"
        rate = "100/m"

    class Partner(Api):
        rate = "10/m"

    job = app.task(base=Partner, shared=False, name="a", lazy=False, max_attempts=2)(body)
    other = app.task(base=Partner, shared=False, name="b", lazy=False)(body)

    assert (job.max_attempts, job.queue, job.rate, job.max_retries) == (2, "low", "10/m", 1)
    assert (other.max_attempts, Api.max_attempts, Job.max_attempts) == (8, 8, 5)


def test_a_mixin_gives_its_policies(app: Celery) -> None:
    class Patient:
        max_attempts = 50

    class Mixed(Patient, Job):
        pass

    assert app.task(base=Mixed, shared=False, name="a", lazy=False)(body).max_attempts == 50


def test_a_setting_counts_for_the_whole_project_and_less_than_the_job(app: Celery, settings) -> None:
    settings.JOBS_POLICIES = {"max_attempts": 3, "queue": "low"}

    assert made(app).max_attempts == 3
    assert app.tasks["shop.send_receipt"].queue == "low"
    job = app.task(base=Job, shared=False, name="b", lazy=False, max_attempts=9)(body)
    assert (job.max_attempts, job.max_retries) == (9, 8)


def test_annotations_count_more_than_the_job(app: Celery) -> None:
    app.conf.task_annotations = {"shop.send_receipt": {"max_attempts": 2, "queue": "long", "priority": 4}}

    job = made(app, max_attempts=9, queue="critical")

    assert (job.max_attempts, job.max_retries, job.queue, job.priority) == (2, 1, "long", 4)


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        ({"max_attempts": 0}, "Cannot use max_attempts=0 on job shop.send_receipt: it is below 1."),
        ({"max_retries": 9}, "Cannot use max_retries on job shop.send_receipt: a Job counts attempts"),
        ({"queue": "criticle"}, "Did you mean 'critical'?"),
        ({"backoff_cap": 9}, "Write backoff_cap_seconds"),
    ],
)
def test_a_wrong_annotation_stops_the_application(app: Celery, annotation: dict[str, Any], why: str) -> None:
    app.conf.task_annotations = {"shop.send_receipt": annotation}

    with pytest.raises(PolicyError) as refused:
        made(app)

    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"max_atempts": 3},
            "Cannot use max_atempts on job shop.send_receipt: it is no policy and looks like one. Write max_attempts",
        ),
        (
            {"max_attempts": 0},
            "Cannot use max_attempts=0 on job shop.send_receipt: it is below 1. Give a whole number from 1 to 1,000",
        ),
        ({"max_attempts": True}, "it is not a whole number"),
        ({"max_attempts": None}, "it is not a whole number"),
        ({"idempotency_key": "r:{order}"}, "{order} is no parameter; the job has order_id, note"),
        ({"idempotency_key": "r:{order.id}"}, "reads an attribute"),
        ({"limit_key": "{order_id}"}, "limit_key limits nothing without a rate or a concurrency"),
        ({"soft_time_limit": 10, "time_limit": 10}, "soft_time_limit=10 is not below time_limit=10"),
        ({"time_limit": None}, "it is not a number"),
        (
            {"queue": "critcal"},
            "task_queues does not have it, so no worker would take its jobs. Did you mean 'critical'? Queues are critical, default, long, low",
        ),
        ({"using": "replica"}, "DATABASES has no such name. It has default"),
        ({"rate": "100 a minute"}, "it is not a number of jobs in a time"),
        ({"priority": 999}, "it is no whole number from 0 to 255"),
        ({"max_retries": 3}, "Write max_attempts with one more"),
        ({"autoretry_for": (ValueError,)}, "raise PermanentError where trying again cannot help"),
    ],
)
def test_a_wrong_policy_is_refused_with_what_is_allowed(
    app: Celery, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(PolicyError) as refused:
        made(app, **options)

    assert why in str(refused.value)
    assert "shop.send_receipt" in str(refused.value)


def test_a_wrong_class_fails_where_it_is_written() -> None:
    with pytest.raises(PolicyError, match=r"Cannot use concurrency=0 on job .*\.Wrong: it is below 1"):

        class Wrong(Job):
            concurrency = 0


def test_a_wrong_shared_task_fails_when_the_application_is_finalised() -> None:
    app = Application("late", broker="memory://", set_as_current=False)

    def wrong(x: int) -> None:
        """Wrong."""

    app.task(base=Job, shared=False, max_attempts=-1)(wrong)

    with pytest.raises(PolicyError, match="max_attempts=-1"):
        app.finalize()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {"max_atempts": 3},
            "Cannot use 'max_atempts' in JOBS_POLICIES: it is no policy and looks like one. Write max_attempts",
        ),
        (
            {"colour": 3},
            "Cannot use 'colour' in JOBS_POLICIES: it is no policy. Policies are idempotency_key,",
        ),
        ({"max_attempts": "3"}, "Cannot use max_attempts='3' in JOBS_POLICIES: it is not a whole number."),
        (
            {"idempotency_key": "{id}"},
            "Cannot use 'idempotency_key' in JOBS_POLICIES: no value fits every job.",
        ),
        (["max_attempts"], "it is not a mapping"),
    ],
)
def test_a_wrong_setting_is_refused(app: Celery, settings, value: Any, why: str) -> None:
    settings.JOBS_POLICIES = value

    with pytest.raises(PolicyError) as refused:
        made(app)

    assert why in str(refused.value)


def test_a_job_that_could_not_be_bound_cannot_be_sent(app: Celery) -> None:
    """Celery has registered it by then, and hands it out from then on."""
    with pytest.raises(PolicyError):
        made(app, queue="critcal")

    with pytest.raises(PolicyError, match="critcal"):
        app._tasks["shop.send_receipt"].delay(1)


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, (600, 660)),
        ({"time_limit": 30}, (27, 30)),
        ({"soft_time_limit": 3600}, (3600, 3960)),
        ({"time_limit": 700}, (600, 700)),
    ],
)
def test_a_time_limit_that_is_not_given_fits_the_one_that_is(
    app: Celery, options: dict[str, Any], limits: tuple[float, float]
) -> None:
    job = made(app, **options)

    assert (job.soft_time_limit, job.time_limit) == limits


def test_the_applications_own_time_limits_count_more_than_the_default(app: Celery, settings) -> None:
    app.conf.update(task_soft_time_limit=100, task_time_limit=120)

    assert (made(app).soft_time_limit, app.tasks["shop.send_receipt"].time_limit) == (100, 120)
    settings.JOBS_POLICIES = {"soft_time_limit": 50, "time_limit": 60}
    job = app.task(base=Job, shared=False, name="b", lazy=False)(body)
    assert (job.soft_time_limit, job.time_limit) == (50, 60)


def test_a_job_leaves_the_broker_only_when_it_has_ended(app: Celery) -> None:
    app.conf.update(task_acks_late=False, task_reject_on_worker_lost=False)

    assert (made(app).acks_late, app.tasks["shop.send_receipt"].reject_on_worker_lost) == (True, True)


def test_a_queue_is_routed_to_without_a_warning(app: Celery) -> None:
    app.conf.task_routes = {"shop.*": {"queue": "long"}}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job = made(app, queue="critical", priority=2)
        plain = app.task(base=Job, shared=False, name="shop.plain", lazy=False)(body)
        job.delay(1)
        job.apply_async((2,), queue="low")
        plain.delay(3)

    with app.connection_for_write() as connection:
        for queue, order_id in (("critical", 1), ("low", 2), ("long", 3)):
            message = connection.SimpleQueue(queue).get(timeout=5)
            assert message.payload[0] == [order_id]
            message.ack()


def test_a_task_sent_by_its_name_goes_to_its_queue(app: Celery) -> None:
    made(app, queue="critical")

    app.send_task("shop.send_receipt", (7,))

    with app.connection_for_write() as connection:
        assert connection.SimpleQueue("critical").get(timeout=5).payload[0] == [7]


def test_a_queue_need_not_be_declared_where_none_are() -> None:
    app = Application("free", broker="memory://", set_as_current=False)

    assert made(app, queue="tenant-7").queue == "tenant-7"


def test_a_bound_a_class_based_and_a_pydantic_job_know_their_parameters(app: Celery) -> None:
    class Order(BaseModel):
        id: int

    class Ship(Job):
        name = "ship"
        idempotency_key = "ship:{order_id}"

        def run(self, order_id: int) -> None:
            """Ship it."""

    def bound(self: Job, order_id: int) -> None:
        """Is bound."""

    def modelled(order: Order) -> None:
        """Has a model."""

    app.task(base=Job, shared=False, lazy=False, bind=True, name="b", idempotency_key="{order_id}")(bound)
    app.task(base=Job, shared=False, lazy=False, pydantic=True, name="p", idempotency_key="{order[id]}")(
        modelled
    )
    app.register_task(Ship())

    assert list(app.tasks["b"]._jobs_signature.parameters) == ["order_id"]
    assert list(app.tasks["p"]._jobs_signature.parameters) == ["order"]
    assert list(app.tasks["ship"]._jobs_signature.parameters) == ["order_id"]
    with pytest.raises(PolicyError, match=r"\{self\} is no parameter"):
        app.task(base=Job, shared=False, lazy=False, bind=True, name="c", idempotency_key="{self}")(bound)


def test_a_function_with_any_keywords_may_name_any_of_them(app: Celery) -> None:
    def open_ended(x: int, **options: Any) -> None:
        """Take anything."""

    job = app.task(base=Job, shared=False, lazy=False, name="o", idempotency_key="{x}:{kind}")(open_ended)

    with pytest.raises(PolicyError, match=r"\{kind\} was not given"):
        job.delay(1)
    job.delay(1, kind="a")


def test_a_key_may_be_a_method_or_a_function(app: Celery) -> None:
    class Ship(Job):
        name = "ship"

        def idempotency_key(self, order_id: int, day: str = "monday") -> str | None:
            return f"{order_id}:{day}" if order_id else None

        def run(self, order_id: int, day: str = "monday") -> None:
            """Ship it."""

    def key(self: Job, order_id: int, note: str = "") -> Any:
        return {1: "one", 2: "", 3: 5, 4: "a\0b"}[order_id]

    ship, job = app.register_task(Ship()), made(app, idempotency_key=key)

    from jobs.base.running import key_of
    from jobs.core.keys import KeyRefused

    assert [key_of(ship, (5,), {}), key_of(ship, (0,), {})] == ["5:monday", None]
    assert key_of(job, (1,), {}) == "one"
    for order_id, why in ((2, "it is empty"), (3, "it is int, not a text"), (4, "NUL")):
        with pytest.raises(KeyRefused, match=f"idempotency_key=key: .*{why}"):
            key_of(job, (order_id,), {})


def test_an_attribute_of_a_class_that_is_like_no_policy_is_its_own(app: Celery) -> None:
    class Mine(Job):
        name = "mine"
        template = "receipt.html"
        colours = ("red",)

        def run(self) -> str:
            return self.template

    assert app.register_task(Mine())() == "receipt.html"


def test_reading_the_application_of_job_itself_spoils_nothing(app: Celery) -> None:
    """Celery binds a class when its ``app`` is read."""

    class Base(Job):
        queue = "critical"

    assert Base.app is not None
    assert Base.queue == "critical"
    assert app.task(base=Base, shared=False, name="x", lazy=False)(body).queue == "critical"
    assert inspect.isclass(Base)


def test_shared_tasks_are_jobs_of_every_application() -> None:
    def shared(x: int) -> int:
        return x

    task: Any = shared_task(base=Job, name="policies.shared_once", max_attempts=2)(shared)
    app = Application("shares", broker="memory://", set_as_current=False)

    assert app.tasks["policies.shared_once"].max_attempts == 2
    assert task(3) == 3


def test_a_job_that_is_acknowledged_before_it_runs_is_refused(app: Celery) -> None:
    """A worker that is killed would take it along, and nobody would hear of it."""
    with pytest.raises(PolicyError, match=r"Cannot use acks_late=False on job .*lost with its worker"):
        made(app, acks_late=False)

    app.conf.task_annotations = {"shop.send_receipt": {"acks_late": False}}
    with pytest.raises(PolicyError, match="acks_late=False"):
        made(app)


def test_retries_are_told_to_be_attempts(app: Celery) -> None:
    with pytest.raises(PolicyError, match="Write max_attempts"):
        made(app, retries=3)


def test_a_key_from_a_function_without_self_is_refused_where_the_job_is_sent(app: Celery) -> None:
    job = made(app, idempotency_key=lambda order_id: f"receipt:{order_id}")

    with pytest.raises(PolicyError, match="self comes first"):
        job.apply_async((7,))
