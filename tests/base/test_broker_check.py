"""``manage.py check`` says when jobs of the outbox would go to another broker than the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery, _state

from jobs import Job, conf
from jobs.checks import _broker_problems
from tests.applications import Application

REDIS = "redis://localhost:6379/0"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Application("checked-shop", broker=REDIS, set_as_current=False)

    @app.task(base=Job, name="checked.task", shared=False)
    def task() -> None: ...

    yield app
    app.close()


@pytest.mark.parametrize(
    "url", [REDIS, "redis://127.0.0.1", "redis://user:secret@localhost:6379/", f"redis://other:1/0;{REDIS}"]
)
def test_one_broker_by_different_words_is_right(app: Celery, settings, url: str) -> None:
    settings.BROKER_URL = url

    assert _broker_problems(app) == []


@pytest.mark.parametrize("url", ["redis://localhost:6379/1", "redis://other:6379/0", "amqp://localhost"])
def test_another_broker_is_warned_of(app: Celery, settings, url: str) -> None:
    settings.BROKER_URL = url

    assert [problem.id for problem in _broker_problems(app)] == ["jobs.W014"]


def test_no_broker_is_an_error(app: Celery, settings) -> None:
    settings.BROKER_URL = ""

    assert [problem.id for problem in _broker_problems(app)] == ["jobs.E013"]


def test_an_application_without_jobs_is_not_asked(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.BROKER_URL = ""
    # Shared tasks of other tests are every application's.
    monkeypatch.setattr(_state, "_on_app_finalizers", set())

    assert _broker_problems(Application("plain-shop", broker=REDIS, set_as_current=False)) == []


def test_the_broker_of_celery_counts_where_there_is_no_other(app: Celery, settings) -> None:
    settings.BROKER_URL = ""
    del settings.BROKER_TRANSPORT_OPTIONS
    settings.CELERY_BROKER_URL = REDIS
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 7200}

    assert conf.current().broker_url == REDIS
    assert conf.current().broker_transport_options == {"visibility_timeout": 7200}
    assert _broker_problems(app) == []
