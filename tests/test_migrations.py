"""Migrations that move what people have stored, over rows that were there before."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from jobs.models import DeadLetter, LetterMessage
from tests.factories import NOW
from tests.postgres import default_database

WHOLE = "0012_keep_what_an_outbox_message_declares"
EMPTY_TABLE = "0013_add_letter_message"
COPIED = "0014_copy_messages_of_letters"
MOVED = "0015_remove_messages_from_letters"
PREFIXED = "0021_add_state_samples"
OF_ITS_OWN = "0023_move_remarks_of_leases"
# What JSON in a text column must carry through: NUL and half a surrogate, as escapes.
HEADERS = {"task": "shop.tasks.charge", "text": "é\ud800\x00", "n": 2**70}

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_database(request, tmp_path: Path) -> Iterator[None]:
    """Give a database of the test's own, without the tables of the jobs."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'console.sqlite3'}"
    else:
        url = request.getfixturevalue("postgres_server").create_database(f"m{uuid.uuid4().hex}")
    with default_database(url):
        # Permissions are written after each migrate, with names that its first version has no room for.
        call_command("migrate", "auth", verbosity=0)
        yield


def migrate(name: str) -> Any:
    """Go to a migration of the jobs, forward or back; return the models as they are there."""
    call_command("migrate", "jobs", name, verbosity=0)
    return MigrationExecutor(connection).loader.project_state(("jobs", name)).apps


def write_whole_letter(apps: Any, *, body: bytes, **fields: Any) -> int:
    """Write a letter as the version before did, with its message beside it."""
    group, _ = apps.get_model("jobs", "FailureGroup").objects.get_or_create(
        fingerprint="f", defaults={"first_seen_at": NOW, "last_seen_at": NOW}
    )
    letter = apps.get_model("jobs", "DeadLetter").objects.create(
        group=group,
        reason="failed",
        state_changed_at=NOW,
        first_died_at=NOW,
        died_at=NOW,
        task="shop.tasks.charge",
        body=body,
        headers=HEADERS,
        properties={"priority": len(body)},
        **fields,
    )
    return int(letter.pk)


def messages() -> dict[int, tuple[bytes, Any, Any]]:
    """Return what LetterMessage holds, by letter."""
    return {
        message.letter_id: (bytes(message.body), message.headers, message.properties)
        for message in LetterMessage.objects.all()
    }


def test_messages_move_to_their_table_and_back(empty_database):
    before = migrate(WHOLE)
    bodies = [b"", bytes(range(256)), b"[[], {}, {}]"]
    # Further apart than a batch is wide.
    expected = {
        write_whole_letter(before, body=body, id=number): (body, HEADERS, {"priority": len(body)})
        for number, body in zip((3, 4, 14_000), bodies, strict=True)
    }

    migrate(MOVED)

    assert messages() == expected
    assert set(DeadLetter.objects.values_list("pk", "task")) == {(pk, "shop.tasks.charge") for pk in expected}

    after = migrate(WHOLE)

    letters = after.get_model("jobs", "DeadLetter").objects.all()
    assert {
        letter.pk: (bytes(letter.body), letter.headers, letter.properties) for letter in letters
    } == expected


def test_a_letter_that_an_old_collector_writes_after_the_copy_keeps_its_message(empty_database):
    write_whole_letter(migrate(WHOLE), body=b"copied")
    late = write_whole_letter(migrate(COPIED), body=b"written late")

    migrate(MOVED)

    assert messages()[late] == (b"written late", HEADERS, {"priority": 12})
    assert len(messages()) == 2


def test_a_copy_that_was_cut_off_is_finished(empty_database):
    before = migrate(WHOLE)
    first, second = (write_whole_letter(before, body=body) for body in (b"1", b"2"))
    table = migrate(EMPTY_TABLE).get_model("jobs", "LetterMessage")
    table.objects.create(letter_id=first, body=b"1", headers=HEADERS, properties={"priority": 1})

    migrate(MOVED)

    assert {letter: body for letter, (body, *_) in messages().items()} == {first: b"1", second: b"2"}


def test_a_database_without_letters_is_migrated(empty_database):
    migrate(MOVED)

    assert messages() == {}


def rows_of_leases(apps: Any) -> dict[str, tuple[object, ...]]:
    """Return what the leases say, by duty."""
    rows = apps.get_model("jobs", "Lease").objects.all()
    return {row.duty: (row.trouble, row.trouble_since, getattr(row, "remark", None)) for row in rows}


def test_remarks_of_leases_move_to_their_column_and_back(empty_database):
    leases = migrate(PREFIXED).get_model("jobs", "Lease")
    leases.objects.create(duty="runs", trouble="Remark: 3 batches: é", trouble_since=NOW)
    leases.objects.create(duty="collector", trouble="OSError: Remark: no", trouble_since=NOW)
    leases.objects.create(duty="queues")

    after = migrate(OF_ITS_OWN)

    assert rows_of_leases(after) == {
        "runs": ("", None, "3 batches: é"),
        "collector": ("OSError: Remark: no", NOW, ""),
        "queues": ("", None, ""),
    }

    after.get_model("jobs", "Lease").objects.filter(duty="queues").update(remark="x" * 500)
    # Beside a trouble there is no room for it.
    after.get_model("jobs", "Lease").objects.filter(duty="collector").update(remark="lost")

    assert rows_of_leases(migrate(PREFIXED)) == {
        "runs": ("Remark: 3 batches: é", None, None),
        "collector": ("OSError: Remark: no", NOW, None),
        "queues": (f"Remark: {'x' * 492}", None, None),
    }
