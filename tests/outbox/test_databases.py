"""Several databases: each has an outbox of its own, and all of them are relayed, shown and cleaned."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.db import OperationalError, connections, transaction
from django.utils import timezone

from jobs import retention
from jobs.audit import Actor
from jobs.broker import connect
from jobs.core.words import OutboxState, Reason
from jobs.duties import all_duties
from jobs.models import AuditEntry, DeadLetter, OutboxMessage
from jobs.outbox import OutboxProducer, collecting, is_open, letters, service
from jobs.outbox.relay import relay_batch
from jobs.outbox.service import OutboxView
from tests.migrated import migrated_database
from tests.outbox.shop import payloads
from tests.servers import RedisServer

PENDING, PUBLISHED, GAVE_UP = OutboxState.PENDING, OutboxState.PUBLISHED, OutboxState.GAVE_UP


@pytest.fixture
def other(database, settings, tmp_path) -> Iterator[str]:
    """A second database, on SQLite, with the tables."""
    settings.JOBS_OUTBOX_DATABASES = ["default", "other"]
    path = migrated_database(tmp_path / "other.sqlite3")
    connections.settings["other"] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "OPTIONS": {},
    }
    yield "other"
    connections["other"].close()
    del connections["other"]
    del connections.settings["other"]


def enqueue(shop: Celery, number: int, using: str, **options: Any) -> None:
    shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer(using=using), **options)


def leave(shop: Celery, number: int, using: str, **options: Any) -> OutboxMessage:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.outbox.commit._leave", lambda *_, **__: None)
        enqueue(shop, number, using, **options)
    return OutboxMessage.objects.using(using).latest("pk")


def run(using: str, *, seconds: float = 16) -> None:
    with connect() as broker:
        while relay_batch(broker, using=using, now=timezone.now() + timedelta(seconds=seconds)).total:
            pass


def arrived(broker: RedisServer) -> list[int]:
    with broker.client() as client:
        return [json.loads(base64.b64decode(each["body"]))[0][0] for each in payloads(client)]


def test_a_job_leaves_with_the_transaction_of_its_database_and_of_no_other(other, shop, broker) -> None:
    with transaction.atomic(using="other"):
        with suppress(ZeroDivisionError), transaction.atomic():
            enqueue(shop, 1, "default")
            enqueue(shop, 2, "other")
            assert (is_open("default"), is_open("other")) == (True, True)
            raise ZeroDivisionError
        before = arrived(broker)

    assert (before, arrived(broker)) == ([], [2])
    assert OutboxMessage.objects.count() == 0
    assert OutboxMessage.objects.using("other").get().state == PUBLISHED


def test_collecting_keeps_the_databases_apart(other, shop, broker) -> None:
    with collecting("other"):
        enqueue(shop, 1, "other")
        enqueue(shop, 2, "default")
        assert OutboxMessage.objects.using("other").count() == 0
        assert OutboxMessage.objects.count() == 1

    assert OutboxMessage.objects.using("other").count() == 1
    assert sorted(arrived(broker)) == [1, 2]


def test_each_database_has_a_relay_of_its_own(other, shop, broker) -> None:
    leave(shop, 1, "other")
    leave(shop, 2, "default")

    names = [duty.name for duty in all_duties() if duty.name.startswith("relay")]
    run("default")
    after_default = arrived(broker)
    run("other")

    assert names == ["relay", "relay-other"]
    assert (after_default, arrived(broker)) == ([2], [2, 1])


def test_a_database_that_is_away_does_not_hold_up_another(other, shop, broker, monkeypatch) -> None:
    leave(shop, 1, "default")
    connections["other"].close()
    monkeypatch.setitem(connections["other"].settings_dict, "NAME", "/nowhere/at/all.sqlite3")

    with pytest.raises(OperationalError):
        run("other")
    run("default")

    assert arrived(broker) == [1]
    monkeypatch.undo()


def test_a_row_of_another_database_becomes_one_dead_letter_even_after_a_crash(
    other, shop, broker, monkeypatch
) -> None:
    row = leave(shop, 1, "other", expires=10)
    real = letters.insert_letters

    def dies_after(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise ZeroDivisionError

    monkeypatch.setattr(letters, "insert_letters", dies_after)
    with suppress(ZeroDivisionError):
        run("other")
    monkeypatch.setattr(letters, "insert_letters", real)
    # The claim of the one that died is over.
    run("other", seconds=120)

    assert OutboxMessage.objects.using("other").get(pk=row.pk).state == GAVE_UP
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.deaths) == (Reason.EXPIRED, 1)


def test_the_page_shows_all_databases_as_one_and_retries_in_each(other, shop, broker) -> None:
    now = timezone.now()
    rows = []
    for number in range(6):
        using = ("default", "other")[number % 2]
        row = leave(shop, number, using)
        at = now - timedelta(minutes=10) + timedelta(seconds=number // 2)
        OutboxMessage.objects.using(using).filter(pk=row.pk).update(available_at=at, attempts=1, claim=None)
        rows.append(row.uuid)

    seen, cursor = [], None
    for _ in range(4):
        page = service.page(view=OutboxView.STUCK, cursor=cursor, limit=2, now=now)
        seen += [message.uuid for message in page.messages]
        if (cursor := page.next_cursor) is None:
            break
    overview = service.overview(now=now)
    found = service.find(rows[1])
    retried = service.retry_now(ids=rows[:2], actor=Actor(name="night watch"), now=now)
    all_of_them = service.retry_all_now(actor=Actor(name="night watch"), now=now)

    assert seen == rows
    assert (overview.pending, overview.stuck, overview.lag_seconds) == (6, 6, 600)
    assert found is not None
    assert found._state.db == "other"
    assert (retried.count, all_of_them.count) == (2, 6)
    assert AuditEntry.objects.count() == 2


def test_retention_cleans_every_database(other, shop, broker) -> None:
    enqueue(shop, 1, "default")
    enqueue(shop, 2, "other")

    deleted = retention.delete_outbox(now=timezone.now() + timedelta(hours=25))

    assert deleted == 2
    assert OutboxMessage.objects.using("other").count() == 0
