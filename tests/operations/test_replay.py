"""A replay from its start to its report, on both databases and a real Redis."""

from __future__ import annotations

import pytest

from jobs import leases
from jobs.core.words import ItemState, LetterState, OperationState, Reason
from jobs.errors import LeaseLost
from jobs.models import AuditEntry, DeadLetter, Lease, Operation, OperationBatch, OperationItem
from jobs.operations import (
    OperationRefused,
    batches,
    cancel,
    continue_stage,
    pause,
    progress,
    resume,
    set_rate,
)
from jobs.operations.outcomes import give_up_overdue
from jobs.operations.runner import Runner
from tests.broker_side import Carrier, queued, report_death, report_done, take_all
from tests.factories import NOW, make_letter
from tests.operations.starting import MARA, letters, replay, states

pytestmark = pytest.mark.django_db


def test_a_replay_sends_each_letter_and_ends_with_a_report(carrier, clock, broker) -> None:
    letters(3)
    operation = replay(clock)

    carrier.until(lambda: len(queued(broker)) == 3)
    first, second, third = take_all(broker)
    report_done(first, now=clock.now)
    report_done(second, now=clock.now)
    report_death(third, now=clock.now)
    carrier.until_ended(operation)

    assert operation.state == OperationState.FINISHED
    assert operation.outcome == "Of 3 replayed: 2 done, 1 died again in 1 group."
    assert sorted(DeadLetter.objects.values_list("state", flat=True)) == ["dead", "resolved", "resolved"]
    assert AuditEntry.objects.get(action="replay").why == "fixed"


def test_what_died_after_the_freeze_is_not_sent_so_a_replay_that_dies_again_ends(
    carrier, clock, broker
) -> None:
    letters(2)
    operation = replay(clock)

    def die() -> None:
        for message in take_all(broker):
            report_death(message, now=clock.now)

    carrier.until_ended(operation, work=die)

    assert operation.outcome == "Of 2 replayed: 2 died again in 1 group."
    assert set(DeadLetter.objects.values_list("state", "replays")) == {("dead", 1)}


def test_a_batch_ends_before_its_messages_are_too_much_for_the_memory(
    carrier, clock, broker, monkeypatch
) -> None:
    for number, size in enumerate((100, 3_000, 3_000, 9_000, 100)):
        make_letter(kwargs={"order_id": number, "text": "x" * size}, death=False)
    operation = replay(clock)
    monkeypatch.setattr(batches, "BATCH_BYTES", 12_000)

    carrier.until(lambda: len(queued(broker)) == 5)

    numbers = OperationItem.objects.filter(operation=operation).order_by("pk").values_list("batch", flat=True)
    # The fourth is larger than a batch may be, and goes by itself.
    assert list(numbers) == [1, 1, 3, 4, 5]


def test_a_letter_without_its_message_is_refused_and_holds_up_nothing(carrier, clock, broker) -> None:
    lost, _ = letters(2)
    lost.message.delete()
    operation = replay(clock)

    carrier.until(lambda: len(queued(broker)) == 1)
    report_done(take_all(broker)[0], now=clock.now)
    carrier.until_ended(operation)

    why = "Its message is not there any more, so there is nothing to send."
    assert operation.outcome == f"Of 2 replayed: 1 done, 1 cannot be replayed. {why}"
    refused = OperationItem.objects.get(operation=operation, letter=lost)
    assert (refused.state, refused.detail) == ("refused", why)


def test_two_operations_on_the_same_letters_send_each_once_and_name_the_other(carrier, clock, broker) -> None:
    letters(5)
    first = replay(clock)
    second = replay(clock)

    carrier.until(lambda: len(queued(broker)) == 5)
    for message in take_all(broker):
        report_done(message, now=clock.now)
    carrier.until_ended(first)
    carrier.until_ended(second)

    assert queued(broker) == []
    assert first.outcome == "Of 5 replayed: 5 done."
    assert second.outcome == "Of 5 replayed: 5 skipped."
    details = set(OperationItem.objects.filter(operation=second).values_list("detail", flat=True))
    assert details == {f"already replaying in operation {first.pk}"}


def test_a_stage_passes_with_its_outcomes_and_the_next_one_starts(carrier, clock, broker) -> None:
    letters(8)
    operation = replay(clock, stages=(1, 3, None))

    carrier.until(lambda: len(queued(broker)) == 1)
    for _ in range(5):
        carrier.once()
        clock.advance(1)
    assert len(queued(broker)) == 1
    report_done(take_all(broker)[0], now=clock.now)
    carrier.until(lambda: len(queued(broker)) == 3)
    for message in take_all(broker):
        report_done(message, now=clock.now)
    carrier.until(lambda: len(queued(broker)) == 4)
    for message in take_all(broker):
        report_done(message, now=clock.now)
    carrier.until_ended(operation)

    assert operation.outcome == "Of 8 replayed: 8 done."
    rows = progress(operation, now=clock.now).stages
    assert [(row.sent, row.state) for row in rows] == [(1, "passed"), (3, "passed"), (4, "passed")]
    assert list(operation.events.order_by("id").values_list("kind", flat=True)) == [
        *("confirmed", "started", "stage", "passed", "stage", "passed", "stage", "passed", "finished"),
    ]


def test_a_staged_replay_stops_itself_above_its_limit_and_says_so(carrier, clock, broker) -> None:
    letters(10)
    operation = replay(clock, stages=(2, None), stop_above_percent=20)

    def die() -> None:
        for message in take_all(broker):
            report_death(message, now=clock.now)

    carrier.until_ended(operation, work=die)

    assert operation.state == OperationState.STOPPED
    assert operation.outcome == (
        "Stopped itself in stage 1: 2 of 2 died again, 100.0 %, limit 20 %. 8 letters are not sent."
    )
    assert DeadLetter.objects.filter(replays=0, state="dead").count() == 8


def test_a_stopped_replay_resumed_by_an_operator_goes_on_with_the_next_stage(carrier, clock, broker) -> None:
    letters(4)
    operation = replay(clock, stages=(2, None))
    carrier.until_ended(
        operation, work=lambda: [report_death(message, now=clock.now) for message in take_all(broker)]
    )

    resume(operation=operation, actor=MARA, now=clock.now)
    carrier.until(lambda: len(queued(broker)) == 2)
    for message in take_all(broker):
        report_done(message, now=clock.now)
    carrier.until_ended(operation)

    assert operation.outcome == "Of 4 replayed: 2 done, 2 died again in 1 group."


def test_the_rate_is_kept_without_bursts_and_can_be_changed_live(carrier, clock, broker) -> None:
    letters(60)
    operation = replay(clock, rate_per_second=10)

    sent_at_second = []
    for _ in range(4):
        for _ in range(10):
            carrier.once()
            clock.advance(0.1)
        sent_at_second.append(len(queued(broker)))
    set_rate(operation=operation, rate_per_second=100, actor=MARA, now=clock.now)
    for _ in range(10):
        carrier.once()
        clock.advance(0.1)

    steps = [b - a for a, b in zip([0, *sent_at_second], sent_at_second, strict=False)]
    assert all(8 <= step <= 11 for step in steps), steps
    assert len(queued(broker)) == 60


def test_a_late_runner_does_not_catch_up_in_one_burst(carrier, clock, broker) -> None:
    letters(50)
    replay(clock, rate_per_second=10)
    carrier.until(lambda: len(queued(broker)) == 1)

    clock.advance(60)
    before = len(queued(broker))
    carrier.once()

    assert len(queued(broker)) - before <= 5


def test_a_slow_replay_does_not_hold_up_a_fast_one(carrier, clock, broker) -> None:
    letters(30)
    letters(30, queue="default", task="shop.tasks.other")
    replay(clock, "queue:critical", rate_per_second=1)
    replay(clock, "queue:default")

    for _ in range(8):
        carrier.once()
        clock.advance(0.1)

    assert len(queued(broker, "default")) == 30
    assert len(queued(broker, "critical")) <= 2


def test_a_paused_replay_keeps_its_place_and_a_cancelled_one_what_was_sent(carrier, clock, broker) -> None:
    letters(20)
    operation = replay(clock, rate_per_second=5)
    carrier.until(lambda: len(queued(broker)) == 3)

    pause(operation=operation, actor=MARA, now=clock.now)
    for _ in range(20):
        carrier.once()
        clock.advance(1)
    assert len(queued(broker)) == 3

    resume(operation=operation, actor=MARA, now=clock.now)
    carrier.until(lambda: len(queued(broker)) >= 5)
    cancel(operation=operation, actor=MARA, now=clock.now)
    for _ in range(20):
        carrier.once()
        clock.advance(1)

    counts = progress(operation, now=clock.now)
    assert operation.state == OperationState.CANCELLED
    assert (counts.total, counts.waiting) == (20, len(queued(broker)))
    assert counts.sent + counts.not_sent == 20


def test_letters_that_cannot_be_replayed_are_refused_and_the_others_go(carrier, clock, broker) -> None:
    letters(1)
    letters(1, unreplayable="No copy of its message was kept.")
    letters(1, reason=Reason.EXPIRED)
    operation = replay(clock, keeps_task_id=True)

    carrier.until_ended(
        operation, work=lambda: [report_done(message, now=clock.now) for message in take_all(broker)]
    )

    assert operation.outcome == (
        "Of 3 replayed: 1 done, 2 cannot be replayed. It expired, and workers discard the id of an expired"
        " job for hours. Replay it under a new id. No copy of its message was kept."
    )
    refused = OperationItem.objects.filter(operation=operation, state=ItemState.REFUSED)
    assert refused.filter(detail__startswith="It expired").count() == 1
    assert DeadLetter.objects.filter(state="dead").count() == 2


def test_an_outcome_that_does_not_come_makes_the_letter_dead_again(carrier, clock, broker) -> None:
    letters(1)
    operation = replay(clock)
    carrier.until(lambda: len(queued(broker)) == 1)
    carrier.once()

    clock.advance(6 * 3600 - 60)
    assert give_up_overdue(now=clock.now) == 0
    clock.advance(120)
    assert give_up_overdue(now=clock.now) == 1
    carrier.until_ended(operation)

    assert operation.outcome == "Of 1 replayed: 1 with an unknown outcome."
    assert DeadLetter.objects.get().state == LetterState.DEAD
    assert "may have run" in OperationItem.objects.get().detail


def test_an_operator_can_stop_waiting_for_outcomes(carrier, clock, broker) -> None:
    letters(3)
    operation = replay(clock, stages=(1, None))
    with pytest.raises(OperationRefused, match="still sending"):
        continue_stage(operation=operation, actor=MARA, now=clock.now)
    carrier.until(lambda: len(queued(broker)) == 1)
    carrier.once()

    continue_stage(operation=operation, actor=MARA, now=clock.now)
    carrier.until(lambda: len(queued(broker)) == 3)
    carrier.once()
    continue_stage(operation=operation, actor=MARA, now=clock.now)
    carrier.until_ended(operation)

    # Neither is known to be done, and the last stage's share says so.
    assert operation.state in {OperationState.FINISHED, OperationState.STOPPED}
    assert set(states(operation)) == {"unknown"}


def test_a_late_outcome_of_an_unknown_item_still_counts(carrier, clock, broker) -> None:
    letters(1)
    operation = replay(clock)
    carrier.until(lambda: len(queued(broker)) == 1)
    carrier.once()
    continue_stage(operation=operation, actor=MARA, now=clock.now)

    report_done(take_all(broker)[0], now=clock.now)

    assert states(operation) == ["done"]
    assert DeadLetter.objects.get().state == LetterState.RESOLVED


@pytest.mark.parametrize("crash_after", ["claim", "publish"])
def test_a_batch_cut_off_by_a_crash_is_sent_once(carrier, clock, broker, monkeypatch, crash_after) -> None:
    letters(4)
    operation = replay(clock)

    class Crash(Exception): ...

    def crash(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        if crash_after == "claim":
            patch.setattr(batches, "send", crash)
        else:
            patch.setattr(batches.Batches, "_note_sent", crash)
        with pytest.raises(Crash):
            carrier.until(lambda: False)
    assert OperationBatch.objects.get().operation == operation
    assert len(queued(broker)) == (0 if crash_after == "claim" else 4)

    successor = Carrier.__new__(Carrier)
    successor.clock, successor.lease, successor.runner = (
        clock,
        carrier.lease,
        Runner(carrier.runner._connection),
    )
    successor.until(lambda: not OperationBatch.objects.exists())

    messages = queued(broker)
    assert len(messages) == 4
    assert set(states(operation)) == {"sent"}
    ids = dict(OperationItem.objects.values_list("pk", "task_id"))
    assert {message.headers["jobs-replay-item"]: message.headers["id"] for message in messages} == ids
    event = operation.events.get(kind="resumed_after_crash")
    expected = "none of its 4" if crash_after == "claim" else "none was sent again"
    assert expected in event.text


def test_jobs_that_ended_before_their_batch_was_noted_are_not_sent_again(
    carrier, clock, broker, monkeypatch
) -> None:
    letters(3)
    operation = replay(clock)

    class Crash(Exception): ...

    def crash(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(batches.Batches, "_note_sent", crash)
        with pytest.raises(Crash):
            carrier.until(lambda: False)
    first, *others = take_all(broker)
    report_done(first, now=clock.now)
    # As if the marker had run out: only the batch's row and the items say what is to be sent.
    with broker.client() as client:
        client.flushall()

    carrier.until(lambda: not OperationBatch.objects.exists())

    assert sorted(states(operation)) == ["done", "sent", "sent"]
    sent_again = {message.headers["jobs-replay-item"] for message in queued(broker)}
    assert sent_again == {message.headers["jobs-replay-item"] for message in others}


def test_a_batch_that_cannot_be_finished_holds_up_no_other_operation(
    carrier, clock, broker, monkeypatch
) -> None:
    letters(2)
    letters(2, queue="default")
    broken = replay(clock, "queue:critical")

    def crash(*_: object, **__: object) -> None:
        raise RuntimeError("the process ends between claim and publication")

    with monkeypatch.context() as patch:
        patch.setattr(batches, "send", crash)
        with pytest.raises(RuntimeError):
            carrier.until(lambda: False)

    def fail(operation: Operation, *arguments: object, **options: object) -> object:
        if operation.pk == broken.pk:
            raise RuntimeError("a message nobody foresaw")
        return original(operation, *arguments, **options)

    original = batches.prepare
    monkeypatch.setattr(batches, "prepare", fail)
    replay(clock, "queue:default")

    for _ in range(5):
        with pytest.raises(RuntimeError):
            carrier.once()

    assert len(queued(broker, "default")) == 2
    assert OperationBatch.objects.get().operation == broken
    monkeypatch.undo()
    carrier.until(lambda: not OperationBatch.objects.exists())
    assert set(states(broken)) == {"sent"}
    assert len(queued(broker, "critical")) == 2


def test_a_runner_without_its_lease_sends_nothing(carrier, clock, broker) -> None:
    letters(2)
    replay(clock)
    Lease.objects.filter(duty="operations").update(expires_at=NOW)
    assert leases.acquire(duty="operations", holder="runops-2", seconds=60) is not None

    with pytest.raises(LeaseLost):
        carrier.once()

    assert queued(broker) == []


def test_the_log_counts_one_letter_as_one(carrier, clock, broker) -> None:
    letters(1)
    operation = replay(clock)

    carrier.until_ended(
        operation, work=lambda: [report_done(message, now=clock.now) for message in take_all(broker)]
    )

    assert operation.events.get(kind="started").text == "Started: 1 letter"
