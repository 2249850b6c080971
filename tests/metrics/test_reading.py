"""What the rollups say of a window: exact sums over any span, gaps that stay gaps, a fixed number of queries."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from jobs.core import windows
from jobs.core.histograms import ALPHA
from jobs.core.words import RollupLevel
from jobs.metrics import reading
from jobs.models import Rollup
from tests.metrics.rollups import COUNTS, Told, write

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

NOW = datetime(2026, 11, 12, 3, 12, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TASKS = ("shop.tasks.send_receipt", "shop.tasks.charge_card", "shop.tasks.resize_image")
QUEUES = ("critical", "default")


def random_minutes(*, days: float, count: int, seed: int = 4) -> list[Told]:
    chance = random.Random(seed)
    newest = NOW.replace(second=0, microsecond=0)
    return [
        Told(
            at=newest - MINUTE * chance.randrange(int(days * 1440)),
            task=chance.choice(TASKS),
            queue=chance.choice(QUEUES),
            **{name: chance.randrange(4) for name in COUNTS},
            latency=[chance.expovariate(1) for _ in range(chance.randrange(4))],
            runtime=[chance.expovariate(3) for _ in range(chance.randrange(3))],
        )
        for _ in range(count)
    ]


def counts(figures: reading.Figures) -> dict[str, int]:
    return {name: getattr(figures, name) for name in COUNTS}


def expected(
    told: list[Told], start: datetime, end: datetime, *, task: str = "", queue: str = ""
) -> dict[str, int]:
    inside = [
        each
        for each in told
        if start <= each.at < end and task in ("", each.task) and queue in ("", each.queue)
    ]
    return {name: sum(getattr(each, name) for each in inside) for name in COUNTS}


def test_the_totals_of_any_span_of_minutes_in_the_last_week_are_exact(django_assert_num_queries):
    told = random_minutes(days=6.9, count=600)
    write(told)
    chance = random.Random(7)

    for _ in range(60):
        end = NOW.replace(second=0) + MINUTE - MINUTE * chance.choice((0, chance.randrange(9000)))
        start = max(
            end - MINUTE * chance.choice((1, 59, 60, 1440, chance.randrange(1, 9000))),
            NOW - timedelta(days=7),
        )
        start = start.replace(second=0) if start.second == 0 else start.replace(second=0) + MINUTE
        task, queue = chance.choice(("", TASKS[0])), chance.choice(("", QUEUES[1]))
        with django_assert_num_queries(1):
            found = reading.totals(start, end, task=task, queue=queue, now=NOW)
        assert counts(found) == expected(told, start, end, task=task, queue=queue), (start, end, task, queue)


def test_a_span_whose_minutes_are_gone_is_taken_in_whole_hours():
    old = NOW - timedelta(days=20)
    told = [Told(at=old.replace(minute=minute, second=0), done=1) for minute in (5, 30, 55)]
    write(told, levels=(RollupLevel.HOUR, RollupLevel.DAY))

    found = reading.totals(old.replace(minute=20, second=0), old.replace(minute=40, second=0), now=NOW)

    assert found.done == 3


def test_sums_of_a_month_are_read_from_few_rows_and_equal_its_steps():
    told = random_minutes(days=29, count=800)
    write(told)
    window = windows.named("30d", now=NOW)

    steps = reading.series(window, now=NOW)
    whole = reading.summed(steps)
    tasks = reading.by_task(window, now=NOW)
    queues = reading.by_queue(window, now=NOW)

    assert whole is not None
    everything = expected(told, window.start, window.end)
    assert counts(whole) == everything
    for table in (tasks, queues):
        for name in COUNTS:
            assert sum(getattr(each, name) for each in table.values()) == everything[name]
    for task in TASKS:
        assert counts(tasks[task]) == expected(told, window.start, window.end, task=task)
    only = reading.by_queue(window, task=TASKS[1], now=NOW)
    for queue in QUEUES:
        assert counts(only[queue]) == expected(told, window.start, window.end, task=TASKS[1], queue=queue)


@pytest.mark.parametrize("name", list(windows.NAMED))
def test_each_step_counts_what_ended_in_it(name):
    window = windows.named(name, now=NOW)
    told = [each for each in random_minutes(days=29, count=500, seed=9) if each.at >= window.start]
    told += [Told(at=NOW.replace(second=0) - MINUTE * number, done=2, dead=1) for number in range(3)]
    write(told)

    steps = reading.series(window, task=TASKS[0], now=NOW)

    width = timedelta(seconds=window.step_seconds)
    assert len(steps) == len(window.steps)
    for start, figures in zip(window.steps, steps, strict=True):
        if figures is None:
            assert not any(start <= each.at < start + width for each in told)
        else:
            assert counts(figures) == expected(told, start, start + width, task=TASKS[0])


def test_a_minute_in_which_no_worker_reported_is_unknown_and_one_in_which_nothing_ran_is_zero():
    last = NOW.replace(second=0)
    write(
        [
            Told(at=last - 3 * MINUTE, done=4),
            Told(at=last - 1 * MINUTE, task=None),
            Told(at=last - 1 * MINUTE, task=TASKS[1], queue="low", done=1),
        ]
    )
    window = windows.named("1h", now=NOW)

    steps = reading.series(window, now=NOW)
    of_a_queue = reading.series(window, queue="critical", now=NOW)

    assert [figures and figures.done for figures in steps[-4:]] == [4, None, 1, None]
    assert [figures and figures.done for figures in of_a_queue[-4:]] == [4, None, 0, None]


def test_percentiles_of_a_span_are_within_the_stated_error_of_the_samples():
    chance = random.Random(3)
    told = [
        Told(
            at=NOW.replace(second=0) - MINUTE * number,
            latency=[chance.lognormvariate(0, 1.5) for _ in range(40)],
        )
        for number in range(200)
    ]
    write(told)
    samples = [value for each in told for value in each.latency]

    found = reading.totals(NOW - timedelta(minutes=240, seconds=20), NOW, now=NOW)

    for percent in (50, 95, 99):
        truth = sorted(samples)[int(percent / 100 * (len(samples) - 1))]
        assert found.latency_percentile(percent) == pytest.approx(truth, rel=ALPHA)


def test_without_a_finished_job_there_is_no_failure_rate():
    figures = reading.Figures(retried=3, revoked=1)

    assert figures.failure_rate is None
    assert figures.attempts == 4
    assert reading.Figures(done=3, dead=1).failure_rate == 0.25
    assert figures.latency_percentile(99) is None


def test_the_newest_report_is_the_newest_minute_of_any_worker():
    assert reading.newest_report(now=NOW) is None
    write([Told(at=NOW.replace(second=0) - 9 * MINUTE, task=None), Told(at=NOW - timedelta(hours=3), done=1)])

    assert reading.newest_report(now=NOW) == NOW.replace(second=0) - 9 * MINUTE


def test_names_with_quotes_and_controls_are_names():
    hostile = "critical'); DROP TABLE--\u202e\n"
    write([Told(at=NOW.replace(second=0), queue=hostile, done=2)])
    window = windows.named("1h", now=NOW)

    assert reading.by_queue(window, now=NOW)[hostile].done == 2
    assert reading.totals(NOW - MINUTE, NOW + MINUTE, queue=hostile, now=NOW).done == 2
    assert Rollup.objects.filter(queue=hostile).count() == 6


@pytest.mark.parametrize("name", ["1h", "24h", "30d"])
def test_what_finished_by_name_equals_the_tables(name, django_assert_num_queries):
    told = random_minutes(days=29, count=300, seed=12)
    write(told)
    window = windows.named(name, now=NOW)

    with django_assert_num_queries(1):
        found = reading.finished_by("queue", window, now=NOW)

    table = reading.by_queue(window, now=NOW)
    assert {name: (each.done, each.dead) for name, each in found.items()} == {
        name: (each.done, each.dead) for name, each in table.items()
    }
    tasks = reading.by_task(window, now=NOW)
    assert {name: each.dead for name, each in reading.finished_by("task", window, now=NOW).items()} == {
        name: each.dead for name, each in tasks.items()
    }


def test_known_minutes_are_those_in_which_a_worker_reported():
    window = windows.named("1h", now=NOW)
    assert reading.known_minutes(window, now=NOW) == 0

    write([Told(at=NOW.replace(second=0) - number * MINUTE, task=None) for number in (0, 1, 2, 30, 90)])

    # Of the minute that has begun it is one: a rate of a second would be no rate.
    assert reading.known_minutes(window, now=NOW) == 4
    month = windows.named("30d", now=NOW)
    # Two hours and 12 minutes of the third.
    assert reading.known_minutes(month, now=NOW) == pytest.approx(120 + 12 + 20 / 60)
