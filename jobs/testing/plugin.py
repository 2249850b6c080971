"""The fixtures, for pytest."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from jobs.testing.broker import InProcessBroker, in_process
from jobs.testing.enqueued import Enqueued
from jobs.testing.running import RanJob

MARK = "real_broker"
_key = pytest.StashKey[InProcessBroker]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers", f"{MARK}: uses the application's own broker and workers; jobs.testing stays away"
    )


@pytest.fixture(scope="session", autouse=True)
def _jobs_in_process() -> Iterator[InProcessBroker]:
    """Take the place of every broker for the whole run, so that setUpTestData is covered too."""
    with in_process() as broker:
        yield broker


@pytest.fixture(autouse=True)
def _jobs_of_this_test(request: pytest.FixtureRequest, _jobs_in_process: InProcessBroker) -> Iterator[None]:
    """Begin with no jobs; stay away from a test that is marked so."""
    broker = _jobs_in_process
    if request.node.get_closest_marker(MARK) is not None:
        broker.remove()
        try:
            yield
        finally:
            broker.install()
        return
    broker.begin_test()
    request.node.stash[_key] = broker
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail a test that passed while a job of it died."""
    result = yield
    broker = item.stash.get(_key, None)
    if broker is not None:
        died = ""
        try:
            broker.check()
        except AssertionError as error:
            died = str(error)
        if died:
            # Without the frames of this plugin, which are nobody's mistake; and once, not as its own context.
            pytest.fail(died, pytrace=False)
    return result


@pytest.fixture
def jobs_broker(_jobs_of_this_test: None, _jobs_in_process: InProcessBroker) -> InProcessBroker:
    """The broker of this test: enqueued, run_jobs, dead_letters and expect_dead_letter."""
    if not _jobs_in_process.is_installed:
        raise pytest.UsageError(
            f"This test is marked {MARK}, so that its jobs do not run in-process. Take the mark away, or the fixture."
        )
    return _jobs_in_process


@pytest.fixture
def enqueued(jobs_broker: InProcessBroker) -> Enqueued:
    """What the test enqueued so far, as a sequence with assertions; read anew each time it is looked at."""
    return jobs_broker.enqueued


@pytest.fixture
def run_jobs(jobs_broker: InProcessBroker) -> Callable[..., list[RanJob]]:
    """Run everything that is enqueued, and what that enqueues: ``InProcessBroker.run_jobs``."""
    return jobs_broker.run_jobs


@pytest.fixture
def expect_dead_letter(jobs_broker: InProcessBroker) -> Callable[..., Any]:
    """Expect a job to die inside a block: ``InProcessBroker.expect_dead_letter``."""
    return jobs_broker.expect_dead_letter
