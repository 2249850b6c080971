"""What a page says when the database does not do what it needs: a real one that is full, read-only, old or gone."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse

from console.views.errors import server_error
from jobs.models import AuditEntry, QueuePause
from tests.metrics_rows import make_sample
from tests.web.people import operator, tags

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

PAUSE = "/queues/one/pause/?name=critical"
UNSURE = "What you asked for may not have been done: look whether it was before you ask again."


@pytest.fixture
def client() -> Client:
    make_sample(ready=1)
    client = operator()
    client.raise_request_exception = False
    return client


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def read_only(client):
    if connection.vendor == "sqlite":
        execute("PRAGMA query_only = ON")
        yield
        execute("PRAGMA query_only = OFF")
        return
    with transaction.atomic():
        execute("SET TRANSACTION READ ONLY")
        yield
        # Which takes the mode back as well.
        transaction.set_rollback(True)


def text_of(response: Any) -> str:
    assert response.status_code == 503
    return tags(response).text


@pytest.mark.usefixtures("read_only")
def test_a_database_that_takes_no_writes_is_named_with_what_to_do(client):
    text = text_of(client.post(PAUSE, {"why": "the provider is down"}))

    assert (
        "The database failed It takes no writes. It is a standby, or set read-only: see DATABASE_URL." in text
    )
    assert UNSURE in text


def test_tables_of_another_version_are_named_with_what_to_do(client):
    execute("ALTER TABLE jobs_auditentry RENAME TO jobs_of_before")

    text = text_of(client.get(reverse("console:audit")))

    assert "It is of another version. Run manage.py migrate." in text


def fill_free_pages() -> None:
    """Use up the pages of SQLite that tests before this one have left empty, all but a few."""
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA freelist_count")
        (pages,) = cursor.fetchone()
        cursor.execute("PRAGMA page_size")
        (page_size,) = cursor.fetchone()
        cursor.execute("CREATE TABLE filler (bytes BLOB)")
        # Each page of a long value begins with the number of the next.
        cursor.execute("INSERT INTO filler VALUES (zeroblob(%s))", [max(0, pages - 2) * (page_size - 4)])


# PostgreSQL cannot be told that its disk is full.
@pytest.mark.parametrize("each_database", ["sqlite"], indirect=True)
def test_a_full_disk_is_named_and_nothing_is_half_done(client):
    for number in range(50):
        make_sample(queue=f"critical{number}", ready=1)
    fill_free_pages()
    # SQLite takes it as: no more pages than there are.
    execute("PRAGMA max_page_count = 1")

    answers = []
    try:
        while not answers or answers[-1].status_code == 302:
            answers.append(client.post(f"{PAUSE}{len(answers)}", {"why": "x" * 1_000}))
    finally:
        execute("PRAGMA max_page_count = 1073741823")

    assert "Its disk is full. Free some space on it." in text_of(answers[-1])
    assert QueuePause.objects.count() == AuditEntry.objects.filter(action="pause_queue").count()


def test_a_mistake_of_the_consoles_own_is_not_laid_to_the_database(rf):
    try:
        with transaction.atomic():
            AuditEntry.objects.create(at=None)
    except IntegrityError:
        response = server_error(rf.get("/"))

    assert response.status_code == 500
    assert "This page broke" in tags(response).text
