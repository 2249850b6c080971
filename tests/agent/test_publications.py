"""The stamp on what is published."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, signals
from celery._state import _task_stack

from jobs.agent import attach, install, publications
from tests.applications import Application

REPLAY = {"jobs-replay-of": "letter", "jobs-replay-item": 4, "jobs-replay-no": 2}


def nothing() -> None:
    """Be a task."""


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Application("stamps", broker="memory://", set_as_current=False)
    attach(app)
    app.task(nothing, name="stamps.running", shared=False)
    yield app
    app.close()


def run_with(app: Celery, headers: dict[str, Any] | None, publish: dict[str, Any]) -> dict[str, Any]:
    """Stamp ``publish`` while a job with these headers runs."""

    running = app.tasks["stamps.running"]
    running.push_request(id="me", headers=headers, called_directly=False)
    _task_stack.push(running)
    try:
        publications.stamp(headers=publish)
    finally:
        _task_stack.pop()
        running.pop_request()
    return publish


def test_each_publication_gets_an_id_and_a_time() -> None:
    first: dict[str, Any] = {"jobs-deliveries": "3:old"}
    second: dict[str, Any] = {"jobs-publication": "copied by a retry", "jobs-published-at": 1}

    publications.stamp(headers=first)
    publications.stamp(headers=second)

    assert len(first["jobs-publication"]) == len(second["jobs-publication"]) == 32
    assert first["jobs-publication"] != second["jobs-publication"]
    assert second["jobs-published-at"] > 1_000_000_000
    assert "jobs-deliveries" not in first


def test_a_message_without_headers_is_left_alone() -> None:
    publications.stamp(headers=None)


def test_a_replays_headers_stay_with_its_retry_and_its_replacement(app: Celery) -> None:
    assert REPLAY.items() <= run_with(app, REPLAY, {"id": "me"}).items()


def test_a_replays_headers_do_not_go_to_what_it_sends(app: Celery) -> None:
    assert not REPLAY.keys() & run_with(app, REPLAY, {"id": "child", **REPLAY}).keys()


def test_a_job_that_replays_another_keeps_the_others_headers(app: Celery) -> None:
    other = {"jobs-replay-of": "another letter", "jobs-replay-item": 9}

    assert other.items() <= run_with(app, REPLAY, {"id": "child", **other}).items()


def test_a_job_that_is_no_replay_changes_nothing(app: Celery) -> None:
    assert not REPLAY.keys() & run_with(app, None, {"id": "me"}).keys()
    assert REPLAY.items() <= run_with(app, {"tenant": "blue"}, {"id": "child", **REPLAY}).items()


def test_attaching_twice_stamps_once_and_adds_one_step(app: Celery) -> None:
    attach(app)
    attach(app)

    receivers = [each for each in signals.before_task_publish.receivers if "jobs.agent" in str(each[0])]
    assert len(receivers) == 1
    assert len([step for step in app.steps["worker"] if step is install.GuardPool]) == 1


def test_a_worker_of_another_application_is_left_alone(app: Celery) -> None:
    class Controller:
        app = Application("other", set_as_current=False)
        consumer_cls = "celery.worker.consumer:Consumer"
        hostname = "w@h"

    controller = Controller()
    install.join_worker(sender=controller)

    assert controller.consumer_cls == "celery.worker.consumer:Consumer"


def test_a_consumer_of_the_applications_own_is_kept_underneath(app: Celery) -> None:
    from celery.worker.consumer import Consumer

    class OwnConsumer(Consumer):
        pass

    class Controller:
        consumer_cls: Any = OwnConsumer
        hostname = "w@h"
        jobs_agent: Any = None

    controller = Controller()
    controller.app = app  # type: ignore[attr-defined]

    install.join_worker(sender=controller)
    once = controller.consumer_cls
    install.join_worker(sender=controller)

    assert issubclass(once, OwnConsumer)
    assert once is not OwnConsumer
    assert controller.consumer_cls is once
    assert len(controller.jobs_agent.boot_id) == 32
