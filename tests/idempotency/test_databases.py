"""A ledger in a database of the application, beside the console's."""

from __future__ import annotations

from collections.abc import Iterator

import dj_database_url
import pytest
from django.db import connections

from jobs.core.words import LedgerState
from jobs.idempotency import states
from jobs.idempotency.reading import count_done
from jobs.models import DeadLetter, FailureGroup, IdempotencyRecord
from jobs.retention import delete_ledger
from tests.factories import NOW, make_letter
from tests.idempotency.copies import KEY, TASK, Body, copy
from tests.migrated import migrated_database

pytestmark = pytest.mark.postgres


@pytest.fixture
def shop(database, settings, tmp_path) -> Iterator[str]:
    """The alias of a second database, which is the console's business too."""
    configured = {
        **connections.settings["default"],
        **dj_database_url.parse(f"sqlite:///{migrated_database(tmp_path / 'shop.sqlite3')}"),
    }
    configured["OPTIONS"] = {}
    connections.settings["shop"] = configured
    settings.JOBS_OUTBOX_DATABASES = ("default", "shop")
    try:
        yield "shop"
    finally:
        connections["shop"].close()
        del connections["shop"]
        del connections.settings["shop"]


@pytest.mark.parametrize("atomic", [False, True], ids=["lease", "atomic"])
def test_the_key_is_in_the_database_of_the_job(shop, atomic):
    body = Body()

    copy(body, using=shop, atomic=atomic)
    copy(body, using=shop, atomic=atomic, task_id="b")

    assert body.runs == 1
    assert IdempotencyRecord.objects.using(shop).get().state == LedgerState.DONE
    assert not IdempotencyRecord.objects.exists()


def test_pages_previews_and_retention_look_into_both(shop):
    copy(Body(), using=shop)
    copy(Body(), key="receipt:6")
    letters = [make_letter(task=TASK, idempotency_key=key) for key in (KEY, "receipt:6", "receipt:7", "")]
    try:
        found = states((TASK, letter.idempotency_key) for letter in letters)
        done = count_done(DeadLetter.objects.all(), limit=10)
        IdempotencyRecord.objects.using(shop).update(updated_at=NOW.replace(year=2020))
        deleted = delete_ledger(now=NOW)
    finally:
        for letter in letters:
            letter.death_set.all().delete()
            DeadLetter.objects.filter(pk=letter.pk).delete()
        FailureGroup.objects.all().delete()

    assert {key for _, key in found} == {KEY, "receipt:6"}
    assert done == 2
    assert deleted == 1


def test_a_database_of_the_application_that_is_away_is_left_out(shop, caplog):
    copy(Body(), using="default")
    connections["shop"].close()
    connections.settings["shop"]["NAME"] = "/nowhere/shop.sqlite3"
    del connections["shop"]

    found = states([(TASK, KEY)])

    assert list(found) == [(TASK, KEY)]
    assert "The idempotency ledger of the database shop cannot be read" in caplog.text
