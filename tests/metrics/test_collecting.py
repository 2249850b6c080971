"""Batches become workers, runs and rollups: each counted once, in its own minute, whatever comes beside it."""

from __future__ import annotations

import zlib
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError

from jobs.agent import batches
from jobs.agent.batches import Cell
from jobs.broker.inbox import Taken
from jobs.core import histograms
from jobs.core.words import RollupLevel, RollupScope
from jobs.metrics import collecting, rollups
from jobs.metrics.collecting import RunsCollector
from jobs.metrics.storing import store
from jobs.models import Rollup, Run, WorkerBoot
from tests.metrics.batches import MINUTE, NOW, ListInbox, make_batch, make_run, make_running, taken

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


def rollup(scope: str = "all", level: str = "minute", *, at: datetime | None = None, **names: str) -> Rollup:
    start = {"minute": NOW.replace(second=0), "hour": NOW.replace(minute=0, second=0)}.get(
        level, NOW.replace(hour=0, minute=0, second=0)
    )
    return Rollup.objects.get(level=level, scope=scope, starts_at=at or start, **names)


def total(name: str, level: str = "minute") -> int:
    return sum(Rollup.objects.filter(level=level, scope="all").values_list(name, flat=True))


def test_runs_are_counted_in_four_scopes_and_three_levels():
    runs = [
        make_run(),
        make_run(outcome="dead", error_type="smtplib.SMTPException"),
        make_run(task="shop.tasks.charge"),
        make_run(queue="low", outcome="retried"),
    ]

    store([make_batch(runs)], now=NOW)

    for level in RollupLevel:
        everything = rollup(level=level)
        assert (everything.received, everything.done, everything.dead, everything.retried) == (4, 2, 1, 1)
        receipts = rollup("task", level, task="shop.tasks.send_receipt")
        assert (receipts.done, receipts.dead, receipts.retried) == (1, 1, 1)
        critical = rollup("queue", level, queue="critical")
        assert (critical.done, critical.dead, critical.retried) == (2, 1, 0)
        both = rollup("both", level, task="shop.tasks.send_receipt", queue="low")
        assert (both.done, both.retried) == (0, 1)
        assert histograms.total(histograms.unpack(everything.runtime)) == 4
        assert everything.runtime_sum_seconds == pytest.approx(4)
    assert Counter(Rollup.objects.filter(level="minute").values_list("scope", flat=True)) == {
        RollupScope.BOTH: 3, RollupScope.TASK: 2, RollupScope.QUEUE: 2, RollupScope.ALL: 1,
    }  # fmt: skip


def test_what_comes_later_is_added_to_the_same_rollups():
    store([make_batch([make_run(runtime=0.1, latency=None)])], now=NOW)
    store([make_batch([make_run(runtime=0.1), make_run(runtime=30.0)], sequence=2)], now=NOW)

    everything = rollup()
    assert (everything.received, everything.done) == (3, 3)
    assert everything.runtime_sum_seconds == pytest.approx(30.2)
    assert everything.latency_sum_seconds == pytest.approx(2)
    assert histograms.unpack(everything.runtime) == {
        histograms.bucket_of(0.1): 2,
        histograms.bucket_of(30.0): 1,
    }
    assert histograms.total(histograms.unpack(everything.latency)) == 2


def test_a_run_keeps_what_the_agent_told_of_it():
    run = make_run(attempt=3, outcome="dead", error_type="ValueError", started_at=None, latency=None)

    store([make_batch([run])], now=NOW)

    row = Run.objects.get()
    assert (row.task_id, row.publication_id, row.root_id) == (run.task_id, run.publication_id, run.root_id)
    assert (row.task, row.queue, row.worker) == ("shop.tasks.send_receipt", "critical", "celery@pay-1")
    assert (row.outcome, row.attempt, row.error_type) == ("dead", 3, "ValueError")
    assert (row.published_at, row.started_at, row.finished_at) == (NOW - timedelta(seconds=2), None, NOW)
    assert (row.latency_seconds, row.runtime_seconds) == (None, 1.0)


def test_a_run_that_followed_another_job_keeps_that_root():
    store([make_batch([make_run(task_id="second", root_id="first"), make_run(task_id="alone")])], now=NOW)

    assert dict(Run.objects.values_list("task_id", "root_id")) == {"second": "first", "alone": "alone"}


@pytest.mark.parametrize("part", [0.0, 0.25, 0.999_999, 0.999_999_8])
def test_a_run_keeps_its_moment_to_the_microsecond(part):
    # The last part rounds up to a whole second, which is no microsecond of the one it lies in.
    at = NOW.timestamp() - 1 + part

    store([make_batch([make_run(finished_at=at)])], now=NOW)

    assert abs(Run.objects.get().finished_at.timestamp() - at) < 2e-6


def test_a_batch_that_is_delivered_again_is_counted_once():
    batch = make_batch([make_run(), make_run(outcome="dead")])

    store([batch, batch], now=NOW)
    store([batch], now=NOW)

    assert (total("done"), total("dead"), Run.objects.count()) == (1, 1, 2)
    assert WorkerBoot.objects.get().attempts == 2


def test_batches_that_come_out_of_order_are_all_counted():
    made = [make_batch([make_run()], sequence=number) for number in (1, 2, 3, 4)]

    store([made[3]], now=NOW)
    store([made[0], made[2]], now=NOW)
    store([made[1], made[3], made[0]], now=NOW)

    boot = WorkerBoot.objects.get()
    assert (total("done"), boot.attempts, boot.sequence, boot.missing) == (4, 4, 4, [])


def test_the_same_numbers_of_two_boots_are_two_batches():
    store([make_batch([make_run()]), make_batch([make_run()], boot_id="boot-2")], now=NOW)

    assert (total("done"), WorkerBoot.objects.count()) == (2, 2)


def test_a_worker_is_described_by_its_newest_batch():
    running = make_running(task="t\x00", replay_of="l", replay_item=4)
    newest = make_batch(
        sequence=7, running=[running], held={"low": 300}, reserved={"low": 2}, load=3.5, dropped=9
    )
    older = make_batch([make_run()], sequence=6, load=0.1, queues=["old"], dropped=1)

    store([newest], now=NOW)
    store([older], now=NOW + timedelta(seconds=5))

    boot = WorkerBoot.objects.get()
    assert (boot.hostname, boot.pool, boot.concurrency, boot.queues) == (
        *("celery@pay-1", "prefork", 4),
        ["critical", "default"],
    )
    assert (boot.load, boot.memory_bytes, boot.held, boot.reserved) == (
        3.5,
        120_000_000,
        {"low": 300},
        {"low": 2},
    )
    assert (boot.running[0]["task_id"], boot.running[0]["task"]) == (running.task_id, "t\ufffd")
    assert (boot.running[0]["replay_of"], boot.running[0]["replay_item"]) == ("l", 4)
    assert (boot.started_at, boot.reported_at, boot.last_seen_at) == (NOW - timedelta(hours=1), NOW, NOW)
    assert (boot.attempts, boot.dropped, boot.missing) == (1, 10, [[1, 5]])


def test_a_goodbye_is_noted_and_a_later_word_takes_it_back():
    store([make_batch(is_goodbye=True)], now=NOW)
    assert WorkerBoot.objects.get().goodbye_at == NOW

    store([make_batch(sequence=2)], now=NOW)
    assert WorkerBoot.objects.get().goodbye_at is None


def test_what_was_dropped_is_told_and_still_counted():
    cell = Cell(MINUTE, "t", "q", received=90, done=90, dropped=40)

    store([make_batch([make_run()], cells=[cell], dropped=40)], now=NOW)

    assert (rollup().done, rollup().dropped, Run.objects.count()) == (90, 40, 1)
    assert WorkerBoot.objects.get().dropped == 40


def test_tasks_beyond_what_a_day_tells_apart_are_counted_together(monkeypatch):
    monkeypatch.setattr(rollups, "MOST_TASKS", 3)
    store([make_batch([make_run(task=f"t{n}") for n in (1, 2)])], now=NOW)

    store([make_batch([make_run(task=f"t{n}") for n in (1, 3, 4, 5)], sequence=2)], now=NOW)

    rows = Rollup.objects.filter(level="day", scope="task").order_by("task")
    assert [(row.task, row.done) for row in rows] == [("", 2), ("t1", 2), ("t2", 1), ("t3", 1)]
    assert (total("done"), rollup("queue", queue="critical").done) == (6, 6)


def test_a_heartbeat_makes_its_minute_known_to_be_zero():
    store([make_batch()], now=NOW)
    store([make_batch(sequence=2)], now=NOW)

    assert [
        (row.scope, row.starts_at.minute, row.received) for row in Rollup.objects.filter(level="minute")
    ] == [("all", 12, 0)]


def test_a_worker_that_was_cut_off_makes_the_quiet_minutes_between_known():
    before, after = NOW - timedelta(minutes=4), NOW
    store([make_batch(at=before.timestamp())], now=before)
    store([make_batch(sequence=2, at=after.timestamp())], now=after)

    minutes = Rollup.objects.filter(level="minute", scope="all").order_by("starts_at")
    assert [row.starts_at.minute for row in minutes] == [8, 9, 10, 11, 12]


def test_minutes_before_a_batch_that_is_missing_stay_unknown():
    before = NOW - timedelta(minutes=4)
    store([make_batch(at=before.timestamp())], now=before)
    store([make_batch(sequence=3)], now=NOW)

    minutes = Rollup.objects.filter(level="minute", scope="all").order_by("starts_at")
    assert [row.starts_at.minute for row in minutes] == [8, 12]


def test_a_console_that_was_down_for_five_minutes_catches_up_into_the_right_minutes():
    made = []
    for ago in range(300, 0, -1):
        at = NOW.timestamp() - ago
        made.append(make_batch([make_run(finished_at=at)], sequence=301 - ago, at=at))
    inbox = ListInbox(*taken(*made))
    collector = RunsCollector(inbox)

    while inbox.waiting:
        collector.collect(now=NOW)

    minutes = Rollup.objects.filter(level="minute", scope="all").order_by("starts_at")
    assert [(row.starts_at.minute, row.done) for row in minutes] == [
        (7, 30), (8, 60), (9, 60), (10, 60), (11, 60), (12, 30),
    ]  # fmt: skip
    assert rollup(level="hour").done == rollup(level="day").done == 300


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (NOW.timestamp() + 240, NOW.replace(second=0) + timedelta(minutes=4)),
        (NOW.timestamp() + 3_600, NOW.replace(second=0)),
        (4e9, NOW.replace(second=0)),
        (0, NOW.replace(second=0)),
        (-1e18, NOW.replace(second=0)),
        (10**400, NOW.replace(second=0)),
    ],
    ids=["a little ahead", "an hour ahead", "2096", "1970", "long ago", "no time at all"],
)
def test_counts_of_a_clock_that_is_wrong_are_counted_now(at, expected):
    cell = Cell(int(at), "t", "q", received=2, done=2)

    store([make_batch(cells=[cell], at=at)], now=NOW)

    assert Rollup.objects.get(level="minute", scope="both").starts_at == expected
    assert total("done", "hour") == total("done", "day") == 2


def test_old_counts_go_only_where_they_are_still_kept():
    old = Cell(int((NOW - timedelta(days=8)).timestamp()), "t", "q", received=1, done=1)
    older = Cell(int((NOW - timedelta(days=100)).timestamp()), "t", "q", received=1, done=1)

    store([make_batch(cells=[old, older])], now=NOW)

    assert [total("done", level) for level in RollupLevel] == [0, 1, 2]


def test_hostile_names_are_cleaned_and_stay_different():
    long = "x" * 300
    runs = [
        make_run(task="a\x00\ud800b"),
        make_run(task=f"{long}1"),
        make_run(task=f"{long}2", queue="\x1b[2J"),
    ]

    store(
        [make_batch(runs, hostname="h\x00" * 300, boot_id="b" * 500, pool="p" * 100, queues=["\x00" * 300])],
        now=NOW,
    )

    tasks = set(Rollup.objects.filter(level="minute", scope="task").values_list("task", flat=True))
    assert len(tasks) == 3
    assert "a\ufffd\ufffdb" in tasks
    assert Run.objects.filter(queue="\ufffd[2J").count() == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "cannot be unpacked"),
        (b"garbage", "cannot be unpacked"),
        (zlib.compress(b"[]"), "it is list"),
        (zlib.compress(b"[" * 100_000), "cannot be unpacked"),
        (zlib.compress(b'{"v": 2}'), "only batches of version 1"),
        (batches.encode(make_batch(cells=[Cell(MINUTE, "t", "q", done=10**10)])), "a count is not within"),
        (batches.encode(make_batch(held={"q": 10**30})), "a count is not within"),
        (batches.encode(make_batch(queues=[5])), "a queue's name is not text"),
        (batches.encode(make_batch(sequence=2**70)), "its sequence is too large"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_read_is_told_and_holds_up_nothing(body, words, caplog):
    inbox = ListInbox(Taken(body=body, content_type=batches.CONTENT_TYPE), *taken(make_batch([make_run()])))
    collector = RunsCollector(inbox)

    collector.collect(now=NOW)

    assert inbox.waiting == []
    assert total("done") == 1
    assert collector.remark.startswith("1 batch on jobs.runs could not be read or counted: ")
    assert words in collector.remark
    assert collector.remark in caplog.text


def test_what_is_no_batch_at_all_is_told_by_its_kind():
    inbox = ListInbox(
        Taken(body=b"x", content_type="text/plain"), Taken(body=b"y", problem="not an envelope")
    )
    collector = RunsCollector(inbox)

    collector.collect(now=NOW)

    assert collector.remark.startswith("2 batches on jobs.runs")
    assert inbox.waiting == []


def test_batches_that_cannot_be_read_are_told_once_a_minute_and_then_forgotten(caplog):
    collector = RunsCollector(ListInbox())
    for second in range(59):
        collector._inbox = ListInbox(Taken(body=b"x", content_type="text/plain"))
        collector.collect(now=NOW + timedelta(seconds=second))
    assert len(caplog.records) == 1

    collector.collect(now=NOW + timedelta(seconds=60))
    assert collector.remark.startswith("58 batches")
    assert len(caplog.records) == 2

    collector.collect(now=NOW + timedelta(seconds=121))
    assert collector.remark == ""


def test_a_clock_that_was_ahead_keeps_nobody_from_telling_what_cannot_be_read(caplog):
    collector = RunsCollector(ListInbox(Taken(body=b"x", content_type="text/plain")))
    collector.collect(now=NOW + timedelta(days=1))

    collector._inbox = ListInbox(Taken(body=b"x", content_type="text/html"))
    collector.collect(now=NOW)

    assert "text/html" in collector.remark
    assert len(caplog.records) == 2


def test_a_batch_that_the_database_refuses_is_told_and_the_others_are_counted(monkeypatch):
    # What slips past the checks some day: a number that no column takes.
    monkeypatch.setattr(collecting, "_check_numbers", lambda batch: None)
    bad = make_batch([make_run(attempt=2**70)], boot_id="boot-2")
    inbox = ListInbox(*taken(make_batch([make_run()]), bad, make_batch([make_run()], sequence=2)))
    collector = RunsCollector(inbox)

    collector.collect(now=NOW)

    assert (total("done"), Run.objects.count()) == (2, 2)
    assert WorkerBoot.objects.count() == 1
    assert "the database refused it" in collector.remark


@pytest.mark.parametrize(
    "fields",
    [
        {"load": 10**400, "memory_bytes": 2**70, "concurrency": -5},
        {"cells": [], "runs": [make_run(latency=10**400, runtime=-1.0, attempt=2**40, published_at=1e300, finished_at=-1e300)]},
        {"cells": [Cell(MINUTE, "t", "q", received=1, done=1, latency_sum=1e308, runtime_sum=-5.0)]},
    ],
)  # fmt: skip
def test_details_beyond_reason_are_left_out_of_a_batch_that_counts(fields):
    collector = RunsCollector(ListInbox(*taken(make_batch(**fields))))

    collector.collect(now=NOW)

    assert collector.remark == ""
    assert WorkerBoot.objects.get().sequence == 1


def test_nothing_is_acknowledged_while_the_database_is_away(monkeypatch):
    inbox = ListInbox(*taken(make_batch([make_run()])))
    collector = RunsCollector(inbox)
    with monkeypatch.context() as patched:

        def away(*_args, **_kwargs):
            raise OperationalError("the database is away")

        patched.setattr(collecting, "store", away)
        with pytest.raises(OperationalError):
            collector.collect(now=NOW)
    assert len(inbox.waiting) == 1

    collector.collect(now=NOW)
    assert total("done") == 1


def test_a_round_is_a_fixed_number_of_statements(django_assert_max_num_queries):
    few = [make_batch([make_run()], boot_id="few")]
    many = [
        make_batch([make_run(task=f"t{n % 9}") for n in range(50)], boot_id=f"many-{number}")
        for number in range(20)
    ]

    with django_assert_max_num_queries(10):
        store(few, now=NOW)
    with django_assert_max_num_queries(10):
        store(many, now=NOW)

    assert Run.objects.count() == 1_001


def test_large_batches_are_counted_in_several_transactions(monkeypatch):
    monkeypatch.setattr(collecting, "MOST_ROWS", 10)
    inbox = ListInbox(*taken(*(make_batch([make_run()] * 6, sequence=number) for number in range(1, 8))))

    RunsCollector(inbox).collect(now=NOW)

    assert (total("done"), inbox.waiting) == (42, [])


def test_a_collector_is_level_once_it_has_read_all_that_waited():
    messages = taken(*(make_batch(sequence=number) for number in range(1, 6)))
    collector = RunsCollector(ListInbox(*messages))

    collector.collect(limit=4, now=NOW)
    assert (collector.is_behind, collector.level_since) == (True, None)
    collector.collect(limit=4, now=NOW + timedelta(seconds=1))
    collector.collect(limit=4, now=NOW + timedelta(seconds=9))
    assert (collector.is_behind, collector.level_since) == (False, NOW + timedelta(seconds=1))
    # A process that stood still has read nothing in between.
    collector.collect(limit=4, now=NOW + timedelta(seconds=60))
    assert collector.level_since == NOW + timedelta(seconds=60)


def round_at(collector: RunsCollector, number: int, *, batches: int) -> None:
    """Let a collector do a round each half second, to which that many batches have come; four fill it."""
    start = 4 * number
    made = (make_batch(sequence=start + each) for each in range(1, batches + 1))
    collector._inbox = ListInbox(*taken(*made))
    collector.collect(limit=4, now=NOW + timedelta(seconds=number / 2))


def test_a_fleet_that_fills_every_second_round_is_heard_of_all_the_same():
    collector = RunsCollector(ListInbox())

    for number in range(120):
        round_at(collector, number, batches=4 if number % 2 else 1)
        assert not collector.has_heard_all(now=NOW + timedelta(seconds=number / 2))
    round_at(collector, 120, batches=1)

    assert collector.has_heard_all(now=NOW + timedelta(seconds=60))


def test_a_collector_that_does_not_get_to_the_end_any_more_has_not_heard_all():
    collector = RunsCollector(ListInbox())
    for number in range(0, 140, 10):
        round_at(collector, number, batches=1)
    assert collector.has_heard_all(now=NOW + timedelta(seconds=65))

    for number in range(140, 160):
        round_at(collector, number, batches=4)

    assert not collector.has_heard_all(now=NOW + timedelta(seconds=80))
    round_at(collector, 160, batches=1)
    assert collector.level_since == NOW + timedelta(seconds=80)


def test_the_day_of_a_rollup_is_utc():
    late = datetime(2026, 11, 12, 23, 59, 59, tzinfo=UTC)

    store([make_batch([make_run(finished_at=late.timestamp())], at=late.timestamp())], now=late)

    assert Rollup.objects.get(level="day", scope="all").starts_at == datetime(2026, 11, 12, tzinfo=UTC)
