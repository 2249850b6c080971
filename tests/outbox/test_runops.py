"""The process ``manage.py runops`` relays what waits, through an outage and a change of its holder."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

import pytest
from celery import Celery
from django.db import transaction

from jobs.core.words import OutboxState
from jobs.models import Lease, OutboxMessage
from jobs.outbox import OutboxProducer
from tests.outbox.shop import create, payloads
from tests.servers import RedisServer, running, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


def runops(database_url: str, server: RedisServer, log: Path):
    env = {
        **os.environ,
        "DATABASE_URL": database_url,
        "BROKER_URL": server.url,
        "SECRET_KEY": "only for tests",
        "JOBS_LEASE_SECONDS": "3",
        "JOBS_DATA_DIR": str(log.parent),
    }
    return running([sys.executable, "manage.py", "runops"], env=env, log=log, cwd=ROOT)


def leave(shop: Celery, numbers: range) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # More than a transaction sends itself, so that they are due at once.
        patch.setattr("jobs.outbox.commit.MOST_ROWS", 0)
        with transaction.atomic():
            for number in numbers:
                shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer())


def arrived(server: RedisServer) -> list[int]:
    with server.client() as client:
        return [json.loads(base64.b64decode(each["body"]))[0][0] for each in payloads(client)]


def wait_until_marked() -> None:
    """Wait until every row says that it was sent: the broker has a job a moment before that."""
    wait_until(
        lambda: not OutboxMessage.objects.exclude(state=OutboxState.PUBLISHED).exists(),
        seconds=60,
        what="the rows to be marked",
    )


def test_it_sends_what_waits_waits_for_a_broker_and_hands_its_duty_over(
    database, database_url, settings, tmp_path
) -> None:
    server = RedisServer().start()
    settings.BROKER_URL = server.url
    shop = create(server.url)
    Lease.objects.all().delete()
    log = tmp_path / "runops.log"
    try:
        with runops(database_url, server, log) as first:
            leave(shop, range(10))
            wait_until(lambda: len(arrived(server)) == 10, seconds=60, what=f"ten jobs ({log})")

            server.stop()
            leave(shop, range(10, 20))
            wait_until(lambda: b"relay: waits and tries again" in log.read_bytes(), seconds=60, what=f"{log}")
            server.start()
            wait_until(lambda: len(arrived(server)) == 20, seconds=60, what=f"twenty jobs ({log})")
            wait_until_marked()

            first.kill()
            first.wait(timeout=10)
        leave(shop, range(20, 30))
        with runops(database_url, server, tmp_path / "second.log"):
            wait_until(lambda: len(arrived(server)) == 30, seconds=60, what="thirty jobs")
            wait_until_marked()

        assert sorted(arrived(server)) == list(range(30))
        assert set(OutboxMessage.objects.values_list("state", "attempts")) == {(OutboxState.PUBLISHED, 0)}
        # Said when it went and when it was back, and not for each try.
        assert log.read_bytes().count(b"relay: waits and tries again") == 1
    finally:
        server.remove()
