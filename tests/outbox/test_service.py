"""What the outbox page shows and does."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.audit import Actor
from jobs.core.words import OutboxState
from jobs.errors import OutboxRefused
from jobs.models import AuditEntry, OutboxMessage
from jobs.outbox import service
from jobs.outbox.service import OutboxView

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 12, 3, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OPERATOR = Actor(name="night watch")


def make(**changed: Any) -> OutboxMessage:
    """Write a row that has been due for five seconds."""
    values = {
        "task": "shop.send_receipt",
        "task_id": uuid.uuid4().hex,
        "queue": "default",
        "body": b"[[], {}, {}]",
        "created_at": NOW - 20 * SECOND,
        "available_at": NOW - 5 * SECOND,
    }
    return OutboxMessage.objects.create(**{**values, **changed})


def due() -> OutboxMessage:
    return make()


def in_grace() -> OutboxMessage:
    return make(available_at=NOW + 10 * SECOND, claim=uuid.uuid4(), published_by="commit")


def being_sent() -> OutboxMessage:
    return make(available_at=NOW + 80 * SECOND, claim=uuid.uuid4(), published_by="relay", attempts=1)


def late() -> OutboxMessage:
    return make(available_at=NOW - 61 * SECOND)


def refused() -> OutboxMessage:
    return make(available_at=NOW + 200 * SECOND, attempts=3, last_error="The broker has no queue typo.")


def held() -> OutboxMessage:
    return make(available_at=NOW + timedelta(hours=2), eta=NOW + timedelta(hours=2))


def published() -> OutboxMessage:
    return make(state=OutboxState.PUBLISHED, published_at=NOW - SECOND, published_by="commit")


def given_up() -> OutboxMessage:
    return make(state=OutboxState.GAVE_UP, attempts=8)


ALL = [due, in_grace, being_sent, late, refused, held, published, given_up]


def test_an_empty_outbox_has_no_lag() -> None:
    assert service.overview(now=NOW) == service.OutboxOverview()


def test_the_overview_counts_each_row_where_an_operator_looks_for_it() -> None:
    for make_one in ALL:
        make_one()

    overview = service.overview(now=NOW)

    assert (overview.pending, overview.stuck, overview.held, overview.gave_up) == (5, 3, 1, 1)
    assert overview.lag_seconds == 61
    assert overview.oldest_due_at == NOW - 61 * SECOND
    assert overview.next_held_at == NOW + timedelta(hours=2)


def test_the_overview_does_not_read_what_was_published(django_assert_num_queries) -> None:
    published()

    with django_assert_num_queries(2):
        service.overview(now=NOW)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (OutboxView.WAITING, [late, due, in_grace, being_sent, refused]),
        (OutboxView.STUCK, [late, being_sent, refused]),
        (OutboxView.HELD, [held]),
        (OutboxView.GAVE_UP, [given_up]),
        (OutboxView.PUBLISHED, [published]),
    ],
)
def test_a_list_shows_its_rows_the_longest_waiting_first(view, expected) -> None:
    rows = {make_one: make_one().pk for make_one in ALL}

    page = service.page(view=view, now=NOW)

    assert [row.pk for row in page.messages] == [rows[make_one] for make_one in expected]
    assert page.next_cursor is None
    assert page.total == (None if view == OutboxView.PUBLISHED else len(expected))


@pytest.mark.parametrize("make_one", ALL)
def test_a_row_is_named_after_the_narrowest_list_that_shows_it(make_one) -> None:
    row = make_one()

    shown = [view for view in OutboxView if service.page(view=view, now=NOW).messages == [row]]

    assert service.view_of(row, now=NOW) in shown
    assert (OutboxView.STUCK in shown) == (service.view_of(row, now=NOW) == OutboxView.STUCK)


@pytest.mark.parametrize("view", [OutboxView.WAITING, OutboxView.PUBLISHED])
def test_pages_cover_every_row_once_even_when_all_have_one_time(view) -> None:
    state = OutboxState.PENDING if view == OutboxView.WAITING else OutboxState.PUBLISHED
    made = [make(state=state, published_at=NOW - SECOND).pk for _ in range(7)]

    seen: list[int] = []
    cursor = None
    for _ in range(4):
        page = service.page(view=view, cursor=cursor, limit=3, now=NOW)
        seen += [row.pk for row in page.messages]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert seen == (made if view == OutboxView.WAITING else made[::-1])


@pytest.mark.parametrize("text", ["shop.other", "mails", "job-7", "order:7"])
def test_a_row_is_found_by_task_queue_job_or_key(text) -> None:
    due()
    row = make(task="shop.other", queue="mails", task_id="job-7", idempotency_key="order:7")

    assert service.page(text=text, now=NOW).messages == [row]


@pytest.mark.parametrize(
    "cursor", ["", "x", "20261112T030000000000.0.x", "20261112T030000000000.0.0", "\x00"]
)
def test_a_cursor_that_was_not_made_here_is_refused(cursor) -> None:
    with pytest.raises(OutboxRefused, match="is not a place in this list"):
        service.page(cursor=cursor, now=NOW)


def test_a_list_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(OutboxRefused, match="'sent' is no list of the outbox"):
        service.page(view="sent", now=NOW)


def test_retry_now_makes_a_refused_row_due_and_is_audited() -> None:
    row = refused()

    retried = service.retry_now(ids=[row.uuid], actor=OPERATOR, now=NOW)

    row.refresh_from_db()
    assert (retried.count, retried.refused, row.available_at, row.attempts) == (1, (), NOW, 3)
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.text) == ("night watch", "asked for 1 outbox message to be sent at once")


@pytest.mark.parametrize(
    ("make_one", "said"),
    [
        (in_grace, "it is being sent at this moment"),
        (being_sent, "it is being sent at this moment"),
        (held, "its job starts at 2026-11-12 05:00:00 UTC"),
        (published, "it is published as job"),
        (given_up, "its dead letter is not here any more"),
    ],
)
def test_retry_now_of_a_row_in_another_state_is_refused_and_says_why(make_one, said) -> None:
    row = make_one()
    before = OutboxMessage.objects.values().get()

    with pytest.raises(OutboxRefused, match=said):
        service.retry_now(ids=[row.uuid], actor=OPERATOR, now=NOW)

    assert OutboxMessage.objects.values().get() == before
    assert AuditEntry.objects.count() == 0


def test_a_given_up_row_names_its_dead_letter() -> None:
    from jobs.core.words import Reason
    from jobs.outbox.letters import bury

    row = refused()
    bury("default", [row.pk], reason=Reason.PUBLISH_FAILED, now=NOW)
    row.refresh_from_db()
    letter = service.letter_of(row)

    assert letter is not None
    with pytest.raises(
        OutboxRefused, match=f"is dead letter {letter.short_id} now. Replay that letter instead"
    ):
        service.retry_now(ids=[row.uuid], actor=OPERATOR, now=NOW)


def test_retry_now_of_some_does_what_can_be_done_and_says_what_cannot() -> None:
    gone = uuid.uuid4()

    retried = service.retry_now(
        ids=[refused().uuid, published().uuid, gone, late().uuid], actor=OPERATOR, now=NOW
    )

    assert retried.count == 2
    assert ["published as job" in why or "not here any more" in why for why in retried.refused] == [
        True,
        True,
    ]


def test_retry_now_of_nothing_is_refused() -> None:
    with pytest.raises(OutboxRefused, match="no outbox message was named"):
        service.retry_now(ids=[], actor=OPERATOR, now=NOW)


def test_retry_all_makes_due_what_is_stuck_and_leaves_what_is_being_sent_or_held() -> None:
    rows = {make_one: make_one() for make_one in ALL}

    retried = service.retry_all_now(actor=OPERATOR, now=NOW)

    assert retried.count == 2
    changed = {
        make_one
        for make_one, row in rows.items()
        if OutboxMessage.objects.get(pk=row.pk).available_at != row.available_at
    }
    assert changed == {late, refused}


def test_retry_all_with_nothing_stuck_is_refused() -> None:
    due()

    with pytest.raises(OutboxRefused, match="no outbox message is stuck"):
        service.retry_all_now(actor=OPERATOR, now=NOW)
