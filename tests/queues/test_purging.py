"""A purge loses no message: archived first, removed then, restorable until its deadline."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from kombu import Connection, Exchange, Queue

from jobs import leases
from jobs.audit import Actor
from jobs.broker import connect
from jobs.broker.lifting import Lifted
from jobs.core.words import GroupState, ItemState, LetterState, OperationState, QueueActionState, Reason
from jobs.errors import BrokerUnavailable, LeaseLost, QueueRefused
from jobs.models import AuditEntry, DeadLetter, Death, FailureGroup, OperationItem, QueueAction
from jobs.operations import start_restore
from jobs.queues import actions, purging
from jobs.queues.purging import Purger
from tests.broker_side import Carrier, Clock, queued
from tests.metrics_rows import make_boot
from tests.queues.messages import publish_old, publisher, send

MARA = Actor(name="mara")
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


@pytest.fixture
def now() -> datetime:
    """A moment after all that a test publishes first."""
    return datetime.now(UTC) + timedelta(minutes=1)


@pytest.fixture
def purger():
    purger = Purger(connect())
    yield purger
    purger.close()


@pytest.fixture
def lease():
    return leases.acquire(duty="queues", holder="runops-1", seconds=60)


def finish(purger: Purger, lease: leases.HeldLease, now: datetime, *, rounds: int = 100) -> None:
    for _ in range(rounds):
        if not purger.step(now=now, lease=lease):
            return
    raise AssertionError(f"a purge has not ended in {rounds} rounds")


def waiting_ids(broker, queue: str = "critical") -> list[str]:
    return [message.headers["id"] for message in queued(broker, queue)]


def purged_ids() -> set[str]:
    return set(DeadLetter.objects.filter(state=LetterState.PURGED).values_list("task_id", flat=True))


def test_what_waited_becomes_purged_letters_and_what_comes_later_stays(broker, purger, lease, now):
    with publisher(broker.url) as app:
        ids = send(app, count=3)
        ids += send(app, count=2, priority=9)
        action = actions.purge("critical", expected=5, actor=MARA, why="sent twice", now=now)
        later = send(app, count=2)

        finish(purger, lease, now)

    assert purged_ids() == set(ids)
    assert waiting_ids(broker) == later
    action.refresh_from_db()
    assert (action.state, action.taken, action.finished_at) == (QueueActionState.FINISHED, 5, now)
    letter = DeadLetter.objects.get(task_id=ids[0])
    assert (letter.reason, letter.queue, letter.task) == (
        Reason.REJECTED,
        "critical",
        "shop.tasks.send_receipt",
    )
    assert letter.delete_after == now + timedelta(days=7)
    assert "order_id=48000" in letter.arguments_preview
    assert Death.objects.get(letter=letter).details == {
        "purge": action.pk,
        "purged_by": "mara",
        "why": "sent twice",
    }
    with broker.client() as client:
        assert client.keys("jobs.purge*") == []


def test_a_purge_is_audited_and_is_an_operation_that_can_be_undone(broker, purger, lease, now):
    with publisher(broker.url) as app:
        ids = send(app, count=3)
    before = queued(broker)
    action = actions.purge("critical", expected=3, actor=MARA, why="sent twice", now=now)
    finish(purger, lease, now)
    action.refresh_from_db()

    clock = Clock(now + timedelta(seconds=1))
    restore = start_restore(operation=action.operation, actor=MARA, why="not twice at all", now=clock.now)
    Carrier(clock).until_ended(restore)

    assert set(DeadLetter.objects.filter(state=LetterState.DEAD).values_list("task_id", flat=True)) == set(
        ids
    )
    letter = DeadLetter.objects.get(task_id=ids[0])
    assert (bytes(letter.message.body), letter.message.headers) == (before[0].body, before[0].headers)
    assert letter.unreplayable == ""
    entry = AuditEntry.objects.get(action="purge_queue")
    assert (entry.text, entry.why) == (
        "started the purge of 3 waiting messages of the queue critical",
        "sent twice",
    )
    assert (action.operation.state, action.operation.changed_count) == (OperationState.FINISHED, 3)


def test_queues_with_a_key_prefix_and_odd_priorities_are_purged_and_looked_into(broker, settings, lease, now):
    options = {"global_keyprefix": "shop:", "priority_steps": [0, 5], "sep": ":"}
    settings.BROKER_TRANSPORT_OPTIONS = options
    with publisher(broker.url, broker_transport_options=options) as app:
        ids = [*send(app, count=2), *send(app, priority=7)]
        assert [message.task_id for message in actions.peek("critical").messages] == ids
        actions.purge("critical", expected=3, actor=MARA, why="", now=now)

        purger = Purger(connect())
        finish(purger, lease, now)
        purger.close()

    assert purged_ids() == set(ids)
    with broker.client() as client:
        assert [key for key in client.keys("*") if b"critical" in key and b"binding" not in key] == []


def test_a_purge_makes_no_failure_group_that_anybody_is_told_of(broker, purger, lease, now):
    with publisher(broker.url) as app:
        send(app, count=3)
    actions.purge("critical", expected=3, actor=MARA, why="", now=now)

    finish(purger, lease, now)

    assert [group.state for group in FailureGroup.objects.all()] == [GroupState.KNOWN]


def test_row_75_what_was_delivered_or_is_held_stays_and_is_counted_apart(broker, purger, lease, now):
    make_boot(queues=["critical"], last_seen_at=now, held={"critical": 1})
    with publisher(broker.url) as app:
        ids = send(app, count=5)
    with connect() as connection:
        for _ in range(2):
            connection.default_channel.basic_get("critical")

        action = actions.purge("critical", expected=5, actor=MARA, why="", now=now)
        finish(purger, lease, now)

        assert (action.expected, action.unacknowledged, action.held_by_workers) == (3, 2, 1)
        assert purged_ids() == set(ids[2:])
        with broker.client() as client:
            assert client.hlen("unacked") == 2


def test_rows_12_and_13_items_that_are_no_messages_are_archived_and_never_sent_again(
    broker, purger, lease, now
):
    items = [b"garbage", b'{"body":"e30=","headers":{}}', b"\xff\x00", json.dumps({"a": "[" * 300}).encode()]
    with broker.client() as client:
        client.lpush("critical", *items)
    with publisher(broker.url) as app:
        [sent] = send(app)
    actions.purge("critical", expected=5, actor=MARA, why="they end workers", now=now)

    finish(purger, lease, now)

    with broker.client() as client:
        assert client.llen("critical") == 0
    malformed = DeadLetter.objects.filter(reason=Reason.MALFORMED, state=LetterState.PURGED)
    assert malformed.count() == 4
    assert all(letter.unreplayable for letter in malformed)
    assert {b"garbage", b"\xff\x00"} <= {bytes(letter.message.body) for letter in malformed}
    assert purged_ids() == {"", sent}


class Crash(Exception):
    """The process ended."""


def crash(*_: object, **__: object) -> None:
    raise Crash


@pytest.mark.parametrize("step", ["before storing", "before removing", "before the operation is written"])
def test_a_crash_between_the_steps_of_a_purge_loses_and_doubles_nothing(
    broker, lease, now, monkeypatch, step
):
    with publisher(broker.url) as app:
        ids = send(app, count=30)
        ids += send(app, count=10, priority=9)
        action = actions.purge("critical", expected=40, actor=MARA, why="", now=now)
        monkeypatch.setattr(purging, "BATCH", 7)
        where = {
            "before storing": (purging, "archive"),
            "before removing": (Lifted, "forget"),
            "before the operation is written": (purging, "_begin"),
        }[step]
        crashes = 0
        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(*where, crash)
                # What ends a process is no error that a purge could note.
                patch.setattr(purging, "BrokerUnavailable", Crash)
                died = Purger(connect())
                try:
                    finish(died, lease, now)
                except Crash:
                    crashes += 1
                died.close()
            if crashes == 3 or step == "before the operation is written":
                break
            alive = Purger(connect())
            alive.step(now=now, lease=lease)
            alive.close()
        assert crashes
        later = send(app, count=2)
        finish(Purger(connect()), lease, now)

    assert purged_ids() == set(ids)
    assert DeadLetter.objects.count() == Death.objects.count() == 40
    assert waiting_ids(broker) == later
    action.refresh_from_db()
    assert (action.state, action.taken) == (QueueActionState.FINISHED, 40)


def test_a_second_runner_with_the_same_batch_removes_nothing_twice(broker, lease, now):
    with publisher(broker.url) as app:
        ids = send(app, count=10)
    lifted = [Lifted(connect(), queue="critical", name="jobs.purge.1", until=now) for _ in range(2)]
    assert [one.lift([10]) for one in lifted] == [10, 10]
    batches = [one.take(4) for one in lifted]

    assert lifted[0].forget(batches[0])
    assert not lifted[1].forget(batches[1])

    left = lifted[1].take(100)
    assert [one.headers["id"] for one in left] == ids[4:]
    for one in lifted:
        one.close()


def test_who_lost_the_duty_takes_nothing(broker, purger, lease, now):
    with publisher(broker.url) as app:
        ids = send(app, count=3)
    actions.purge("critical", expected=3, actor=MARA, why="", now=now)
    lease.release()

    with pytest.raises(LeaseLost):
        purger.step(now=now, lease=lease)

    assert waiting_ids(broker) == ids


def test_more_than_were_confirmed_are_put_back_where_they_were(broker, purger, lease, now):
    with publisher(broker.url) as app:
        ids = send(app, count=10)
        actions.purge("critical", expected=4, actor=MARA, why="", now=now)
        finish(purger, lease, now)

        later = send(app, count=1)
    assert purged_ids() == set(ids[:4])
    assert waiting_ids(broker) == [*ids[4:], *later]


@pytest.mark.parametrize(("ahead", "taken"), [(0, 3), (3_600, 4)], ids=["clocks agree", "a clock is ahead"])
def test_what_workers_took_meanwhile_is_not_made_up_for_by_what_came_later(
    broker, purger, lease, ahead, taken
):
    with connect() as connection:
        for number in range(5):
            publish_old(connection, "critical", seconds_ago=60 - ahead, headers={"id": f"before-{number}"})
        action = actions.purge("critical", expected=5, actor=MARA, why="", now=datetime.now(UTC))
        for _ in range(2):
            connection.default_channel.basic_get("critical")
        publish_old(connection, "critical", seconds_ago=-ahead, headers={"id": "after"})

        finish(purger, lease, datetime.now(UTC))

        action.refresh_from_db()
        assert (action.state, action.taken) == (QueueActionState.FINISHED, taken)
        assert waiting_ids(broker) == ["after"] * (4 - taken)


def test_a_replay_that_is_purged_before_it_ran_is_its_letter_again(broker, purger, lease, now):
    from jobs.operations import Selection, start_replay
    from tests.factories import make_letter

    letter = make_letter(queue="critical")
    clock = Clock(now)
    carrier = Carrier(clock)
    replay = start_replay(selection=Selection.of_ids([letter.uuid], now=now), actor=MARA, why="", now=now)
    carrier.until(lambda: waiting_ids(broker))
    actions.purge("critical", expected=1, actor=MARA, why="", now=clock.now)

    finish(purger, lease, clock.now)

    letter.refresh_from_db()
    assert (letter.state, letter.deaths) == (LetterState.PURGED, 2)
    assert DeadLetter.objects.count() == 1
    assert [item.state for item in OperationItem.objects.filter(operation=replay)] == [ItemState.DIED]


def test_compressed_and_odd_messages_are_kept_as_a_worker_would_see_them(broker, purger, lease, now):
    with publisher(broker.url) as app:
        [sent] = send(app, compression="zlib")
    with connect() as connection, connection.Producer() as producer:
        producer.publish(
            {"task": "shop.old", "id": "first-protocol", "args": [1], "kwargs": {}},
            serializer="json",
            routing_key="critical",
        )
        producer.publish(
            "x", headers={"task": "deep", "nested": json.loads("[" * 200 + "]" * 200)}, routing_key="critical"
        )
    actions.purge("critical", expected=3, actor=MARA, why="", now=now)

    finish(purger, lease, now)

    letter = DeadLetter.objects.get(task_id=sent)
    assert json.loads(bytes(letter.message.body))[1] == {"order_id": 48000}
    assert DeadLetter.objects.get(task_id="first-protocol").task == "shop.old"
    assert DeadLetter.objects.get(reason=Reason.MALFORMED).error.endswith("nested too deep.")


def test_what_cannot_be_purged_is_refused_and_says_why(broker, now):
    with publisher(broker.url) as app:
        send(app)
    refusals = {
        "no message waits": lambda: actions.purge("empty", expected=1, actor=MARA, why="", now=now),
        "not one that workers consume": lambda: actions.purge(
            "jobs.dead", expected=1, actor=MARA, why="", now=now
        ),
        "1 to 255 printable": lambda: actions.purge("a\nb", expected=1, actor=MARA, why="", now=now),
        "Nothing would be done": lambda: actions.purge("critical", expected=0, actor=MARA, why="", now=now),
        "Shorten it": lambda: actions.purge("critical", expected=1, actor=MARA, why="x" * 2_001, now=now),
    }

    for words, purge in refusals.items():
        with pytest.raises(QueueRefused, match=words):
            purge()

    assert not QueueAction.objects.exists()
    assert not AuditEntry.objects.exists()
    actions.purge("critical", expected=1, actor=MARA, why="", now=now)
    with pytest.raises(QueueRefused, match="a purge by mara goes on"):
        actions.purge("critical", expected=1, actor=MARA, why="", now=now)


def test_a_purge_of_an_unreachable_broker_changes_nothing(settings, now):
    settings.BROKER_URL = "redis://127.0.0.1:1/0"

    with pytest.raises(BrokerUnavailable):
        actions.purge("critical", expected=1, actor=MARA, why="", now=now)

    assert not QueueAction.objects.exists()


def test_a_purge_that_cannot_go_on_says_why_and_stops_no_other(broker, purger, lease, now, monkeypatch):
    with publisher(broker.url) as app:
        ids = [*send(app, "critical", count=1_100), *send(app, "critical", priority=9)]
        send(app, "low")
    first = actions.purge("critical", expected=1_101, actor=MARA, why="", now=now)
    second = actions.purge("low", expected=1, actor=MARA, why="", now=now)
    with monkeypatch.context() as patch:
        patch.setattr(purging, "_begin", lambda *_, **__: 1 / 0)
        purger.step(now=now, lease=lease)
    with publisher(broker.url) as app:
        later = send(app, "critical")
    finish(purger, lease, now)

    assert waiting_ids(broker) == [*ids[:-1], *later]
    assert len(actions.peek("critical", limit=100).messages) == 100
    assert actions.peek("critical").total == 1_102
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, first.error) == (QueueActionState.FAILED, "ZeroDivisionError: division by zero")
    assert (second.state, second.taken) == (QueueActionState.FINISHED, 1)


def test_a_transport_without_lists_is_purged_by_acknowledging_what_is_stored(
    settings, lease, now, monkeypatch
):
    settings.BROKER_URL = "memory://"
    queue = Queue("critical", Exchange(""), routing_key="critical")
    with Connection("memory://") as sender, sender.Producer() as producer:
        for number in range(20):
            producer.publish(
                [[], {}, {}],
                serializer="json",
                headers={"task": "shop.a", "id": f"job-{number}"},
                routing_key="critical",
                declare=[queue],
            )
        monkeypatch.setattr(purging, "BATCH", 6)
        action = actions.purge("critical", expected=15, actor=MARA, why="", now=now)
        finish(Purger(connect()), lease, now)
        left = sender.default_channel.queue_declare("critical", passive=True).message_count
        sender.default_channel.queue_purge("critical")

    action.refresh_from_db()
    assert (action.state, action.taken, left) == (QueueActionState.FINISHED, 15, 5)
    assert purged_ids() == {f"job-{number}" for number in range(15)}
