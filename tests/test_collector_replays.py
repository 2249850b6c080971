"""What comes back from replayed jobs, in any order, and what it makes of letters, items and groups."""

from __future__ import annotations

import itertools
import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.collector.storing import DIED_EVENTS, store
from jobs.core.words import GroupState, ItemState, LedgerState, LetterState, Reason
from jobs.models import DeadLetter, Death, FailureGroup, IdempotencyRecord, OperationEvent
from tests.factories import NOW, make_group, make_item, make_letter, make_operation, make_outcome, make_record

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

LATER = NOW + timedelta(minutes=5)


@pytest.fixture
def letter():
    return make_letter(state=LetterState.REPLAYING, replays=1)


@pytest.fixture
def item(letter):
    return make_item(make_operation(), letter)


def death_of(letter, item, **fields):
    values = {"task_id": item.task_id if item else "", "at": LATER.timestamp(), **fields}
    return make_record(replay_of=str(letter.uuid), replay_item=item.pk if item else None, **values)


def store_all(*records):
    for record in records:
        store([record], now=LATER)


def states(letter, *items):
    letter.refresh_from_db()
    for item in items:
        item.refresh_from_db()
    return (letter.state, *(item.state for item in items))


def test_a_done_outcome_resolves_the_letter(letter, item, settings):
    settings.JOBS_RESOLVED_RETENTION_DAYS = 30

    store([make_outcome(letter, item)], now=LATER)

    assert states(letter, item) == (LetterState.RESOLVED, ItemState.DONE)
    assert letter.state_changed_at == LATER
    assert letter.delete_after == LATER + timedelta(days=30)
    assert item.ended_at == LATER


def test_a_death_of_a_replay_is_one_more_death_of_the_same_letter(letter, item):
    record = death_of(letter, item, error="[Errno 32] Broken pipe", error_type="builtins.BrokenPipeError",
                      reason="retries_exhausted", worker="celery@web-2")  # fmt: skip

    store([record], now=LATER)

    assert states(letter, item) == (LetterState.DEAD, ItemState.DIED)
    assert (letter.deaths, letter.died_at, letter.first_died_at) == (2, LATER, NOW)
    assert (letter.reason, letter.error_type, letter.worker) == (
        Reason.RETRIES_EXHAUSTED,
        "BrokenPipeError",
        "celery@web-2",
    )
    assert DeadLetter.objects.count() == 1
    assert Death.objects.get(item=item).letter == letter


def test_a_letter_that_dies_of_another_bug_joins_its_group(letter, item):
    before = letter.group

    store([death_of(letter, item, error_type="shop.Other")], now=LATER)

    letter.refresh_from_db()
    assert letter.group != before
    assert letter.group.error_type == "shop.Other"


def test_the_death_of_a_replay_is_in_the_log_of_its_operation(letter, item):
    store([death_of(letter, item)], now=LATER)

    event = OperationEvent.objects.get()
    assert (event.operation, event.kind, event.letter, event.at) == (item.operation, "died", letter, LATER)
    assert event.text == (
        f"{letter.short_id} shop.tasks.send_receipt died again: "
        "ConnectionRefusedError: [Errno 111] Connection refused"
    )


def test_a_log_names_so_many_deaths_and_no_more():
    operation = make_operation()
    group = make_group()
    letters = [make_letter(state="replaying", group=group) for _ in range(DIED_EVENTS + 5)]
    items = [make_item(operation, letter) for letter in letters]

    store([death_of(letter, item) for letter, item in zip(letters, items, strict=True)], now=LATER)

    assert OperationEvent.objects.count() == DIED_EVENTS
    assert {item.state for item in operation.items.all()} == {ItemState.DIED}


def test_a_record_that_comes_twice_counts_once(letter, item):
    record = death_of(letter, item)

    store_all(record, record)

    letter.refresh_from_db()
    assert letter.deaths == 2
    assert OperationEvent.objects.count() == 1


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["died", "died twice", "done", "revoked"])), ids="-".join
)
def test_the_order_of_the_records_makes_no_difference(letter, item, order):
    records = {
        "died": death_of(letter, item),
        "died twice": death_of(letter, item),
        "done": make_outcome(letter, item),
        "revoked": make_outcome(letter, item, reason="revoked"),
    }

    store_all(*(records[name] for name in order))

    assert states(letter, item) == (LetterState.RESOLVED, ItemState.DONE)
    assert letter.deaths == 3


@pytest.mark.parametrize("together", [True, False], ids=["in one batch", "one by one"])
@pytest.mark.parametrize("first", ["died", "revoked"])
def test_died_outranks_revoked(letter, item, first, together):
    records = [death_of(letter, item), make_outcome(letter, item, reason="revoked")]
    if first == "revoked":
        records.reverse()

    if together:
        store(records, now=LATER)
    else:
        store_all(*records)

    assert states(letter, item) == (LetterState.DEAD, ItemState.DIED)


@pytest.mark.parametrize(
    ("reason", "detail"),
    [("revoked", "It was revoked before it ran."), ("terminated", "It was terminated while it ran.")],
)
def test_a_replay_that_was_revoked_returns_the_letter(letter, item, reason, detail):
    store([make_outcome(letter, item, reason=reason)], now=LATER)

    assert states(letter, item) == (LetterState.DEAD, ItemState.UNKNOWN)
    assert item.detail == detail


def test_a_job_that_asked_to_be_ignored_is_done(letter, item):
    store([make_outcome(letter, item, reason="ignored")], now=LATER)

    assert states(letter, item) == (LetterState.RESOLVED, ItemState.DONE)
    assert item.detail == "It asked to be ignored."


def test_an_outcome_after_the_timeout_still_counts():
    letter = make_letter(state=LetterState.DEAD)
    item = make_item(make_operation(), letter, state=ItemState.UNKNOWN)

    store([make_outcome(letter, item)], now=LATER)

    assert states(letter, item) == (LetterState.RESOLVED, ItemState.DONE)


def test_a_death_after_the_timeout_still_counts():
    letter = make_letter(state=LetterState.DEAD)
    item = make_item(make_operation(), letter, state=ItemState.UNKNOWN)

    store([death_of(letter, item)], now=LATER)

    assert states(letter, item) == (LetterState.DEAD, ItemState.DIED)


def test_an_outcome_of_a_cancelled_operation_counts(letter):
    item = make_item(make_operation(state="cancelled", ended_at=NOW), letter)

    store([make_outcome(letter, item)], now=LATER)

    assert states(letter, item) == (LetterState.RESOLVED, ItemState.DONE)


@pytest.mark.parametrize("old_ended", ["died", "done"])
@pytest.mark.parametrize("old_first", [True, False])
def test_a_late_record_of_an_older_replay_leaves_the_newer_one_open(letter, old_ended, old_first):
    old = make_item(make_operation(), letter, state=ItemState.UNKNOWN)
    new = make_item(make_operation(), letter)
    late = death_of(letter, old) if old_ended == "died" else make_outcome(letter, old)

    if old_first:
        store([late], now=LATER)
        assert states(letter, old, new) == (LetterState.REPLAYING, old_ended, ItemState.SENT)
        store([make_outcome(letter, new)], now=LATER)
    else:
        store_all(make_outcome(letter, new), late)

    assert states(letter, old, new) == (LetterState.RESOLVED, old_ended, ItemState.DONE)


@pytest.mark.parametrize("order", [0, 1])
def test_done_of_an_older_replay_outranks_the_death_of_a_newer(letter, order):
    old = make_item(make_operation(), letter, state=ItemState.UNKNOWN)
    new = make_item(make_operation(), letter)
    records = [make_outcome(letter, old), death_of(letter, new)]

    store_all(*(records if order else reversed(records)))

    assert states(letter, old, new) == (LetterState.RESOLVED, ItemState.DONE, ItemState.DIED)


def test_a_death_leaves_a_purged_letter_purged():
    letter = make_letter(state=LetterState.PURGED)
    item = make_item(make_operation(), letter, state=ItemState.UNKNOWN)

    store([death_of(letter, item), make_outcome(letter, item)], now=LATER)

    assert states(letter, item) == (LetterState.PURGED, ItemState.DONE)
    assert letter.deaths == 2


def test_a_resolved_letter_without_a_done_item_dies_again():
    letter = make_letter(state=LetterState.RESOLVED, replays=1, delete_after=LATER)

    store([death_of(letter, None)], now=LATER)

    letter.refresh_from_db()
    assert (letter.state, letter.delete_after) == (LetterState.DEAD, None)


@pytest.mark.parametrize("replay_of", [str(uuid.UUID(int=7)), "no uuid", "x" * 10_000])
def test_the_death_of_a_letter_that_is_not_here_becomes_a_letter(replay_of):
    store([make_record(replay_of=replay_of, replay_item=99)], now=LATER)

    assert DeadLetter.objects.get().state == LetterState.DEAD


def test_an_outcome_of_a_letter_that_is_not_here_changes_nothing(letter, item):
    stored = store([make_outcome(letter, item, replay_of=str(uuid.UUID(int=7)))], now=LATER)

    assert stored.outcomes == 0
    assert states(letter, item) == (LetterState.REPLAYING, ItemState.SENT)


def test_an_outcome_of_a_letter_that_was_never_replayed_resolves_nothing():
    letter = make_letter()

    stored = store([make_outcome(letter, None)], now=LATER)

    assert stored.outcomes == 0
    assert states(letter) == (LetterState.DEAD,)


@pytest.mark.parametrize("task", ["shop.tasks.send_receipt", "shop.tasks.tell_warehouse"])
def test_the_outcome_of_a_job_that_copied_the_headers_of_a_replay_is_not_the_replays(letter, item, task):
    store([make_outcome(letter, item, task=task, task_id=str(uuid.uuid4()))], now=LATER)

    assert states(letter, item) == (LetterState.REPLAYING, ItemState.SENT)


@pytest.mark.parametrize("task", ["shop.tasks.send_receipt", "shop.tasks.tell_warehouse"])
def test_the_death_of_a_job_that_copied_the_headers_of_a_replay_is_a_letter_with_its_own_message(
    letter, item, task
):
    child = death_of(letter, item, task=task, task_id=str(uuid.uuid4()), kwargs={"order_id": 7})

    store([child], now=LATER)

    assert states(letter, item) == (LetterState.REPLAYING, ItemState.SENT)
    own = DeadLetter.objects.exclude(pk=letter.pk).get()
    assert bytes(own.message.body) == child.message.body
    assert letter.deaths == 1


def test_a_death_that_names_the_letter_of_a_stranger_is_a_letter_of_its_own():
    stranger = make_letter()

    store([death_of(stranger, None)], now=LATER)

    assert DeadLetter.objects.count() == 2
    stranger.refresh_from_db()
    assert stranger.deaths == 1


def test_a_job_that_was_replaced_under_its_id_ends_the_replay(letter, item):
    store([make_outcome(letter, item, task="shop.tasks.other")], now=LATER)

    assert states(letter, item) == (LetterState.RESOLVED, ItemState.DONE)


def test_an_item_of_another_letter_is_not_touched(letter, item):
    other = make_letter(state=LetterState.REPLAYING)
    others = make_item(make_operation(), other)

    store([make_outcome(letter, others)], now=LATER)

    assert states(letter, item) == (LetterState.REPLAYING, ItemState.SENT)
    assert states(other, others) == (LetterState.REPLAYING, ItemState.SENT)


def test_an_older_death_that_is_collected_late_is_not_the_newest(letter, item):
    record = death_of(letter, item, error="old")
    store(
        [make_record(replay_of=str(letter.uuid), at=NOW.timestamp() - 60, error="old")],
        now=LATER,
    )
    store([record], now=LATER)

    letter.refresh_from_db()
    assert (letter.died_at, letter.deaths) == (LATER, 3)


def test_a_group_is_resolved_with_its_last_open_letter():
    group = make_group()
    first, second = (make_letter(group=group, state=LetterState.REPLAYING) for _ in range(2))
    items = [make_item(make_operation(), letter) for letter in (first, second)]

    store([make_outcome(first, items[0])], now=LATER)
    group.refresh_from_db()
    assert group.state == GroupState.NEW

    store([make_outcome(second, items[1])], now=LATER)
    group.refresh_from_db()
    assert (group.state, group.resolved_at, group.resolved_by) == (GroupState.RESOLVED, LATER, None)


def test_a_resolved_group_regresses_with_the_next_death(letter, item):
    store([death_of(letter, item)], now=LATER)
    store([make_outcome(letter, item)], now=LATER)
    group = FailureGroup.objects.get(letters=letter)
    assert group.state == GroupState.RESOLVED

    store([make_record(at=LATER.timestamp() + 1)], now=LATER)

    group.refresh_from_db()
    assert group.state == GroupState.REGRESSED


def test_a_muted_group_is_not_resolved():
    letter = make_letter(group=make_group(state=GroupState.MUTED), state=LetterState.REPLAYING)

    store([make_outcome(letter, make_item(make_operation(), letter))], now=LATER)

    assert FailureGroup.objects.get().state == GroupState.MUTED


def test_many_outcomes_take_a_fixed_number_of_statements(django_assert_max_num_queries):
    group, operation = make_group(), make_operation()
    letters = [make_letter(group=group, state=LetterState.REPLAYING) for _ in range(40)]
    items = [make_item(operation, letter) for letter in letters]
    outcomes = [make_outcome(letter, item) for letter, item in zip(letters, items, strict=True)]

    with django_assert_max_num_queries(14):
        store(outcomes, now=LATER)

    assert DeadLetter.objects.filter(state=LetterState.RESOLVED).count() == 40


def line_of(letter, *, task_id="another-job", state=LedgerState.DONE, completed_at=NOW):
    """Write what the ledger knows of the letter's key."""
    return IdempotencyRecord.objects.create(
        task=letter.task,
        key=letter.idempotency_key,
        state=state,
        task_id=task_id,
        created_at=NOW,
        started_at=NOW,
        completed_at=completed_at,
        updated_at=NOW,
    )


@pytest.fixture
def keyed():
    return make_letter(state=LetterState.REPLAYING, replays=1, idempotency_key="receipt:5")


def test_a_job_whose_key_another_one_had_done_is_already_done(keyed):
    item = make_item(make_operation(), keyed)
    line_of(keyed)

    store([make_outcome(keyed, item)], now=LATER)

    assert states(keyed, item) == (LetterState.RESOLVED, ItemState.ALREADY_DONE)
    assert item.detail == "Job another-job had done its idempotency key; nothing ran."


def test_the_job_that_did_the_key_itself_is_done(keyed):
    item = make_item(make_operation(), keyed)
    line_of(keyed, task_id=item.task_id, completed_at=LATER)

    store([make_outcome(keyed, item)], now=LATER)

    assert states(keyed, item) == (LetterState.RESOLVED, ItemState.DONE)


def test_a_replay_under_the_old_id_of_a_key_done_before_is_already_done(keyed):
    item = make_item(make_operation(keeps_task_id=True), keyed, task_id=keyed.task_id)
    line_of(keyed, task_id=keyed.task_id, completed_at=item.sent_at - timedelta(minutes=1))

    store([make_outcome(keyed, item)], now=LATER)

    assert states(keyed, item) == (LetterState.RESOLVED, ItemState.ALREADY_DONE)


def test_a_key_that_nobody_has_done_says_nothing(keyed):
    item = make_item(make_operation(), keyed)
    line_of(keyed, state=LedgerState.FREE, completed_at=None)

    store([make_outcome(keyed, item)], now=LATER)

    assert states(keyed, item) == (LetterState.RESOLVED, ItemState.DONE)


def test_a_replay_with_other_arguments_had_another_key(keyed):
    item = make_item(make_operation(edited_arguments={"args": [6], "kwargs": {}}), keyed)
    line_of(keyed)

    store([make_outcome(keyed, item)], now=LATER)

    assert states(keyed, item) == (LetterState.RESOLVED, ItemState.DONE)


def test_a_key_that_was_done_outweighs_a_death(keyed):
    """A copy that lost its worker was delivered again, and found the key done."""
    item = make_item(make_operation(), keyed)
    line_of(keyed)

    store_all(death_of(keyed, item), make_outcome(keyed, item))

    assert states(keyed, item) == (LetterState.RESOLVED, ItemState.ALREADY_DONE)


def test_whether_keys_were_done_is_one_query_a_batch_and_none_without_a_key(keyed, letter):
    operation = make_operation()
    others = [
        make_letter(state=LetterState.REPLAYING, replays=1, idempotency_key=f"receipt:{number}")
        for number in range(10, 20)
    ]
    outcomes = [make_outcome(each, make_item(operation, each)) for each in [keyed, *others]]
    without = make_outcome(letter, make_item(operation, letter))

    with CaptureQueriesContext(connection) as with_keys:
        store(outcomes, now=LATER)
    with CaptureQueriesContext(connection) as without_keys:
        store([without], now=LATER)

    def asked(queries: CaptureQueriesContext) -> int:
        return sum("idempotencyrecord" in query["sql"] for query in queries)

    assert (asked(with_keys), asked(without_keys)) == (1, 0)
