"""Whatever anybody put on the broker: its letter is sent or refused with a reason, and holds up no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.utils import timezone

from jobs.agent import wire
from jobs.broker import connect
from jobs.collector.reading import checked
from jobs.collector.storing import store
from jobs.core.words import ItemState
from jobs.models import DeadLetter
from jobs.operations import Actor, Selection, start_replay
from jobs.operations.runner import Runner
from tests.factories import NOW, make_headers, make_record

pytestmark = pytest.mark.django_db

VALUES: list[Any] = [
    None, True, -1, 2**70, float("nan"), float("inf"), "", "x\x00\ud800", [], {}, [1], [[["a"]]], "a" * 10_000,
    {"__bytes__": "AA=="}, {"__bytes__": "!"}, {"__datetime__": "9999-12-31T23:59:59+14:00"}, {"__datetime__": 5},
    {"__repr__": {"a": 1}},
]  # fmt: skip
HEADERS = (
    "id", "task", "root_id", "parent_id", "group", "retries", "timelimit", "eta", "expires", "stamps",
    "stamped_headers", "compression", "jobs-publication", "jobs-published-at", "jobs-replay-of", "jobs-replay-item",
    "jobs-replay-no", "jobs-deliveries", "x-death",
)  # fmt: skip
PROPERTIES = (
    "priority", "correlation_id", "reply_to", "delivery_mode", "delivery_info", "delivery_tag", "body_encoding",
    "expiration", "timestamp", "headers",
)  # fmt: skip
BODIES = (
    b"x", b"[]", b"[[],{},null]", b'[[],{},{"chord":"x","chain":5}]', b"\xff\xfe", b"[" * 100_000,
    b'[[NaN],{"a":1e999},{}]', b'{"id":[1],"task":"t"}',
    b'{"task":"t","id":"i","args":[],"kwargs":{},"expires":"x","eta":5,"retries":"z","chord":{"a":1}}',
)  # fmt: skip
TYPES = (
    "application/json",
    "application/x-python-serialize",
    "",
    "application/json; charset=x",
    "a/b\x00",
    None,
)
ENCODINGS = ("utf-8", "binary", "utf-16", "nosuch", "\x00", "rot13", "idna", None)


class Lease:
    """A duty that is held."""

    holder = "runops@test"

    def check(self) -> None:
        """It is."""


def messages() -> list[dict[str, Any]]:
    headers = make_headers(task="shop.tasks.send_receipt", task_id="i")
    return [
        *({"headers": {**headers, name: value}} for name in HEADERS for value in VALUES),
        *({"properties": {name: value}} for name in PROPERTIES for value in VALUES),
        *(
            {"body": body, "content_type": kind, "content_encoding": encoding, "headers": own}
            for body in BODIES
            for kind in TYPES
            for encoding in ENCODINGS
            for own in (headers, {})
        ),
    ]


@pytest.mark.parametrize("options", [{}, {"keeps_task_id": True}, {"target_queue": "other"}], ids=str)
def test_every_letter_is_sent_or_refused(broker, options):
    # As they come from the broker: as JSON
    records = [json.dumps(json.loads(wire.encode(make_record(message=each)))) for each in messages()]
    store([checked(wire.decode(record)) for record in records], now=NOW)
    number = DeadLetter.objects.count()
    assert number == len(records) > 1_000
    now = timezone.now()
    operation = start_replay(
        selection=Selection.of_query("", now=now), actor=Actor(name="mara"), why="all", now=now, **options
    )

    runner = Runner(connect())
    for _ in range(10):
        runner.run_once(now=timezone.now(), lease=Lease())

    items = operation.items
    assert (
        items.filter(state=ItemState.SENT).count() + items.filter(state=ItemState.REFUSED).count() == number
    )
    assert items.filter(state=ItemState.SENT).count() > number * 0.9
    assert not items.filter(state=ItemState.REFUSED, detail="").exists()
    with broker.client() as client:
        sent = sum(client.llen(key) for key in client.scan_iter() if client.type(key) == b"list")
    assert sent == items.filter(state=ItemState.SENT).count()
