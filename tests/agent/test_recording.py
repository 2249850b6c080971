"""A recorder against a broker that is full, away, or does not say whether it took a batch."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.agent import recording, wire
from jobs.agent.batches import Batch, bucket_of, decode
from jobs.agent.recording import Recorder
from jobs.agent.sender import BrokerAway, Sender
from jobs.agent.settings import AgentSettings
from tests.agent import recorded, shop
from tests.servers import RedisServer


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.remove()


class Place:
    """A recorder of its own on a real broker."""

    def __init__(self, server: RedisServer, **changes: object) -> None:
        self.server = server
        self.client = server.client()
        self.client.flushall()
        self.clock = Clock()
        self.settings = AgentSettings(Path("/nowhere"), timeout_seconds=0.5, **changes)  # type: ignore[arg-type]
        app: Celery = shop.create(server.url)
        self.sender = Sender(app, self.settings, clock=self.clock)
        self.recorder = Recorder(
            self.settings,
            self.sender,
            boot_id="boot",
            hostname="w@host",
            clock=self.clock,
            monotonic=self.clock,
        )

    def end(self, number: int = 1, *, task: str = "t") -> None:
        """Let messages die that never became jobs: the shortest way to an ending."""
        for _ in range(number):
            self.recorder.end_message(
                task=task, queue="q", task_id="i", publication_id="p", published_at=None
            )

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def send(self, *, after: float = 1.0, is_goodbye: bool = False) -> None:
        self.wait(after)
        self.recorder.send(is_goodbye=is_goodbye)

    @property
    def batches(self) -> list[Batch]:
        return recorded.batches_on(self.client)


@pytest.fixture
def place(server: RedisServer) -> Iterator[Place]:
    place = Place(server)
    yield place
    place.sender.close()


def a_request(*, started_at: float | None = None, published_at: object = None, **changes: object) -> Any:
    """Return what a recorder reads of a request, and no more."""
    values: dict[str, object] = {
        "id": "i",
        "jobs_task": "t",
        "jobs_queue": "q",
        "jobs_publication": "p",
        "time_start": started_at,
        "_message": SimpleNamespace(headers={wire.PUBLISHED_AT_HEADER: published_at}),
        "_request_dict": {"retries": 0},
        "_root_id": "r",
        "_eta": None,
    }
    return SimpleNamespace(**{**values, **changes})


def test_a_worker_says_that_it_lives_before_it_has_done_anything(place: Place) -> None:
    place.send()

    [batch] = place.batches
    assert (batch.boot_id, batch.sequence, batch.hostname) == ("boot", 1, "w@host")
    assert (batch.at, batch.started_at) == (place.clock.now, place.clock.now - 1)
    assert (batch.cells, batch.runs, batch.is_goodbye) == ([], [], False)


def test_an_idle_worker_says_so_each_five_seconds_and_a_busy_one_each_second(place: Place) -> None:
    place.send()
    for _ in range(20):
        place.send()
    assert len(place.batches) == 1 + 4

    for _ in range(5):
        place.end()
        place.send()
    assert len(place.batches) == 1 + 4 + 5


def test_five_hundred_records_are_sent_without_waiting_for_the_second(place: Place) -> None:
    place.send()
    request = a_request(started_at=place.clock.now - 2, published_at=place.clock.now - 5)
    for _ in range(500):
        place.recorder.receive("t", "q")
        place.recorder.end_request(request, "done", runtime=2.0)

    batches = place.batches
    assert [len(batch.runs) for batch in batches] == [0, 500]
    assert recorded.counts_of(batches) == {"received": 500, "done": 500}
    assert recorded.cells_of(batches)[0].latency == {bucket_of(3.0): 500}


def test_a_full_queue_gets_no_batch_and_the_counts_come_exactly_when_it_is_read(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(server, runs_cap=10)
    for _ in range(9):
        place.client.lpush(wire.RUNS_QUEUE, recorded.FILLER)
    place.end(3)
    place.send()
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            place.end(2)
            place.send()
    assert place.client.llen(wire.RUNS_QUEUE) < 10 + recording.LOOK_SECONDS
    assert len([line for line in caplog.messages if "nobody reads them" in line]) == 1

    first = recorded.bodies_on(place.client)
    place.client.delete(wire.RUNS_QUEUE)
    place.end(1)
    place.send(after=recording.LOOK_SECONDS)
    place.send()
    rest = recorded.bodies_on(place.client)

    batches = recorded.once([*first, *rest])
    counts = recorded.counts_of(batches)
    assert (counts["received"], counts["dead"]) == (44, 44)
    assert counts["dropped"] == sum(batch.dropped for batch in batches)
    assert counts["dropped"] + len(recorded.runs_of(batches)) == 44
    assert counts["dropped"] >= 30
    place.sender.close()


def test_a_goodbye_takes_the_counts_along_although_the_queue_is_full(server: RedisServer) -> None:
    place = Place(server, runs_cap=10)
    for _ in range(15):
        place.client.lpush(wire.RUNS_QUEUE, recorded.FILLER)
    place.end(7)
    place.send()
    assert place.client.llen(wire.RUNS_QUEUE) == 15

    place.send(is_goodbye=True)

    [batch] = recorded.once(recorded.bodies_on(place.client))
    assert batch.is_goodbye
    assert recorded.counts_of([batch]) == {"received": 7, "dead": 7, "dropped": 7}
    place.sender.close()


def test_beyond_twice_the_cap_even_the_goodbye_stays_away_and_says_what_is_lost(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(server, runs_cap=10)
    for _ in range(20):
        place.client.lpush(wire.RUNS_QUEUE, recorded.FILLER)
    place.end(7)
    with caplog.at_level(logging.WARNING):
        place.send(is_goodbye=True)

    assert place.client.llen(wire.RUNS_QUEUE) == 20
    assert "7 attempts that ended here may not be counted" in caplog.text
    place.sender.close()


def test_while_the_broker_is_away_counts_stay_and_records_are_dropped_beyond_some_thousands(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_RECORDS", 50)
    place = Place(server)
    place.send()
    before = recorded.bodies_on(place.client)
    server.stop()
    for _ in range(100):
        place.end(2)
        place.send()
    server.start()
    place.client = server.client()

    place.send(after=recording.LONGEST_WAIT_SECONDS)
    place.send()
    batches = recorded.once([*before, *recorded.bodies_on(place.client)])

    counts = recorded.counts_of(batches)
    assert (counts["received"], counts["dead"]) == (200, 200)
    assert counts["dropped"] == sum(batch.dropped for batch in batches)
    assert len(recorded.runs_of(batches)) + counts["dropped"] == 200
    # Those of the batch that was on its way are not among the fifty.
    assert 50 <= len(recorded.runs_of(batches)) <= 54
    place.sender.close()


def test_a_broker_that_refuses_batches_is_asked_less_and_less_often(place: Place) -> None:
    place.client.set(wire.RUNS_QUEUE, "no list")
    asked = []

    class Counting(Sender):
        def runs_waiting(self) -> int:
            asked.append(place.clock.now)
            return super().runs_waiting()

    place.recorder._sender = Counting(shop.create(place.server.url), place.settings, clock=place.clock)
    for _ in range(200):
        place.end()
        place.send()

    assert len(asked) <= 10
    place.client.delete(wire.RUNS_QUEUE)
    place.send(after=recording.LONGEST_WAIT_SECONDS)
    assert recorded.counts_of(place.batches) == {"received": 200, "dead": 200}


def test_a_sample_keeps_that_share_of_the_successes_and_every_failure(server: RedisServer) -> None:
    place = Place(server, history_sample=0.25)
    for number in range(2_000):
        place.recorder.end_request(a_request(), "retried" if number % 10 == 0 else "done")
    place.send()

    batches = place.batches
    assert recorded.counts_of(batches) == {"done": 1_800, "retried": 200}
    kept = [run.outcome for run in recorded.runs_of(batches)]
    assert kept.count("retried") == 200
    # 0.25 of 1,800, six standard deviations around it.
    assert 340 <= kept.count("done") <= 560
    place.sender.close()


class UnsureBroker:
    """Takes a batch, refuses it, or takes it and does not say so: as the list says, then always."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.bodies: list[bytes] = []
        self.is_paused = False

    def publish_batch(self, body: bytes) -> None:
        answer = self.answers.pop(0) if self.answers else "taken"
        if answer != "refused":
            self.bodies.append(body)
        if answer != "taken":
            raise BrokerAway(answer)

    def runs_waiting(self) -> int:
        return 0

    def resume(self) -> None:
        self.is_paused = False


@given(
    st.lists(st.sampled_from(["taken", "refused", "answer lost"]), max_size=20),
    st.lists(st.integers(min_value=0, max_value=3), min_size=1, max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_whatever_the_broker_says_each_ending_is_counted_once(answers: list[str], rounds: list[int]) -> None:
    broker, clock = UnsureBroker(answers), Clock()
    recorder = Recorder(
        AgentSettings(Path("/nowhere")),
        broker,  # type: ignore[arg-type]
        boot_id="boot",
        hostname="w@host",
        clock=clock,
        monotonic=clock,
    )
    for number in rounds:
        for _ in range(number):
            recorder.end_message(task="t", queue="q", task_id="i", publication_id="p", published_at=None)
        clock.now += 7
        recorder.send()
    clock.now += 60
    broker.answers = []
    recorder.send()

    batches = recorded.once(broker.bodies)
    assert recorded.counts_of(batches).get("dead", 0) == sum(rounds)
    assert len(recorded.runs_of(batches)) == sum(rounds)


def test_threads_that_end_jobs_at_once_lose_none(place: Place) -> None:
    """The pool threads reports from its own threads."""

    def work() -> None:
        for number in range(2_000):
            place.end()
            if number % 100 == 0:
                place.recorder.send()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(20):
        place.send()

    counts = recorded.counts_of(place.batches)
    assert (counts["received"], counts["dead"]) == (16_000, 16_000)


@pytest.mark.parametrize(
    ("published_at", "says"),
    [
        (None, None),
        ("yesterday", None),
        (float("nan"), None),
        (float("inf"), None),
        (-1, None),
        (10**400, None),
        (True, None),
        # A clock that is ahead: never below nothing.
        (1_900_000_000.0, 0.0),
    ],
)
def test_a_hostile_time_of_publication_gives_no_latency_and_costs_nothing_else(
    place: Place, published_at: object, says: float | None
) -> None:
    request = a_request(started_at=place.clock.now, published_at=published_at, id="i" * 10_000)
    request._root_id = ["no text"]
    request._request_dict = {"retries": 10**30}
    place.recorder.end_request(request, "done", error_type="e" * 10_000)
    place.send()

    [run] = recorded.runs_of(place.batches)
    assert run.latency == says
    assert (len(run.task_id), run.root_id, run.attempt) == (255, "", 2**31 - 1)
    assert len(run.error_type) == 255


def test_a_signal_handler_in_the_middle_of_sending_neither_waits_for_itself_nor_loses_an_ending(
    place: Place,
) -> None:
    """A cold shutdown ends jobs in a handler, which may have interrupted the very thread that sends."""

    class Interrupted(Sender):
        def publish_batch(self, body: bytes) -> None:
            place.end()
            place.recorder.send(is_goodbye=True)
            super().publish_batch(body)

    place.recorder._sender = Interrupted(shop.create(place.server.url), place.settings, clock=place.clock)
    place.end()
    place.send()
    place.recorder._sender.close()
    place.recorder._sender = place.sender
    place.send()

    assert recorded.counts_of(place.batches) == {"received": 2, "dead": 2}


class AmidSend(Sender):
    """Runs something in the middle of a send, as a signal handler does."""

    def __init__(self, place: Place, handler: Callable[[], None]) -> None:
        super().__init__(shop.create(place.server.url), place.settings, clock=place.clock)
        self.handler = handler

    def publish_batch(self, body: bytes) -> None:
        self.with_redis(lambda client, prefix: self.handler())
        super().publish_batch(body)


@contextlib.contextmanager
def interrupted(place: Place, handler: Callable[[], None]) -> Iterator[None]:
    """Have the recorder's own sends interrupted."""
    place.recorder._sender = sender = AmidSend(place, handler)
    yield
    sender.close()
    place.recorder._sender = place.sender


def in_a_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def in_order_of_arrival(place: Place) -> list[Batch]:
    return [decode(body) for body in recorded.bodies_on(place.client)]


def test_while_a_send_is_interrupted_another_thread_tells_that_the_worker_lives_and_nothing_is_counted_twice(
    place: Place,
) -> None:
    """A soft shutdown waits for minutes in its signal handler: the worker counted as lost."""

    def beat() -> None:
        # place.sender has a connection of its own, as that thread's.
        assert not place.recorder.send(sender=place.sender)
        place.recorder.tell_state(place.sender)

    def wait_for_jobs() -> None:
        for _ in range(3):
            place.end()
            place.wait(recording.BATCH_SECONDS)
            in_a_thread(beat)

    place.end()
    with interrupted(place, wait_for_jobs):
        place.send()
    place.send()

    batches = in_order_of_arrival(place)
    assert [batch.sequence for batch in batches] == [2, 3, 4, 1, 5]
    assert [batch.at - batches[3].at for batch in batches[:3]] == [1, 2, 3]
    assert [len(batch.cells) for batch in batches] == [0, 0, 0, 1, 1]
    assert recorded.counts_of(batches) == {"received": 4, "dead": 4}


def test_a_state_that_is_told_beside_another_thread_that_has_just_sent_is_left_out(place: Place) -> None:
    place.send()

    place.wait(recording.BATCH_SECONDS / 2)
    place.recorder.tell_state(place.sender)

    assert [batch.sequence for batch in place.batches] == [1]


def test_a_state_that_is_told_after_the_goodbye_is_one_too(place: Place) -> None:
    """Else the worker would be there again, fall silent, and be given up for lost."""
    place.send(is_goodbye=True)

    place.wait(recording.BATCH_SECONDS)
    place.recorder.tell_state(place.sender)

    assert [batch.is_goodbye for batch in place.batches] == [True, True]


def test_a_state_is_not_told_into_a_full_queue(server: RedisServer) -> None:
    place = Place(server, runs_cap=10)
    place.client.lpush(wire.RUNS_QUEUE, *[recorded.FILLER] * 10)

    place.recorder.tell_state(place.sender)

    assert place.batches == []
    place.sender.close()


def test_a_state_that_may_have_arrived_goes_out_again_under_its_number(place: Place) -> None:
    broker = UnsureBroker(["answer lost", "refused"])
    for _ in range(100):
        place.wait(recording.BATCH_SECONDS)
        place.recorder.tell_state(broker)  # type: ignore[arg-type]

    numbers = [decode(body).sequence for body in broker.bodies]
    assert numbers[:3] == [1, 1, 2]
    assert broker.bodies[0] == broker.bodies[1]
    # After 3 and 6 s of patience each second has one.
    assert numbers[1:] == list(range(1, len(numbers)))
    assert len(numbers) == 1 + 100 - 3 - 6


def test_a_state_that_cannot_be_told_is_tried_again_and_raises_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.recorder._consumer = object()  # no worker at all

    place.recorder.tell_state(place.sender)
    assert "could not tell that it lives" in caplog.text
    place.recorder._consumer = None
    place.wait(recording.BATCH_SECONDS)
    place.recorder.tell_state(place.sender)

    assert len(in_order_of_arrival(place)) == 1
