"""What the fast way left behind is published: all of it, once, whatever is away or dies."""

from __future__ import annotations

import base64
import json
import threading
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django.db import connection, transaction
from django.utils import timezone

from jobs import retention
from jobs.broker import connect
from jobs.broker.publish import PublishResult
from jobs.broker.publish import publish as really_publish
from jobs.core.words import LetterState, OutboxState, Reason
from jobs.errors import BrokerUnavailable
from jobs.models import DeadLetter, Death, OutboxMessage
from jobs.outbox import OutboxProducer, letters, relay, rows
from jobs.outbox.relay import Relayed, relay_batch
from tests.outbox.shop import payloads
from tests.servers import RedisServer, free_port

PENDING, PUBLISHED, GAVE_UP = OutboxState.PENDING, OutboxState.PUBLISHED, OutboxState.GAVE_UP


def leave(shop: Celery, number: int, **options: Any) -> OutboxMessage:
    """Write a row whose process died between the commit and the fast way; it is due."""
    before = set(OutboxMessage.objects.values_list("pk", flat=True))
    with suppress_fast_way():
        shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer(), **options)
    row = OutboxMessage.objects.exclude(pk__in=before).get()
    if row.claim is not None:
        OutboxMessage.objects.filter(pk=row.pk).update(available_at=timezone.now())
        row.refresh_from_db()
    return row


class suppress_fast_way:  # noqa: N801 - reads as a function
    """Let commits send nothing."""

    def __enter__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("jobs.outbox.commit._leave", lambda *_, **__: None)

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def run(*, now=None, rounds: int = 20, limit: int = relay.BATCH) -> list[Relayed]:
    """Relay until nothing is due; return what each batch did."""
    done = []
    with connect() as broker:
        for _ in range(rounds):
            relayed = relay_batch(broker, now=now or timezone.now(), limit=limit)
            if not relayed.total:
                break
            done.append(relayed)
    return done


def arrived(broker: RedisServer, queue: str = "celery") -> list[int]:
    with broker.client() as client:
        return [json.loads(base64.b64decode(each["body"]))[0][0] for each in payloads(client, queue)]


def states() -> dict[int, str]:
    return {json.loads(bytes(row.body))[0][0]: row.state for row in OutboxMessage.objects.order_by("pk")}


def test_row_88_what_a_dead_process_left_is_sent_in_its_order(database, shop, broker) -> None:
    for number in range(7):
        leave(shop, number)

    done = run(limit=3)

    assert [each.sent for each in done] == [3, 3, 1]
    assert arrived(broker) == list(range(7))
    assert states() == dict.fromkeys(range(7), PUBLISHED)
    assert set(OutboxMessage.objects.values_list("published_by", flat=True)) == {"relay"}
    assert not OutboxMessage.objects.filter(published_at=None).exists()


def test_nothing_due_asks_no_broker(database, settings) -> None:
    settings.BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"

    assert run() == []


def test_a_row_within_its_grace_is_not_taken(database, shop, broker) -> None:
    with suppress_fast_way():
        shop.tasks["outbox.add"].apply_async((1, 1), producer=OutboxProducer())

    assert run() == []
    assert [each.sent for each in run(now=timezone.now() + timedelta(seconds=16))] == [1]


def test_a_held_job_is_sent_when_it_is_due_and_not_before(database, shop, broker) -> None:
    row = leave(shop, 1, countdown=7200)
    assert row.eta is not None

    early = run(now=row.eta - timedelta(seconds=6))
    due = run(now=row.eta - timedelta(seconds=4))

    assert (early, [each.sent for each in due]) == ([], [1])
    with broker.client() as client:
        assert payloads(client)[0]["headers"]["eta"] == row.eta.isoformat()


def test_the_time_a_message_has_left_is_counted_from_its_publication(database, shop, broker) -> None:
    row = leave(shop, 1, expires=3600)
    OutboxMessage.objects.filter(pk=row.pk).update(expires_at=timezone.now() + timedelta(seconds=600))

    run()

    with broker.client() as client:
        (payload,) = payloads(client)
    assert 590_000 < int(payload["properties"]["expiration"]) <= 600_000


def test_row_37_an_expired_row_becomes_a_dead_letter_and_is_not_sent(database, shop, broker) -> None:
    row = leave(shop, 1, expires=10)
    leave(shop, 2)

    done = run(now=timezone.now() + timedelta(seconds=11))

    assert (sum(each.expired for each in done), sum(each.sent for each in done)) == (1, 1)
    assert arrived(broker) == [2]
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.state, letter.task_id) == (Reason.EXPIRED, LetterState.DEAD, row.task_id)
    assert letter.error.startswith("It expired at ")
    row.refresh_from_db()
    assert row.state == GAVE_UP


def test_an_outage_uses_no_attempt_and_the_rows_go_when_it_is_over(database, settings) -> None:
    server = RedisServer()
    settings.BROKER_URL = server.url
    from tests.outbox.shop import create

    shop = create(server.url)
    for number in range(3):
        leave(shop, number)
    for _ in range(5):
        with pytest.raises(BrokerUnavailable):
            run()
    assert set(OutboxMessage.objects.values_list("attempts", "state")) == {(0, PENDING)}

    server.start()
    try:
        run()

        assert arrived(server) == [0, 1, 2]
    finally:
        server.remove()


def test_a_broker_that_goes_while_a_batch_is_sent_gets_it_again_under_its_name(
    database, shop, broker, monkeypatch
) -> None:
    for number in range(3):
        leave(shop, number)

    def reply_lost(connection, messages, **options):
        really_publish(connection, messages, **options)
        raise BrokerUnavailable("the reply was lost")

    monkeypatch.setattr(relay, "publish", reply_lost)
    with pytest.raises(BrokerUnavailable):
        run()
    monkeypatch.undo()
    done = run()

    # Row 95: Redis had them already, and says so.
    assert [(each.sent, each.known) for each in done] == [(0, 3)]
    assert arrived(broker) == [0, 1, 2]
    assert set(states().values()) == {PUBLISHED}


def test_a_crash_of_the_fast_way_after_its_send_is_not_sent_again(
    database, shop, broker, monkeypatch
) -> None:
    monkeypatch.setattr("jobs.outbox.commit.rows.mark_published", lambda *_, **__: 1 / 0)
    with transaction.atomic():
        for number in range(3):
            shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer())
    monkeypatch.undo()
    assert arrived(broker) == [0, 1, 2]
    assert set(states().values()) == {PENDING}

    done = run(now=timezone.now() + timedelta(seconds=16))

    assert [(each.sent, each.known) for each in done] == [(0, 3)]
    assert arrived(broker) == [0, 1, 2]
    assert set(OutboxMessage.objects.values_list("state", "published_by")) == {(PUBLISHED, "commit")}


def test_a_fast_way_that_wakes_up_after_the_relay_sends_nothing(database, shop, broker) -> None:
    row = leave(shop, 1)
    run()
    messages = [
        rows.outgoing(relay._read("default", "id = %s", [row.pk])[0], now=timezone.now()),
    ]

    assert row.claim is not None
    with connect() as late:
        result = really_publish(late, messages, batch_key=rows.batch_key(row.claim))

    # Not sent, and not for it to say that it was.
    assert (result.already_sent, len(result.fenced)) == (False, 1)
    assert arrived(broker) == [1]


def test_a_fast_way_that_sends_while_the_relay_claims_is_believed(
    database, shop, broker, monkeypatch
) -> None:
    taken, other = leave(shop, 1), leave(shop, 2)

    def overtaken(connection, messages, *, fences, **options):
        monkeypatch.undo()
        assert taken.claim is not None
        row = relay._read("default", "id = %s", [taken.pk])[0]
        really_publish(
            connection, [rows.outgoing(row, now=timezone.now())], batch_key=rows.batch_key(taken.claim)
        )
        return really_publish(connection, messages, fences=fences, **options)

    monkeypatch.setattr(relay, "publish", overtaken)
    run()

    assert sorted(arrived(broker)) == [1, 2]
    assert set(states().values()) == {PUBLISHED}
    other.refresh_from_db()
    assert other.published_by == "relay"


def test_rows_of_one_transaction_go_in_several_batches(database, shop, broker) -> None:
    with suppress_fast_way(), transaction.atomic():
        for number in range(7):
            shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer())

    done = run(now=timezone.now() + timedelta(seconds=16), limit=3)

    assert [(each.sent, each.known) for each in done] == [(3, 0), (3, 0), (1, 0)]
    assert arrived(broker) == list(range(7))


def test_row_98_a_refused_row_waits_by_itself_and_holds_up_no_other(database, shop, broker) -> None:
    with broker.client() as client:
        client.set("no-list", "text")
    row = leave(shop, 1, queue="no-list")
    leave(shop, 2)

    done = run(rounds=1)

    assert [(each.sent, each.refused) for each in done] == [(1, 1)]
    assert arrived(broker) == [2]
    row.refresh_from_db()
    assert (row.state, row.attempts, row.claim) == (PENDING, 1, None)
    assert row.last_error.startswith("Redis did not take it: WRONGTYPE")
    # Full jitter below one second for the first.
    assert row.available_at <= timezone.now() + timedelta(seconds=1)


def test_a_row_that_is_refused_too_often_is_a_dead_letter_with_its_whole_message(
    database, shop, broker, settings
) -> None:
    settings.JOBS_OUTBOX_MAX_ATTEMPTS = 3
    with broker.client() as client:
        # kombu's list for the priorities 3 to 5.
        client.set("no-list\x06\x163", "text")
    row = leave(shop, 1, queue="no-list", priority=4, headers={"tenant": "blue", "id3": uuid.UUID(int=7)})
    now = timezone.now()

    done = [each for hours in range(5) for each in run(now=now + timedelta(hours=hours), rounds=1)]

    assert [(each.refused, each.gave_up) for each in done] == [(1, 0), (1, 0), (0, 1)]
    row.refresh_from_db()
    assert (row.state, row.attempts) == (GAVE_UP, 3)
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.task, letter.task_id) == (
        Reason.PUBLISH_FAILED,
        "outbox.add",
        row.task_id,
    )
    assert letter.error.startswith("Not published in 3 tries. The last one: Redis did not take it: WRONGTYPE")
    assert letter.queue == "no-list"
    assert letter.unreplayable == ""
    message = letter.message
    assert bytes(message.body) == bytes(row.body)
    assert message.headers["tenant"] == "blue"
    assert letter.priority == 4
    assert Death.objects.get().details["outbox"] == row.uuid.hex


def test_a_letter_and_the_state_of_its_row_are_one_transaction(database, shop, broker, monkeypatch) -> None:
    row = leave(shop, 1, expires=10)

    def crash(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("jobs.outbox.letters.insert_letters", crash)
    with suppress(ZeroDivisionError):
        run(now=timezone.now() + timedelta(seconds=11))

    row.refresh_from_db()
    assert (row.state, DeadLetter.objects.count()) == (PENDING, 0)


def test_a_batch_that_cannot_be_made_refuses_only_the_row_to_blame(database, shop, broker) -> None:
    leave(shop, 1)
    bad = leave(shop, 2)
    leave(shop, 3)
    # Nothing of ours writes this; somebody's hand might.
    with connection.cursor() as cursor:
        cursor.execute('UPDATE jobs_outboxmessage SET "declare" = %s WHERE id = %s', ["{no json", bad.pk])

    run(rounds=1)

    assert arrived(broker) == [1, 3]
    attempts, error = OutboxMessage.objects.values_list("attempts", "last_error").get(pk=bad.pk)
    assert (attempts, error.partition(":")[0]) == (1, "JSONDecodeError")


def test_large_bodies_make_smaller_batches(database, shop, broker, monkeypatch) -> None:
    monkeypatch.setattr(relay, "BATCH_BYTES", 3_000)
    for number in range(5):
        leave(shop, number, headers={"filler": "x" * 1_000})

    done = run()

    assert [each.sent for each in done] == [2, 2, 1] or [each.sent for each in done] == [1] * 5
    assert arrived(broker) == list(range(5))


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_row_96_interleaved_commits_skip_no_row(database, shop, broker) -> None:
    """An id that was given first becomes visible last: a relay that remembers the last id would skip it."""
    began, finish = threading.Event(), threading.Event()

    def slow() -> None:
        with suppress_fast_way(), transaction.atomic():
            shop.tasks["outbox.add"].apply_async((1, 1), producer=OutboxProducer())
            began.set()
            finish.wait(timeout=60)
        connection.close()

    thread = threading.Thread(target=slow)
    thread.start()
    assert began.wait(timeout=60)
    leave(shop, 2)
    later = timezone.now() + timedelta(seconds=60)
    first = run(now=later)
    finish.set()
    thread.join(timeout=60)
    second = run(now=later)

    assert ([each.sent for each in first], [each.sent for each in second]) == ([1], [1])
    assert arrived(broker) == [2, 1]
    ids = dict(OutboxMessage.objects.values_list("task_id", "pk"))
    assert len(ids) == 2


def test_row_97_two_relays_send_no_row_twice(database, shop, broker) -> None:
    with suppress_fast_way(), transaction.atomic():
        for number in range(400):
            shop.tasks["outbox.add"].apply_async((number, 1), producer=OutboxProducer())
    now = timezone.now() + timedelta(seconds=16)
    errors: list[Exception] = []
    sent: list[int] = []

    def work() -> None:
        try:
            sent.append(sum(each.sent for each in run(now=now, rounds=100, limit=20)))
        except Exception as error:  # noqa: BLE001 - handed to the test
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)

    assert errors == []
    assert sum(sent) == 400
    assert sorted(arrived(broker)) == list(range(400))
    assert set(states().values()) == {PUBLISHED}


def test_published_and_given_up_rows_are_deleted_after_their_time_and_waiting_ones_never(
    database, shop, broker, monkeypatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    for number in range(5):
        leave(shop, number)
    run()
    leave(shop, 10, expires=1)
    run(now=timezone.now() + timedelta(seconds=2))
    leave(shop, 20)
    now = timezone.now()

    early = retention.delete_outbox(now=now + timedelta(hours=23))
    due = retention.delete_outbox(now=now + timedelta(hours=25))

    assert (early, due) == (0, 6)
    assert states() == {20: PENDING}
    assert DeadLetter.objects.count() == 1


def test_the_outage_of_a_broker_while_rows_are_sent_one_by_one_is_an_outage(
    database, shop, broker, monkeypatch
) -> None:
    """No row is blamed for it."""
    for number in range(3):
        leave(shop, number)
    answers = iter([RuntimeError("no batch"), None, BrokerUnavailable("away")])

    def failing(connection, messages, **options):
        if (error := next(answers)) is not None:
            raise error
        return really_publish(connection, messages, **options)

    monkeypatch.setattr(relay, "publish", failing)
    with pytest.raises(BrokerUnavailable):
        run(rounds=1)
    monkeypatch.undo()

    assert set(OutboxMessage.objects.values_list("attempts", "state")) == {(0, PENDING)}


def test_a_row_that_is_refused_by_itself_says_why(database, shop, broker, monkeypatch) -> None:
    with broker.client() as client:
        client.set("no-list", "text")
    good, bad = leave(shop, 1), leave(shop, 2, queue="no-list")
    answers = iter([RuntimeError("no batch")])

    def failing(connection, messages, **options):
        if (error := next(answers, None)) is not None:
            raise error
        return really_publish(connection, messages, **options)

    monkeypatch.setattr(relay, "publish", failing)
    run(rounds=1)

    good.refresh_from_db()
    bad.refresh_from_db()
    assert (good.state, bad.attempts) == (PUBLISHED, 1)
    assert bad.last_error.startswith("Redis did not take it: WRONGTYPE")


def test_a_cut_off_batch_that_expired_meanwhile_becomes_dead_letters(
    database, shop, broker, monkeypatch
) -> None:
    leave(shop, 1, expires=60)
    monkeypatch.setattr(relay, "publish", lambda *_, **__: 1 / 0)
    with monkeypatch.context() as patch:
        patch.setattr(relay, "_publish", lambda *_, **__: 1 / 0)
        with suppress(ZeroDivisionError):
            run()
    monkeypatch.undo()

    (done,) = run(now=timezone.now() + timedelta(seconds=120))

    assert (done.expired, done.sent) == (1, 0)
    assert DeadLetter.objects.get().reason == Reason.EXPIRED


def test_a_cut_off_batch_that_was_sent_before_it_expired_is_only_marked(
    database, shop, broker, monkeypatch
) -> None:
    leave(shop, 1, expires=60)
    with monkeypatch.context() as patch:
        patch.setattr(relay, "_finish", lambda *_, **__: 1 / 0)
        with suppress(ZeroDivisionError):
            run()

    (done,) = run(now=timezone.now() + timedelta(seconds=120))

    assert (done.known, done.expired) == (1, 0)
    assert (arrived(broker), DeadLetter.objects.count()) == ([1], 0)


def test_a_row_that_somebody_deleted_while_it_was_refused_is_no_trouble(
    database, shop, broker, monkeypatch
) -> None:
    row = leave(shop, 1)
    refusal = PublishResult(refused={0: "no"})

    def deletes(*_: Any, **__: Any) -> PublishResult:
        OutboxMessage.objects.filter(pk=row.pk).delete()
        return refusal

    monkeypatch.setattr(relay, "publish", deletes)

    assert [each.refused for each in run(rounds=1)] == [1]
    assert DeadLetter.objects.count() == 0


def test_headers_that_no_letter_can_hold_do_not_keep_a_row_from_being_buried(
    database, shop, broker, monkeypatch
) -> None:
    row = leave(shop, 1, expires=10)
    real, calls = letters.insert_letters, []

    def refuses_headers(records, **options):
        calls.append(records[0].message.headers)
        if records[0].message.headers:
            raise ValueError("message.headers is nested too deep")
        return real(records, **options)

    monkeypatch.setattr(letters, "insert_letters", refuses_headers)
    run(now=timezone.now() + timedelta(seconds=11))

    assert (len(calls), calls[1]) == (2, {})
    assert DeadLetter.objects.get().task_id == row.task_id
