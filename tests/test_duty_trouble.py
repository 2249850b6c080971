"""What keeps a duty of runops from being done stands in its lease, for the pages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from jobs import leases
from jobs.duties import Duty
from jobs.errors import BrokerUnavailable
from jobs.leases import HeldLease
from jobs.models import Lease
from jobs.runops import DutyThread

pytestmark = pytest.mark.django_db(transaction=True)

AWAY = BrokerUnavailable("The broker at redis://mq:6379/0 does not answer.\nTrying again is safe.")


@pytest.fixture
def rounds() -> list[Exception | str | None]:
    """What each round raises or says that it is hindered by, in order; None does its work."""
    return []


@pytest.fixture
def thread(rounds: list[Exception | str | None]) -> Iterator[DutyThread]:
    def begin() -> Callable[[HeldLease], float]:
        def work(lease: HeldLease) -> float:
            outcome = rounds.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            lease.hindrance = outcome or ""
            return 0.0

        return work

    yield DutyThread(Duty("relay", begin), holder="runops@here:1", lease_seconds=60, stop=threading.Event())
    connection.close()


def told() -> tuple[str, bool]:
    lease = Lease.objects.get(duty="relay")
    return lease.trouble, lease.trouble_since is not None


def test_a_trouble_is_told_and_taken_back_when_it_is_over(thread, rounds):
    rounds += [None, AWAY, AWAY, None]

    thread._try()
    assert told() == ("", False)
    thread._try()
    words = "BrokerUnavailable: The broker at redis://mq:6379/0 does not answer. Trying again is safe."
    assert told() == (words, True)
    since = Lease.objects.get().trouble_since
    thread._try()
    assert Lease.objects.get().trouble_since == since
    thread._try()

    assert told() == ("", False)


def test_another_kind_of_trouble_takes_the_place_of_the_first(thread, rounds):
    rounds += [AWAY, OSError("No space left on device")]

    thread._try()
    thread._try()

    assert told() == ("OSError: No space left on device", True)


def test_what_hinders_a_round_that_raises_nothing_is_a_trouble_since_it_began(thread, rounds):
    rounds += [
        "The broker takes nothing.",
        "The broker takes nothing: it is full.",
        AWAY,
        "It is full.",
        None,
    ]

    thread._try()
    assert told() == ("Hindered: The broker takes nothing.", True)
    since = Lease.objects.get().trouble_since
    thread._try()
    # The lag counts from the first word of it.
    assert Lease.objects.get().trouble_since == since
    assert [each.reason for each in leases.undone(["relay"])] == ["The broker takes nothing."]
    thread._try()
    assert told()[0].startswith("BrokerUnavailable")
    thread._try()
    assert told() == ("Hindered: It is full.", True)
    thread._try()

    assert told() == ("", False)


def test_a_trouble_that_could_not_be_written_is_written_with_the_next_try(thread, rounds, monkeypatch):
    rounds += [AWAY, AWAY]
    monkeypatch.setattr(HeldLease, "tell_trouble", _fails)
    thread._try()
    assert told() == ("", False)

    monkeypatch.undo()
    thread._try()

    assert told()[0].startswith("BrokerUnavailable")


def test_a_trouble_is_taken_back_although_another_one_could_not_be_written(thread, rounds, monkeypatch):
    """The broker goes, then the database too, then both are back."""
    rounds += [AWAY, OSError("the database is away"), None]
    thread._try()
    with monkeypatch.context() as patched:
        patched.setattr(HeldLease, "tell_trouble", _fails)
        thread._try()
    assert told()[0].startswith("BrokerUnavailable")

    thread._try()

    assert told() == ("", False)


def _fails(self: HeldLease, trouble: str) -> None:
    raise OSError("the database is away")


def test_the_next_holder_begins_without_the_trouble_of_the_last():
    first = leases.acquire(duty="relay", holder="a", seconds=60)
    assert first is not None
    first.tell_trouble("x" * 2_000)
    assert len(told()[0]) == leases.WORDS_LENGTH

    first.release()
    assert told() == ("", False)
    second = leases.acquire(duty="relay", holder="b", seconds=60)
    assert second is not None
    first.tell_trouble("somebody else holds it")

    assert told() == ("", False)


def test_the_next_holder_begins_without_the_remark_of_the_last():
    first = leases.acquire(duty="runs", holder="a", seconds=60)
    assert first is not None
    first.tell_remark("line\n" * 200)
    assert leases.remark_of("runs").startswith("line line")
    assert len(leases.remark_of("runs")) == leases.WORDS_LENGTH
    assert leases.undone(["runs"]) == []

    first.release()
    assert Lease.objects.get(duty="runs").remark == ""
    first = leases.acquire(duty="runs", holder="b", seconds=60)
    assert first is not None
    first.tell_remark("1 batch could not be read")
    Lease.objects.update(expires_at=Lease.objects.get(duty="runs").acquired_at)
    assert leases.remark_of("runs") == ""
    assert leases.acquire(duty="runs", holder="c", seconds=60) is not None

    assert leases.remark_of("runs") == ""


def test_a_trouble_is_one_whatever_it_begins_with():
    lease = leases.acquire(duty="runs", holder="a", seconds=60)
    assert lease is not None
    lease.tell_trouble("Remark: the broker is away")

    assert [each.trouble for each in leases.undone(["runs"])] == ["Remark: the broker is away"]
    assert leases.remark_of("runs") == ""
