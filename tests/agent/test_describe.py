"""The control command that tells the console what a worker knows."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.agent import VERSION
from tests.agent.fleet import Worker

pytestmark = pytest.mark.worker


def ask(worker: Worker, **arguments: Any) -> dict[str, Any]:
    return dict(worker.ask("jobs_describe", **arguments))


def test_a_worker_describes_itself(worker: Worker) -> None:
    described = ask(worker)

    assert described["hostname"].endswith("@test")
    assert described["pool"] == {"threads": "thread"}.get(worker.pool, worker.pool)
    assert described["agent"] == VERSION
    assert described["queues"] == ["celery"]
    assert len(described["boot_id"]) == 32
    assert described["tasks"]["shop.ship"] == {
        "names": ["order_id", "address"],
        "required": 2,
        "var_args": False,
        "var_kwargs": False,
        "kwonly": ["express"],
        "kwonly_required": [],
    }
    assert described["tasks"]["shop.retry_once"]["names"] == ["path", "then"]
    assert described["tasks"]["shop.fail"]["var_args"] is True
    assert not any(name.startswith("celery.") for name in described["tasks"])


def test_tasks_that_are_known_already_are_left_out(worker: Worker) -> None:
    digest = ask(worker)["digest"]

    assert ask(worker, known=[digest, "other"])["tasks"] is None
    assert ask(worker, known=["other"])["tasks"] is not None


def test_the_boot_id_is_that_of_the_records(worker: Worker) -> None:
    record = worker.record_of(worker.send("shop.fail"))

    assert ask(worker)["boot_id"] == record.boot_id
