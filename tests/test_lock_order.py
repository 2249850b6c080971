"""Two that change the same letters wait for each other, and never both: letters are locked before items."""

from __future__ import annotations

import threading
import uuid

import pytest
from django.db import IntegrityError, connection, transaction

from jobs.collector.replays import load
from jobs.collector.writing import insert
from jobs.core.words import ItemState, LetterState
from jobs.models import DeadLetter, OperationItem
from jobs.operations.outcomes import give_up
from tests.factories import NOW, make_item, make_letter, make_operation
from tests.postgres import default_database
from tests.servers import wait_until

pytestmark = pytest.mark.postgres


@pytest.mark.django_db(transaction=True)
def test_who_gives_up_on_an_outcome_waits_for_the_collector_that_has_it(postgres_server):
    with default_database(postgres_server.create_migrated_database("lock_order")):
        letter = make_letter(state=LetterState.REPLAYING, replays=1)
        item = make_item(make_operation(), letter)
        given_up: list[int] = []

        def give_up_on_it() -> None:
            try:
                given_up.append(give_up(OperationItem.objects.filter(pk=item.pk), detail="late", now=NOW))
            finally:
                connection.close()

        other = threading.Thread(target=give_up_on_it)
        with transaction.atomic():
            locked = DeadLetter.objects.select_for_update().filter(pk=letter.pk)
            assert list(locked.values_list("pk", flat=True)) == [letter.pk]
            other.start()
            wait_until(is_somebody_waiting, what="the other to wait for the letter")

            # With the item locked before the letter this is a deadlock.
            replayed = load([str(letter.uuid)])[letter.uuid.hex]

            assert [each.pk for each in replayed.items] == [item.pk]
            OperationItem.objects.filter(pk=item.pk).update(state=ItemState.DONE)
            DeadLetter.objects.filter(pk=letter.pk).update(state=LetterState.RESOLVED)
        other.join(timeout=30)

        assert given_up == [0]
        item.refresh_from_db()
        letter.refresh_from_db()
        assert (item.state, letter.state) == (ItemState.DONE, LetterState.RESOLVED)


def is_somebody_waiting() -> bool:
    with connection.cursor() as cursor:
        # Not pg_stat_activity: a transaction sees it as it was at its first look.
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.django_db
def test_what_copy_refuses_is_an_error_of_djangos(postgres_url):
    with default_database(postgres_url), transaction.atomic():
        pattern = make_letter(death=False)
        row = {
            field.attname: getattr(pattern, field.attname)
            for field in DeadLetter._meta.concrete_fields
            if field.attname != "id"
        } | {"uuid": uuid.uuid4()}

        with pytest.raises(IntegrityError), transaction.atomic():
            insert(DeadLetter, [row, row])

        # Other tests use this database too.
        transaction.set_rollback(True)
