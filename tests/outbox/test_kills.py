"""A process is killed with signal 9 at every step: each job reaches Redis once, and its row says so."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

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


def start(
    database_url: str, broker: RedisServer, role: str, step: str, **env: str
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.outbox.dying", role, step],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": database_url,
            "BROKER_URL": broker.url,
            "SECRET_KEY": "only for tests",
            **env,
        },
        stderr=subprocess.PIPE,
    )


def end(process: subprocess.Popen[bytes], *, status: int) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors.decode()[-3000:]


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
    database, database_url, broker, step
) -> None:
    end(start(database_url, broker, "request", step), status=-signal.SIGKILL)
    assert OutboxMessage.objects.count() == 5

    end(start(database_url, broker, "relay", "never"), status=0)

    assert_each_was_sent_once(broker, 5)


@pytest.mark.parametrize("step", RELAY_STEPS)
def test_a_relay_that_is_killed_loses_and_doubles_no_job(database, database_url, broker, step) -> None:
    end(start(database_url, broker, "request", "before:_leave"), status=-signal.SIGKILL)
    end(start(database_url, broker, "relay", step), status=-signal.SIGKILL)

    # Longer than the claim of the one that was killed.
    end(start(database_url, broker, "relay", "never", LATER_SECONDS="120"), status=0)

    assert_each_was_sent_once(broker, 5)


def test_relays_that_are_killed_at_random_lose_and_double_no_job(
    database, database_url, broker, shop, monkeypatch
) -> None:
    monkeypatch.setattr("jobs.outbox.commit._leave", lambda *_, **__: None)
    with transaction.atomic():
        for number in range(900):
            shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer())
    choose = random.Random(20261112)

    for round_number in range(8):
        before = len(arrived(broker))
        process = start(
            database_url, broker, "relay", "never", LIMIT="10", LATER_SECONDS=str(200 * (round_number + 1))
        )
        wait_until(
            lambda before=before, process=process: (
                len(arrived(broker)) > before or process.poll() is not None
            ),
            seconds=60,
            what="the relay to send",
        )
        time.sleep(choose.uniform(0, 0.15))
        process.kill()
        process.communicate(timeout=60)
    end(start(database_url, broker, "relay", "never", LATER_SECONDS="4000"), status=0)

    assert_each_was_sent_once(broker, 900)
