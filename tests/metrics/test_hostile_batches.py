"""What anybody who can publish to ``jobs.runs`` may send, on both databases: one bad batch blocks no other."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.db import DataError

from jobs.metrics import job_life, lost, rollups
from jobs.metrics.collecting import RunsCollector
from jobs.metrics.storing import store
from jobs.models import DeadLetter, Rollup, Run, WorkerBoot
from tests.metrics.batches import NOW, ListInbox, make_batch, make_run, make_running, taken

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


def wide(seed: int, length: int = 255) -> str:
    """Return a name of four bytes a character, which no database compresses."""
    chance = random.Random(seed)
    return "".join(chr(chance.randrange(0x10000, 0x10FFFF)) for _ in range(length))


def test_names_too_wide_for_an_index_hold_up_nothing():
    names = [wide(number) for number in range(5)]
    bad = make_batch(
        [make_run(task=names[0], queue=names[1], error_type=names[2], task_id=names[4], root_id=names[3])],
        hostname=names[3],
        boot_id=wide(9),
        queues=[names[1]],
    )
    inbox = ListInbox(*taken(bad, make_batch([make_run()], boot_id="boot-2")))

    RunsCollector(inbox).collect(now=NOW)

    assert inbox.waiting == []
    assert Run.objects.filter(task="shop.tasks.send_receipt").count() == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"attempt": 2**62},
        {"attempt": 2**70},
        {"attempt": -5},
        {"replay_item": 2**62},
        {"replay_item": -(2**70)},
        {"published_at": 1e300, "started_at": -1e300},
        {"published_at": 10**400, "started_at": 10**400},
        {"task": "a\x00\ud800", "queue": "\x00" * 300, "task_id": "\ud800" * 20_000, "publication_id": "\x00"},
        {"publication_id": "p" * 400},
        {"replay_of": "x" * 10_000, "root_id": "\x00" * 400},
        {"task": "", "task_id": "", "publication_id": "", "queue": "", "root_id": ""},
        {"task": wide(1), "queue": wide(2), "task_id": wide(3), "publication_id": wide(4), "root_id": wide(5)},
    ],
)  # fmt: skip
def test_what_a_forged_worker_runs_keeps_no_other_from_being_declared_lost(fields):
    forged = make_batch(boot_id="forged", hostname="celery@forged", running=[make_running(**fields)])
    honest = make_batch(boot_id="honest", running=[make_running()])
    living = make_batch(boot_id="living", hostname="celery@l", running=[make_running(**fields)])
    collector = RunsCollector(ListInbox(*taken(forged, honest)))
    collector.collect(now=NOW)
    later = NOW + timedelta(seconds=90)
    RunsCollector(ListInbox(*taken(living))).collect(now=later)

    lost.declare_lost(now=later)
    lost.settle(now=later)

    assert WorkerBoot.objects.get(boot_id="honest").lost_at == later
    assert DeadLetter.objects.filter(worker="celery@pay-1").count() == 1


@pytest.mark.parametrize(
    "seconds",
    [1e300, 10**400, 253_402_300_800.0, -1e300, -1.0],
    ids=["1e300", "no float", "10000", "-1e300", "-1"],
)
def test_a_job_that_began_at_no_date_is_shown_all_the_same(seconds):
    job = make_running(task_id="odd", started_at=seconds, published_at=seconds)
    RunsCollector(ListInbox(*taken(make_batch(running=[job])))).collect(now=NOW)

    (running,) = job_life.read("odd", now=NOW).running

    assert running.started_at.year in {1970, 2100}


def test_a_worker_stays_there_after_a_batch_with_a_number_that_somebody_made_up():
    store([make_batch(sequence=1)], now=NOW)
    forged_at = NOW + timedelta(seconds=1)
    store(
        [make_batch(sequence=2**62, at=forged_at.timestamp() + 200, running=[make_running()])], now=forged_at
    )

    later = NOW + timedelta(seconds=40)
    store([make_batch([make_run()], sequence=2, at=later.timestamp())], now=later)
    lost.declare_lost(now=later + timedelta(seconds=5))

    boot = WorkerBoot.objects.get()
    assert (boot.last_seen_at, boot.lost_at, boot.running, boot.attempts) == (later, None, [], 1)


def test_a_worker_that_was_given_up_returns_with_any_batch_that_is_made_later():
    store([make_batch(sequence=2**62)], now=NOW)
    lost.declare_lost(now=NOW + timedelta(seconds=31))
    assert WorkerBoot.objects.get().lost_at is not None

    later = NOW + timedelta(seconds=40)
    store([make_batch(sequence=2, at=later.timestamp())], now=later)

    assert WorkerBoot.objects.get().lost_at is None


def test_what_unpacks_to_much_more_is_not_kept_together():
    huge = [make_batch(boot_id=f"b{number}", held={f"q{n}": 1 for n in range(30_000)}) for number in range(3)]

    sizes = [len(together) for together in RunsCollector(ListInbox())._read(taken(*huge))]

    assert sizes == [2, 1]


def test_queues_beyond_what_a_day_tells_apart_are_counted_together(monkeypatch):
    monkeypatch.setattr(rollups, "MOST_QUEUES", 3)
    store([make_batch([make_run(queue=f"q{n}") for n in (1, 2)])], now=NOW)

    store([make_batch([make_run(queue=f"q{n}") for n in (1, 3, 4, 5)], sequence=2)], now=NOW)

    rows = Rollup.objects.filter(level="day", scope="queue").order_by("queue")
    assert [(row.queue, row.done) for row in rows] == [("", 2), ("q1", 2), ("q2", 1), ("q3", 1)]
    assert Rollup.objects.get(level="day", scope="task").done == 6


def test_a_worker_whose_jobs_are_refused_is_lost_and_keeps_no_other_from_it(monkeypatch):
    store([make_batch(boot_id="a", hostname="celery@a", running=[make_running()])], now=NOW)
    store([make_batch(boot_id="b", hostname="celery@b", running=[make_running()])], now=NOW)
    insert = lost.insert_letters

    def refusing(records, **options):
        if records[0].worker == "celery@a":
            raise DataError("a number that no column takes")
        return insert(records, **options)

    monkeypatch.setattr(lost, "insert_letters", refusing)
    later = NOW + timedelta(seconds=31)

    assert lost.declare_lost(now=later) == 1

    assert set(WorkerBoot.objects.values_list("lost_at", flat=True)) == {later}
    assert DeadLetter.objects.get().worker == "celery@b"
