"""Records become letters, deaths and groups: whole, once, in one transaction a batch."""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta

import pytest
from django.db import OperationalError, connection

from jobs.agent.wire import CONTENT_TYPE, DEAD_QUEUE, encode, from_json_value
from jobs.broker import connect
from jobs.broker.inbox import Inbox, Taken
from jobs.collector import Collector, insert_letters
from jobs.collector.storing import store
from jobs.core.words import GroupState, LetterState, Reason
from jobs.models import DeadLetter, Death, FailureGroup
from tests.factories import NOW, TRACEBACK, make_record, make_taken

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


class ListInbox:
    """An inbox whose broker is a list: what is not acknowledged is delivered again."""

    def __init__(self, *taken: Taken) -> None:
        self.waiting = list(taken)

    def take(self, limit: int, wait_seconds: float) -> list[Taken]:
        return self.waiting[:limit]

    def ack(self, taken: list[Taken]) -> None:
        self.waiting = self.waiting[len(taken) :]


def collect(*taken: Taken) -> ListInbox:
    inbox = ListInbox(*taken)
    Collector(inbox).collect(now=NOW)
    return inbox


def test_a_death_becomes_a_letter_with_the_exact_message():
    body = b'[[], {"order_id": 48213, "note": "\xc3\xa9\\ud800"}, {"chain": []}]'
    headers = {"task": "shop.tasks.send_receipt", "id": "j-1", "z": "\x00", "b": {"__bytes__": "AP8="}}
    record = make_record(
        task_id="j-1",
        message={"body": body, "headers": headers, "properties": {"priority": 6, "correlation_id": "j-1"}},
    )

    collect(make_taken(record))

    letter = DeadLetter.objects.get()
    assert bytes(letter.message.body) == body
    assert list(letter.message.headers.items()) == list(headers.items())
    assert from_json_value(letter.message.headers)["b"] == b"\x00\xff"
    assert (letter.task, letter.task_id, letter.queue, letter.priority) == (
        "shop.tasks.send_receipt",
        "j-1",
        "critical",
        6,
    )
    assert (letter.state, letter.reason, letter.deaths) == (LetterState.DEAD, Reason.FAILED, 1)
    assert (letter.error_type, letter.error) == ("ConnectionRefusedError", "[Errno 111] Connection refused")
    assert (letter.died_at, letter.first_died_at, letter.state_changed_at) == (NOW, NOW, NOW)
    assert letter.unreplayable == ""


def test_a_death_keeps_its_traceback_worker_and_times():
    collect(make_taken(make_record(attempt=3, details={"signal": "SIGKILL"})))

    death = Death.objects.get()
    assert "mailer.send(order.email" in death.traceback
    assert (death.attempt, death.worker, death.boot_id) == (3, "celery@web-1", "boot-1")
    assert death.started_at == NOW - timedelta(seconds=1)
    assert death.published_at == NOW - timedelta(seconds=2)
    assert death.details == {"signal": "SIGKILL"}


def test_arguments_are_named_masked_and_searchable():
    record = make_record(
        args=[48213, {"currency": "EUR"}], kwargs={"card_token": "tok_1"}, parameters=["order_id", "amount"]
    )

    collect(make_taken(record))

    letter = DeadLetter.objects.get()
    assert letter.arguments_preview == "order_id=48213"
    assert letter.arguments_text == "\norder_id=48213\n\namount.currency=EUR\n"


def test_keys_of_the_setting_are_masked_too(settings):
    settings.JOBS_MASKED_KEYS = ["iban"]

    collect(make_taken(make_record(kwargs={"IBAN": "DE00", "n": 1})))

    assert DeadLetter.objects.get().arguments_text == "\nn=1\n"


def test_the_idempotency_key_is_taken_from_its_header():
    collect(make_taken(make_record(message={"headers": {"jobs-idempotency-key": "receipt:48213"}})))

    assert DeadLetter.objects.get().idempotency_key == "receipt:48213"


def test_the_same_record_twice_is_one_death():
    taken = make_taken(make_record())

    collect(taken, taken)
    collect(taken)

    assert (DeadLetter.objects.count(), Death.objects.count()) == (1, 1)


def test_two_attempts_of_one_publication_are_two_deaths():
    collect(
        make_taken(make_record(publication_id="p")), make_taken(make_record(publication_id="p", attempt=1))
    )

    assert Death.objects.count() == 2


def test_a_batch_is_a_fixed_number_of_statements(django_assert_max_num_queries):
    # 28 rows is what one INSERT of Django's takes on SQLite; a batch may need several of those.
    few = [make_record(error_type=f"shop.Error{n}") for n in range(2)]
    many = [make_record(error_type=f"shop.Error{n}") for n in range(20)]

    with django_assert_max_num_queries(12):
        store(few, now=NOW)
    with django_assert_max_num_queries(12):
        store(many, now=NOW)

    assert DeadLetter.objects.count() == 22


def test_the_same_bug_with_other_data_is_one_group():
    other = make_record(error="[Errno 111] Connection refused by 10.0.0.7")
    traceback = TRACEBACK.replace("line 31", "line 77").replace("/app/", "/srv/shop/releases/20261101/")
    moved = make_record(traceback=traceback)

    collect(make_taken(other), make_taken(moved))

    group = FailureGroup.objects.get()
    assert group.title == "ConnectionRefusedError: [Errno 111] Connection refused by"
    assert (group.task, group.state) == ("shop.tasks.send_receipt", GroupState.NEW)


def test_a_group_knows_when_it_was_first_and_last_seen():
    early, late = (NOW - timedelta(hours=2)).timestamp(), (NOW - timedelta(hours=1)).timestamp()

    collect(make_taken(make_record(at=late)))
    collect(make_taken(make_record(at=early)), make_taken(make_record()))

    group = FailureGroup.objects.get()
    assert group.first_seen_at == NOW - timedelta(hours=2)
    assert group.last_seen_at == NOW


def test_a_resolved_group_regresses_when_one_dies_after_that():
    collect(make_taken(make_record(at=NOW.timestamp() - 100)))
    FailureGroup.objects.update(state=GroupState.RESOLVED, resolved_at=NOW - timedelta(seconds=50))

    collect(make_taken(make_record(at=NOW.timestamp() - 10)))

    group = FailureGroup.objects.get()
    assert (group.state, group.regressed_at) == (GroupState.REGRESSED, NOW - timedelta(seconds=10))


def test_a_death_from_before_the_resolution_does_not_regress_the_group():
    collect(make_taken(make_record(at=NOW.timestamp() - 100)))
    FailureGroup.objects.update(state=GroupState.RESOLVED, resolved_at=NOW - timedelta(seconds=50))

    collect(make_taken(make_record(at=NOW.timestamp() - 60)))

    assert FailureGroup.objects.get().state == GroupState.RESOLVED


def test_a_muted_group_stays_muted():
    collect(make_taken(make_record()))
    FailureGroup.objects.update(state=GroupState.MUTED)

    collect(make_taken(make_record()))

    assert FailureGroup.objects.get().state == GroupState.MUTED


def test_an_ending_that_is_no_death_leaves_no_row():
    inbox = collect(make_taken(make_record(kind="ending", reason="revoked", has_message=False)))

    assert inbox.waiting == []
    assert DeadLetter.objects.count() == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"has_message": False}, "No copy of its message was kept, so there is nothing to send."),
        ({"message": {"body": b""}}, "Its message has no body, so there is nothing to send."),
        (
            {"reason": "malformed", "message": {"queue": ""}},
            "The queue it came from is not known, and its message is broken.",
        ),
        ({"reason": "malformed"}, ""),
        ({"reason": "undecodable", "message": {"body": b"\x80\x04"}}, ""),
        ({"reason": "unregistered"}, ""),
        ({"message": {"content_type": "application/data"}}, ""),
        ({"message": {"content_type": "application/x-python-serialize"}}, ""),
    ],
)
def test_a_letter_says_why_it_cannot_be_replayed(fields, reason):
    record = make_record(**fields)

    collect(make_taken(record))

    assert DeadLetter.objects.get().unreplayable == reason


@pytest.mark.parametrize(
    "taken",
    [
        Taken(body=b"garbage\x00\xff", problem="not an envelope of kombu's"),
        Taken(body=b"{not json", content_type=CONTENT_TYPE),
        Taken(body=b"[]", content_type=CONTENT_TYPE),
        Taken(body=b'{"v": 2}', content_type=CONTENT_TYPE),
        Taken(body=b'{"v": 1, "kind": "death"}', content_type=CONTENT_TYPE),
        Taken(body=b"[" * 100_000, content_type=CONTENT_TYPE),
        Taken(body=b"hello", content_type="text/plain", headers={"x": b"\x00\xff"}),
        Taken(body=b""),
    ],
    ids=["no envelope", "no json", "no object", "version", "incomplete", "deep", "foreign", "empty"],
)
def test_what_is_no_record_becomes_a_malformed_letter_that_holds_it(taken):
    inbox = collect(taken)

    letter = DeadLetter.objects.get()
    assert (letter.reason, bytes(letter.message.body)) == (Reason.MALFORMED, taken.body)
    assert letter.error.startswith("A record on jobs.dead could not be read: ")
    assert letter.unreplayable
    assert inbox.waiting == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", ["x"]),
        ("kind", "birth"),
        ("at", None),
        ("at", "yesterday"),
        ("publication_id", ""),
        ("worker", 5),
        ("message", {"body": "AA=="}),
        ("message", "x"),
        ("error", {"type": 1, "message": "", "traceback": ""}),
    ],
)
def test_a_record_with_a_field_of_another_type_is_kept_as_malformed(field, value):
    raw = json.dumps({**json.loads(encode(make_record())), field: value}).encode()

    collect(Taken(body=raw, content_type=CONTENT_TYPE))

    letter = DeadLetter.objects.get()
    assert (letter.reason, bytes(letter.message.body)) == (Reason.MALFORMED, raw)


@pytest.mark.parametrize(
    ("field", "value", "column", "expected"),
    [
        ("attempt", "x", "attempt", 0),
        ("attempt", 2**40, "attempt", 0),
        ("started_at", "soon", "started_at", None),
        ("started_at", 1e300, "started_at", None),
        ("published_at", float("nan"), "published_at", None),
        ("started_at", 10**400, "started_at", None),
        ("at", 4e9, "died_at", NOW),
        ("at", -1e18, "died_at", NOW),
        ("details", [1], "details", {}),
    ],
)
def test_a_field_that_can_be_left_out_is(field, value, column, expected):
    raw = json.dumps({**json.loads(encode(make_record())), field: value}).encode()

    collect(Taken(body=raw, content_type=CONTENT_TYPE))

    assert getattr(Death.objects.get(), column) == expected
    assert DeadLetter.objects.get().reason == Reason.FAILED


def nested(depth: int) -> dict:
    value: dict = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


# At each depth another walk over the headers met Python's limit, and the collector its end.
@pytest.mark.parametrize("depth", [101, 330, 480, 700, 950])
@pytest.mark.parametrize("where", ["headers", "properties"])
def test_a_record_whose_message_nests_too_deep_is_kept_as_bytes_and_stops_nothing(depth, where):
    text = encode(make_record(message={where: {"x": "DEEP"}})).decode()
    body = text.replace('"DEEP"', '{"a":' * depth + "1" + "}" * depth).encode()
    taken = Taken(body=body, content_type=CONTENT_TYPE)

    inbox = collect(taken, make_taken(make_record(task="shop.tasks.next")))

    assert not inbox.waiting
    letter = DeadLetter.objects.get(task="")
    assert (letter.reason, bytes(letter.message.body)) == (Reason.MALFORMED, body)
    assert "nested" in letter.error or "recursion" in letter.error


@pytest.mark.parametrize("depth", [101, 330, 480, 700, 950])
def test_a_message_whose_headers_nest_too_deep_stops_nothing(depth):
    body = b"[[], {}, {}]"

    inbox = collect(
        Taken(body=body, headers={"task": "t", "x": nested(depth)}, content_type="application/json")
    )

    assert not inbox.waiting
    letter = DeadLetter.objects.get()
    assert (letter.reason, bytes(letter.message.body)) == (Reason.MALFORMED, body)
    assert letter.message.headers == {"task": "t", "x": "(nested deeper than 100 levels)"}


def test_headers_that_nest_as_deep_as_allowed_are_kept_whole():
    collect(make_taken(make_record(message={"headers": {"x": nested(99)}})))

    assert DeadLetter.objects.get().message.headers == {"x": nested(99)}


def test_two_unreadable_records_with_one_body_are_two_letters():
    first = Taken(body=b"{}", headers={"x": 1}, content_type="text/plain")
    second = Taken(body=b"{}", headers={"x": 2}, content_type="text/plain")

    collect(first, second, first)

    assert sorted(letter.message.headers["x"] for letter in DeadLetter.objects.all()) == [1, 2]


def test_a_reason_of_a_newer_agent_does_not_lose_the_letter():
    collect(make_taken(make_record(reason="evaporated")))

    death = Death.objects.get()
    assert (death.reason, death.details) == (Reason.FAILED, {"reason": "evaporated"})


@pytest.mark.parametrize(
    "text",
    [
        "\x00nul",
        "\ud800 lone",
        "a" * 10_000,
        "<script>alert(1)</script>",
        "\u202egnp.exe",
        "\x1b[2J",
        "🙂" * 300,
    ],
)
def test_hostile_text_fits_every_column(text):
    record = make_record(
        task=text, task_id=text, worker=text, publication_id=text, root_id=text, parent_id=text, boot_id=text,
        error=text, error_type=text, traceback=text, kwargs={text: text},
        details={text: [text, {"n": float("inf"), "big": 10**30}]},
        message={
            "content_type": text, "queue": text, "exchange": text, "routing_key": text,
            "headers": {text: text, "jobs-idempotency-key": text}, "properties": {"priority": 10**9, text: text},
        },
    )  # fmt: skip

    collect(make_taken(record))

    letter = DeadLetter.objects.get()
    assert letter.reason == Reason.FAILED
    assert letter.message.headers == record.message.headers
    assert len(letter.task) <= 255
    assert not set(letter.task + letter.error) & set("\x00\x1b\ud800")


def test_two_long_names_that_differ_at_their_end_stay_different():
    collect(make_taken(make_record(task="t" * 9_999 + "a")), make_taken(make_record(task="t" * 9_999 + "b")))

    first, second = DeadLetter.objects.values_list("task", flat=True)
    assert first != second
    assert len(first) == len(second) == 255


def test_a_traceback_of_a_megabyte_keeps_its_beginning_and_its_end():
    line = '  File "/app/deep.py", line 1, in f\n    f()\n'
    traceback = f"Traceback (most recent call last):\n{line * 24_000}RecursionError: too deep\n"

    collect(make_taken(make_record(traceback=traceback)))

    stored = Death.objects.get().traceback
    assert len(stored) <= 256 * 1024
    assert stored.startswith("Traceback (most recent call last):")
    assert stored.endswith("RecursionError: too deep\n")
    assert "characters left out" in stored


def test_a_record_that_the_database_refuses_blocks_no_other_and_is_kept(caplog):
    """A trigger refuses one worker's name; the others, before and after it, are written."""
    refuse_worker("celery@refused")
    good = [make_taken(make_record()) for _ in range(3)]
    bad = make_taken(make_record(worker="celery@refused"))

    inbox = collect(good[0], bad, *good[1:])

    assert inbox.waiting == []
    kept = DeadLetter.objects.get(reason=Reason.MALFORMED)
    assert bytes(kept.message.body) == bad.body
    assert DeadLetter.objects.filter(reason=Reason.FAILED).count() == 3


def refuse_worker(name: str) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("ALTER TABLE jobs_deadletter ADD CONSTRAINT refused CHECK (worker <> %s)", [name])
        else:
            cursor.execute(
                "CREATE TEMP TRIGGER refused BEFORE INSERT ON jobs_deadletter "
                f"WHEN NEW.worker = '{name}' BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )


def test_a_database_that_is_away_leaves_the_batch_on_the_broker():
    inbox = ListInbox(make_taken(make_record()))
    collector = Collector(inbox)

    with connection.execute_wrapper(away), pytest.raises(OperationalError):
        collector.collect(now=NOW)

    assert len(inbox.waiting) == 1


def away(execute, sql, params, many, context):
    if "jobs_failuregroup" in sql:
        raise OperationalError("the database is away")
    return execute(sql, params, many, context)


def test_a_message_out_of_a_dead_letter_exchange_is_understood():
    body = json.dumps([[1], {}, {}]).encode()
    taken = Taken(
        body=body,
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "task": "shop.tasks.add",
            "id": "j-7",
            "root_id": "r-1",
            "retries": 2,
            "jobs-publication": "pub-7",
            "x-death": [
                {
                    "reason": "delivery_limit",
                    "queue": "mail",
                    "exchange": "shop",
                    "routing-keys": ["mail.high"],
                    "count": 1,
                    "time": NOW - timedelta(seconds=5),
                }
            ],
        },
        properties={"priority": 3},
    )

    collect(taken, taken)

    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.task, letter.task_id, letter.root_id) == (
        Reason.BROKER,
        "shop.tasks.add",
        "j-7",
        "r-1",
    )
    assert (letter.queue, letter.exchange, letter.routing_key) == ("mail", "shop", "mail.high")
    assert letter.died_at == NOW - timedelta(seconds=5)
    assert letter.error == "The broker moved it out of mail. It was delivered as often as its queue allows."
    assert bytes(letter.message.body) == body
    death = letter.death_set.get()
    assert (death.publication_id, death.attempt) == ("pub-7", 2)
    assert death.details["x_death"][0]["queue"] == "mail"


def test_a_job_that_the_agent_reported_already_is_not_doubled_by_the_exchange():
    collect(make_taken(make_record(publication_id="pub-1", reason="rejected")))

    collect(
        Taken(
            body=b"[[],{},{}]",
            content_type="application/json",
            headers={"task": "t", "id": "j", "jobs-publication": "pub-1", "x-death": [{"queue": "q"}]},
        )
    )

    assert DeadLetter.objects.count() == 1


@pytest.mark.parametrize(
    "x_death", [[], {}, "x", [1], [{"time": "soon", "count": "n", "routing-keys": 5}], None]
)
def test_a_strange_x_death_is_no_reason_to_lose_the_job(x_death):
    collect(
        Taken(body=b"[[],{},{}]", content_type="application/json", headers={"task": "t", "x-death": x_death})
    )

    assert DeadLetter.objects.get().reason == Reason.BROKER


def test_imported_letters_get_the_ids_they_had():
    wanted = uuid.uuid4()

    first = insert_letters([make_record(publication_id="p")], now=NOW, uuids=[wanted])
    again = insert_letters([make_record(publication_id="p")], now=NOW, uuids=[wanted])

    assert (first.letters, again.letters) == (1, 0)
    assert DeadLetter.objects.get().uuid == wanted


def test_an_import_of_what_no_agent_would_send_is_refused_whole():
    with pytest.raises(ValueError, match="at is not a number"):
        insert_letters([make_record(), make_record(at="x")], now=NOW)

    assert DeadLetter.objects.count() == 0


def test_records_come_from_redis_and_are_acknowledged_after_the_commit(broker):
    with connect() as sender, sender.Producer() as producer:
        for _ in range(3):
            producer.publish(
                encode(make_record()),
                routing_key=DEAD_QUEUE,
                content_type=CONTENT_TYPE,
                content_encoding="utf-8",
                declare=[],
            )
    with broker.client() as client:
        client.lpush(DEAD_QUEUE, b"not even json")
    inbox = Inbox(connect())

    collected = Collector(inbox).collect(now=NOW)

    assert collected == 4
    assert sorted(DeadLetter.objects.values_list("reason", flat=True)) == ["failed"] * 3 + ["malformed"]
    assert inbox.depth() == 0
    inbox.close()


class LateInbox(ListInbox):
    """Nothing is there at first; the record comes while it is waited for."""

    def take(self, limit: int, wait_seconds: float) -> list[Taken]:
        if wait_seconds == 0:
            return []
        time.sleep(0.05)
        return super().take(limit, wait_seconds)


def test_a_letter_that_died_while_the_collector_waited_did_not_change_before():
    """A selection that is frozen meanwhile must not take it in."""
    Collector(LateInbox(make_taken(make_record()))).collect(now=NOW, wait_seconds=1)

    assert DeadLetter.objects.get().state_changed_at >= NOW + timedelta(seconds=0.05)
