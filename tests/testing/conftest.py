"""The shop as the application of the process, and its jobs run in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import _state

from jobs.testing import InProcessBroker, in_process
from tests.testing import shop


@pytest.fixture
def current_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the shop the application of the process, as in a project; other tests have tasks of the same names."""
    monkeypatch.setattr(_state._tls, "current_app", shop.app)


@pytest.fixture
def office() -> Iterator[InProcessBroker]:
    shop.effects.clear()
    shop.failures.clear()
    with in_process() as broker:
        yield broker


@pytest.fixture(params=["in a transaction that never commits", "in a database that commits"])
def database(request: pytest.FixtureRequest) -> str:
    """Both of pytest-django's kinds: the outbox and on_commit differ."""
    if request.param == "in a database that commits":
        request.getfixturevalue("transactional_db")
    else:
        request.getfixturevalue("db")
    return str(request.param)
