"""Jobs run in the process of a test, without a broker and under all their policies."""

from __future__ import annotations

import pytest
from celery import chord
from django.test import TestCase

from jobs.testing import InProcessBroker, NotRunYet, in_process
from tests.applications import Application
from tests.testing import shop

pytestmark = pytest.mark.usefixtures("current_application")


def test_waiting_for_a_result_before_the_jobs_ran_fails_instead_of_hanging(
    office: InProcessBroker, transactional_db: None
) -> None:
    result = shop.add.delay(1, 2)

    with pytest.raises(NotRunYet, match=r"Call run_jobs\(\) before get\(\)"):
        result.get()

    office.run_jobs()
    assert result.get() == 3


def test_an_application_that_runs_eagerly_sends_in_a_test(office: InProcessBroker, db: None) -> None:

    eager = Application("eager-shop", broker="redis://127.0.0.1:1/0", set_as_current=False)
    eager.conf.task_always_eager = True

    @eager.task(name="eager.add")
    def task(a: int, b: int) -> None:
        shop.effects.append(a + b)

    task.delay(1, 2)
    assert shop.effects == []
    office.run_jobs()

    assert shop.effects == [3]


def test_everything_is_put_back_after_the_block(db: None) -> None:
    from celery import Celery
    from celery.app.amqp import AMQP

    from jobs.idempotency import heartbeat
    from jobs.outbox import commit, producer

    def state() -> list[object]:
        return [
            AMQP.__dict__["producer_pool"],
            AMQP.__dict__["publisher_pool"],
            Celery.__dict__["backend"],
            producer.__dict__["write"],
            commit.__dict__["_send"],
            heartbeat._Process.heart,
            TestCase.__dict__["captureOnCommitCallbacks"].__func__,
        ]

    before = state()
    with in_process() as broker:
        shop.add.delay(1, 2)
        broker.run_jobs()
        assert state() != before

    assert state() == before


def test_a_block_in_a_block_is_the_same(office: InProcessBroker) -> None:
    with in_process() as inner:
        assert inner is office
    assert office.is_installed


def test_an_application_without_a_result_store_sends_no_chord(office: InProcessBroker, db: None) -> None:

    storeless = Application("storeless", broker="redis://127.0.0.1:1/0", set_as_current=False)

    @storeless.task(name="storeless.add")
    def add(a: int, b: int) -> int:
        return a + b

    # Celery's own refusal, the same as outside of a test.
    with pytest.raises(NotImplementedError, match="Starting chords requires a result backend"):
        chord([add.s(1, 1)], add.s(1)).apply_async()

    office.enqueued.assert_none()
