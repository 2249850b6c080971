"""What anybody who can write to the broker may leave there: counting, looking and purging go on."""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import zlib

import pytest
from django.utils import timezone
from kombu import compression

from jobs.audit import Actor
from jobs.broker import connect, lifting
from jobs.broker.inbox import Taken
from jobs.broker.queues import Meter
from jobs.core.words import Reason
from jobs.errors import QueueRefused
from jobs.leases import acquire
from jobs.models import DeadLetter, QueueAction, QueueSample
from jobs.queues import actions
from jobs.queues.archiving import Purge, known
from jobs.queues.purging import Purger
from jobs.queues.reading import OWN_QUEUES
from jobs.queues.sampling import Sampler
from tests.queues.messages import publisher, send


@pytest.fixture
def sampler(broker):
    meter = Meter(connect())
    yield Sampler(meter)
    meter.close()


def item(body: bytes = b"[[], {}, {}]", headers: object = None, **envelope: object) -> bytes:
    """Return a message as kombu puts it on a list."""
    values = {
        "body": base64.b64encode(body).decode(),
        "headers": headers or {"task": "t", "id": "i"},
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": {"body_encoding": "base64", "delivery_info": {}, "delivery_tag": "1"},
    }
    return json.dumps({**values, **envelope}).encode()


@pytest.mark.django_db
@pytest.mark.parametrize("score", [float("inf"), float("-inf"), 1e300, -1e300, 0.0])
def test_delivery_times_that_are_none_hinder_no_count(broker, sampler, score):
    with publisher(broker.url) as app, broker.client() as client:
        send(app)
        entry = json.dumps([{"body": ""}, "", "critical"]).encode()
        client.hset(
            "unacked",
            mapping={
                b"a": entry,
                b"\xff\x00": b"\xff" * 100,
                b"c": b"[" * 10_000,
                b"d": b'"\\ud800", "\\ud800"]',
            },
        )
        client.zadd(
            "unacked_index", {b"a": score, b"\xff\x00": score, b"c": score, b"d": score, b"gone": 1.0}
        )
        client.sadd(
            "_kombu.binding.x",
            b"\xff\xfe",
            b"a\x06\x16b",
            b"a\x06\x16\x06\x16" + b"q" * 5_000,
            b"[\x06\x16(\x06\x16critical",
        )

    sampler.sample(now=timezone.now())

    assert QueueSample.objects.get(level="sample", queue="critical").ready == 1


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["unacked", "unacked_index"])
def test_keys_of_another_kind_hinder_no_count(broker, sampler, key):
    with publisher(broker.url) as app, broker.client() as client:
        send(app)
        client.set(key, "x")

    sampler.sample(now=timezone.now())

    assert QueueSample.objects.get(level="sample", queue="critical").ready == 1


@pytest.mark.django_db
@pytest.mark.parametrize("published_at", ["1e999", "-1e308", "1e308", '"x"', "NaN", "[1]", "1e-320"])
def test_times_that_are_none_hinder_no_count(broker, sampler, published_at):
    with broker.client() as client:
        client.lpush(
            "critical",
            b'{"properties": {}, "headers": {"jobs-published-at": %s, "eta": "9999-12-31T23:59:59-14:00"}}'
            % published_at.encode(),
        )
        client.sadd("_kombu.binding.", b"critical\x06\x16\x06\x16critical")

    sampler.sample(now=timezone.now())

    assert QueueSample.objects.get(level="sample", queue="critical").ready == 1


@pytest.mark.django_db
def test_a_time_that_no_float_holds_hinders_no_purge(broker):
    now = timezone.now()
    headers = {"task": "t", "id": "i", "jobs-published-at": 10**400}
    with broker.client() as client:
        client.lpush("critical", item(headers=headers))
    action = actions.purge("critical", expected=1, actor=Actor(name="mara"), why="", now=now)
    purger, lease = Purger(connect()), acquire(duty="queues", holder="r", seconds=60)

    for _ in range(4):
        purger.step(now=now, lease=lease)
    purger.close()

    action.refresh_from_db()
    assert (action.state, action.taken) == ("finished", 1)
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.published_at) == (Reason.REJECTED, None)
    assert known(
        [Taken(body=b"", headers=headers)], purge=Purge("q", action.operation, 1, "", ""), now=now
    ) == [False]


def bombs(size: int) -> dict[str, tuple[str, bytes]]:
    body = b"[" + b" " * size + b"]"
    return {
        "zlib": ("application/x-gzip", zlib.compress(body)),
        "bz2": ("application/x-bz2", bz2.compress(body)),
        "the second stream": ("bzip2", bz2.compress(b"[]") + bz2.compress(body)),
        "lzma": ("xz", lzma.compress(b" ") + lzma.compress(body)),
    }


@pytest.mark.django_db
@pytest.mark.parametrize("kind", bombs(0))
def test_what_unpacks_to_much_more_is_not_shown_and_not_unpacked(broker, kind):
    name, packed = bombs(50_000_000)[kind]
    with broker.client() as client:
        client.lpush("critical", item(packed, {"task": "t", "id": "i", "compression": name}))

    (message,) = actions.peek("critical").messages

    assert message.problem == "its body unpacks to more than 4 MB"
    assert message.body == packed


@pytest.mark.parametrize("kind", bombs(0))
def test_what_is_within_the_limit_is_unpacked_as_kombu_does(kind):
    name, packed = bombs(1_000)[kind]
    taken = Taken(body=packed, headers={"compression": name})

    assert lifting.decompressed(taken, most=1_002 + 2).body == compression.decompress(packed, name)
    assert lifting.decompressed(taken, most=1_001).problem
    assert lifting.decompressed(Taken(body=packed[:-3], headers={"compression": name})).body == packed[:-3]


@pytest.mark.django_db
def test_a_purge_takes_what_unpacks_to_much_more_few_at_a_time_and_keeps_it_packed(broker, monkeypatch):
    monkeypatch.setattr(lifting, "BATCH_BYTES", 3_000)
    monkeypatch.setattr(lifting, "MOST_UNPACKED_BYTES", 10_000)
    with broker.client() as client:
        client.lpush(
            "critical",
            *[
                item(zlib.compress(b" " * 2_000), {"task": "t", "id": str(n), "compression": "zlib"})
                for n in range(5)
            ],
        )
    lifted = lifting.Lifted(connect(), queue="critical", name="jobs.purge.test", until=timezone.now())

    lifted.lift([5, 0, 0, 0])

    sizes = []
    while taken := lifted.take(500):
        sizes.append(len(taken))
        assert lifted.forget(taken)
    lifted.close()
    assert sizes == [2, 2, 1]


@pytest.mark.django_db
def test_a_queue_that_turns_into_another_key_before_its_purge_begins_holds_up_no_purge(broker):
    with publisher(broker.url) as app, broker.client() as client:
        send(app)
        send(app, queue="low")
        now = timezone.now()
        for queue in ("critical", "low"):
            actions.purge(queue, expected=1, actor=Actor(name="mara"), why="", now=now)
        client.delete("critical")
        client.set("critical", "x")
        purger, lease = Purger(connect()), acquire(duty="queues", holder="r", seconds=60)
        for _ in range(6):
            purger.step(now=now, lease=lease)
        purger.close()
        assert client.get("critical") == b"x"

    assert list(QueueAction.objects.order_by("pk").values_list("state", "taken")) == [
        ("finished", 0),
        ("finished", 1),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "name", ["jobs.dead.taken", "jobs.runs.taken", "jobs.purge.20261112031200.1.0", "jobs.dead"]
)
def test_the_lists_of_the_product_are_no_queues_whoever_says_so(broker, sampler, name):
    with broker.client() as client:
        client.lpush(name, item())
        client.sadd("_kombu.binding.x", f"{name}\x06\x16\x06\x16{name}")

        sampler.sample(now=timezone.now())
        for act in (
            lambda: actions.purge(name, expected=1, actor=Actor(name="mara"), why="", now=timezone.now()),
            lambda: actions.peek(name),
            lambda: actions.pause(name, actor=Actor(name="mara"), why="", now=timezone.now()),
        ):
            with pytest.raises(QueueRefused, match="not one that workers consume"):
                act()

        assert client.llen(name) == 1
    assert name in OWN_QUEUES or not QueueSample.objects.filter(queue=name).exists()
