"""A process is killed with signal 9 at every step: each job reaches Redis once, and its row says so."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.db import transaction

from jobs.core.words import OutboxState
from jobs.models import OutboxMessage
from jobs.outbox import OutboxProducer
from tests.outbox.shop import payloads
from tests.servers import RedisServer, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent

REQUEST_STEPS = [
    "before:_leave",
    "before:publish",
    "after:publish",
    "after:mark_published",
]
RELAY_STEPS = [
    "after:open_channel",
    "before:_claim",
    "after:_claim",
    "before:publish",
    "after:publish",
    "after:mark_published",
]


class Processes:
    """Starts processes that do a thing and may be killed while they do it, one at a time."""

    def __init__(self, database_url: str, broker: RedisServer, errors: Path) -> None:
        self.errors = errors
        with errors.open("wb") as output:
            # It has Django loaded, so that a process is a fork and not a start of Python.
            self.parent = subprocess.Popen(
                [sys.executable, "-m", "tests.outbox.dying"],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DATABASE_URL": database_url,
                    "BROKER_URL": broker.url,
                    "SECRET_KEY": "only for tests",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
            )

    def start(self, role: str, step: str, **env: str) -> int:
        """Return the id of a process; ``wait`` for it before the next one."""
        assert self.parent.stdin is not None
        self.parent.stdin.write(json.dumps([role, step, env]) + "\n")
        self.parent.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """Return how the process ended, with minus the number of the signal that killed it."""
        return self._answer()

    def run(self, role: str, step: str, *, status: int, **env: str) -> None:
        self.start(role, step, **env)
        assert self.wait() == status, self.errors.read_text()[-3000:]

    def end(self) -> None:
        self.parent.communicate(timeout=60)

    def _answer(self) -> int:
        assert self.parent.stdout is not None
        line = self.parent.stdout.readline()
        assert line, self.errors.read_text()[-3000:]
        return int(line)


@pytest.fixture(scope="module")
def all_processes() -> Iterator[dict[str, Processes]]:
    """Those that were made so far, by database."""
    made: dict[str, Processes] = {}
    yield made
    for processes in made.values():
        processes.end()


@pytest.fixture
def processes(database, database_url, broker, all_processes, tmp_path_factory) -> Processes:
    """Processes on the test's database and broker."""
    if database_url not in all_processes:
        errors = tmp_path_factory.mktemp("dying") / "errors"
        all_processes[database_url] = Processes(database_url, broker, errors)
    return all_processes[database_url]


def arrived(broker: RedisServer) -> list[int]:
    with broker.client() as client:
        return [json.loads(base64.b64decode(each["body"]))[0][0] for each in payloads(client)]


def assert_each_was_sent_once(broker: RedisServer, count: int) -> None:
    assert sorted(arrived(broker)) == list(range(count))
    assert set(OutboxMessage.objects.values_list("state", flat=True)) == {OutboxState.PUBLISHED}
    with broker.client() as client:
        ids = [each["headers"]["id"] for each in payloads(client)]
    assert sorted(ids) == sorted(OutboxMessage.objects.values_list("task_id", flat=True))


@pytest.mark.parametrize("step", REQUEST_STEPS)
def test_a_request_that_is_killed_after_its_commit_loses_and_doubles_no_job(
    processes: Processes, broker, step
) -> None:
    processes.run("request", step, status=-signal.SIGKILL)
    assert OutboxMessage.objects.count() == 5

    processes.run("relay", "never", status=0)

    assert_each_was_sent_once(broker, 5)


@pytest.mark.parametrize("step", RELAY_STEPS)
def test_a_relay_that_is_killed_loses_and_doubles_no_job(processes: Processes, broker, step) -> None:
    processes.run("request", "before:_leave", status=-signal.SIGKILL)
    processes.run("relay", step, status=-signal.SIGKILL)

    # Longer than the claim of the one that was killed.
    processes.run("relay", "never", status=0, LATER_SECONDS="120")

    assert_each_was_sent_once(broker, 5)


def test_relays_that_are_killed_at_random_lose_and_double_no_job(
    processes: Processes, broker, shop, monkeypatch
) -> None:
    monkeypatch.setattr("jobs.outbox.commit._leave", lambda *_, **__: None)
    with transaction.atomic():
        for number in range(900):
            shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer())
    choose = random.Random(20261112)

    for round_number in range(8):
        before = len(arrived(broker))
        pid = processes.start("relay", "never", LIMIT="10", LATER_SECONDS=str(200 * (round_number + 1)))
        wait_until(
            lambda before=before, pid=pid: len(arrived(broker)) > before or not psutil.pid_exists(pid),
            seconds=60,
            what="the relay to send",
        )
        time.sleep(choose.uniform(0, 0.15))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert processes.wait() in {0, -signal.SIGKILL}, processes.errors.read_text()[-3000:]
    processes.run("relay", "never", status=0, LATER_SECONDS="4000")

    assert_each_was_sent_once(broker, 900)
