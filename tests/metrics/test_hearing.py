"""Nobody is given up for lost before all that workers tell would have arrived for a minute."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobs.broker import probing
from jobs.broker.inbox import Taken
from jobs.errors import BrokerUnavailable
from jobs.metrics.collecting import RunsCollector
from tests.metrics.batches import NOW, ListInbox, make_batch, taken

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


class Broken:
    """An inbox whose broker is away."""

    def take(self, limit: int, wait_seconds: float) -> list[Any]:
        raise BrokerUnavailable("away")

    def ack(self, taken: list[Any]) -> None:
        raise AssertionError("nothing was taken")


def test_nobody_is_declared_lost_before_all_was_read_for_a_minute_after_an_outage():
    collector = RunsCollector(ListInbox())
    for second in range(0, 62, 2):
        collector.collect(now=NOW + timedelta(seconds=second))
    assert collector.has_heard_all(now=NOW + timedelta(seconds=60))

    collector._inbox = Broken()
    with pytest.raises(BrokerUnavailable):
        collector.collect(now=NOW + timedelta(seconds=62))
    assert not collector.has_heard_all(now=NOW + timedelta(seconds=500))

    backlog = taken(*(make_batch(sequence=number) for number in range(1, 9)))
    collector._inbox = ListInbox(*backlog)
    heard = []
    for second in range(500, 600, 2):
        now = NOW + timedelta(seconds=second)
        collector.collect(limit=4, now=now)
        heard.append(collector.has_heard_all(now=now))
    # Two rounds were full; a minute after the third it is known who is silent.
    assert heard.index(True) == (504 - 500 + 60) // 2


class Deaf(ListInbox):
    """A queue that takes no message, but the first of a connection, and is read as if nobody had one."""

    probes = 0

    def probe(self) -> None:
        self.probes += 1
        self.waiting.append(Taken(body=probing.AHEAD, content_type=probing.CONTENT_TYPE))
        raise BrokerUnavailable("The broker took no message for jobs.runs: the disk is full.")


class Leaking(ListInbox):
    """A queue of which somebody else reads the messages."""

    def probe(self) -> None:
        pass


@pytest.mark.parametrize(
    ("inbox", "why"),
    [
        (Deaf(), "The broker took no message for jobs.runs: the disk is full."),
        (Leaking(), "20 messages that were sent to jobs.runs did not come back."),
    ],
)
def test_nobody_is_declared_lost_while_nothing_would_arrive(inbox: ListInbox, why: str):
    """The collector finds nothing and is level, and of a whole fleet each early-acknowledged job was a dead letter."""
    collector = RunsCollector(inbox)
    for second in range(0, 120, 2):
        now = NOW + timedelta(seconds=second)
        assert collector.collect(now=now) == 0
        assert not collector.has_heard_all(now=now)
    told = f"Workers cannot tell that they live, so none is given up for lost: {why}"
    assert (collector.hindrance, collector.remark) == (told, "")

    collector._inbox = ListInbox()
    heard = []
    for second in range(120, 200, 2):
        now = NOW + timedelta(seconds=second)
        collector.collect(now=now)
        heard.append(collector.has_heard_all(now=now))

    assert heard.index(True) == 60 // 2
    assert (collector.hindrance, collector.remark) == ("", "")


def test_one_message_that_is_refused_makes_the_silence_before_it_worth_nothing():
    collector = RunsCollector(ListInbox())
    for second in range(0, 58, 2):
        collector.collect(now=NOW + timedelta(seconds=second))
    collector._inbox = deaf = Deaf()
    collector.collect(now=NOW + timedelta(seconds=60))
    collector._inbox = ListInbox()
    heard = []
    for second in range(62, 140, 2):
        now = NOW + timedelta(seconds=second)
        collector.collect(now=now)
        heard.append(collector.has_heard_all(now=now))

    assert deaf.probes == 1
    assert NOW + timedelta(seconds=62 + 2 * heard.index(True)) >= NOW + timedelta(seconds=60 + 60)


def test_a_worker_that_tells_something_is_proof_enough_and_a_refusal_is_told_beside_what_could_not_be_read():
    collector = RunsCollector(ListInbox())
    for second in range(0, 62, 2):
        collector._inbox = deaf = Deaf(*taken(make_batch(sequence=second + 1)) * (second % 4 == 0))
        collector.collect(now=NOW + timedelta(seconds=second))
        assert deaf.probes == 0
    assert collector.has_heard_all(now=NOW + timedelta(seconds=60))

    collector._inbox = Deaf(Taken(body=b"x", content_type="text/plain"))
    collector.collect(now=NOW + timedelta(seconds=62))
    collector.collect(now=NOW + timedelta(seconds=70))

    assert collector.hindrance == (
        "Workers cannot tell that they live, so none is given up for lost: The broker took no message for jobs.runs: "
        "the disk is full."
    )
    assert collector.remark == (
        "1 batch on jobs.runs could not be read or counted: its content type is text/plain"
    )
