"""Rollups hold what was told, however it was cut into batches; two that count at once count each batch once."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import numpy
import pytest
from django.db import connection
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from jobs.agent.batches import bucket_of
from jobs.core import histograms
from jobs.core.words import RollupLevel, RollupScope
from jobs.metrics import rollups
from jobs.metrics.storing import store
from jobs.models import Rollup, Run, WorkerBoot
from tests.metrics.batches import NOW, cells_of, make_batch, make_run
from tests.postgres import default_database

# And what floating point adds at the edge of a bucket.
RELATIVE_ERROR = 0.05 + 1e-9
# What a measured duration is, from nothing to a year.
DURATIONS = st.floats(0.0002, 31_000_000.0)


@given(
    st.lists(DURATIONS, min_size=1, max_size=400), st.sampled_from([0, 1, 25, 50, 75, 90, 95, 99, 99.9, 100])
)
def test_a_percentile_is_within_five_per_cent_of_numpys(samples, percent):
    counted = Counter(bucket_of(sample) for sample in samples)
    # As they travel and lie in the table: in pieces that are packed and merged.
    pieces = [counted, Counter(bucket_of(sample) for sample in samples)]
    packed = [histograms.pack(piece) for piece in pieces]
    merged = histograms.merge(histograms.unpack(piece) for piece in packed)

    exact = numpy.percentile(samples, percent, method="lower")
    twice = numpy.percentile(samples * 2, percent, method="lower")

    assert histograms.percentile(counted, percent) == pytest.approx(exact, rel=RELATIVE_ERROR)
    assert histograms.percentile(merged, percent) == pytest.approx(twice, rel=RELATIVE_ERROR)


@pytest.mark.parametrize("percent", [50, 95, 99])
def test_percentiles_of_ten_thousand_latencies_are_within_five_per_cent_of_numpys(percent):
    samples = numpy.random.default_rng(4).lognormal(-2, 1.5, 10_000)

    ours = histograms.percentile(Counter(bucket_of(float(sample)) for sample in samples), percent)

    assert ours == pytest.approx(numpy.percentile(samples, percent), rel=RELATIVE_ERROR)


RUNS = st.lists(
    st.builds(
        lambda task, queue, outcome, ago, runtime: make_run(
            task=f"t{task}",
            queue=f"q{queue}",
            outcome=outcome,
            finished_at=NOW.timestamp() - ago,
            runtime=runtime,
            latency=None,
        ),
        st.integers(0, 3),
        st.integers(0, 2),
        st.sampled_from(["done", "dead", "retried", "revoked", "ignored"]),
        st.integers(0, 200_000),
        st.floats(0, 100),
    ),
    max_size=40,
)


@given(st.lists(RUNS, max_size=5))
def test_every_level_and_scope_comes_to_the_same_totals(groups):
    found = rollups.add_up((cell for runs in groups for cell in cells_of(runs)), [], now=NOW)

    expected = Counter(run.outcome for runs in groups for run in runs)
    for level in RollupLevel:
        for scope in RollupScope:
            of_both = [sums for key, sums in found.items() if key[:2] == (level, scope)]
            total = Counter()
            for sums in of_both:
                total.update(dict(zip(rollups.COUNTS, sums.counts, strict=True)))
            assert {name: total[name] for name in expected} == expected
            assert sum(histograms.total(sums.runtime) for sums in of_both) == sum(expected.values())


@pytest.mark.django_db
@pytest.mark.usefixtures("each_database")
class TestOnEachDatabase:
    @hypothesis_settings(
        max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
    )
    @given(groups=st.lists(RUNS, min_size=1, max_size=4), order=st.randoms(use_true_random=False))
    def test_batches_in_any_order_and_twice_come_to_what_was_run(self, groups, order):
        Rollup.objects.all().delete()
        Run.objects.all().delete()
        WorkerBoot.objects.all().delete()
        made = [make_batch(runs, sequence=number) for number, runs in enumerate(groups, start=1)]
        deliveries = [*made, *made]
        order.shuffle(deliveries)

        for number in range(0, len(deliveries), 2):
            store(deliveries[number : number + 2], now=NOW)

        expected = Counter((run.task, run.queue, run.outcome) for runs in groups for run in runs)
        for level in RollupLevel:
            counted: Counter[Any] = Counter()
            buckets: Counter[int] = Counter()
            for row in Rollup.objects.filter(level=level, scope="both"):
                for outcome in ("done", "dead", "retried", "revoked", "ignored"):
                    if number := getattr(row, outcome):
                        counted[row.task, row.queue, outcome] += number
                buckets.update(histograms.unpack(row.runtime))
            assert counted == expected
            assert buckets == Counter(bucket_of(run.runtime) for runs in groups for run in runs)
        assert Run.objects.count() == sum(expected.values())
        assert WorkerBoot.objects.get().attempts == sum(expected.values())


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_two_collectors_at_once_count_each_batch_once(postgres_server):
    """One that lost its lease may still be at it, with the very batches that its successor got."""
    with default_database(postgres_server.create_migrated_database("two_collectors_of_runs")):
        made = [
            make_batch(
                [make_run(task=f"t{task}", queue=f"q{task % 3}") for task in range(20)],
                boot_id=f"boot-{number % 4}",
                sequence=1 + number // 4,
            )
            for number in range(80)
        ]
        failures: list[BaseException] = []
        begin = threading.Barrier(3)

        def collect(batches: list[Any], together: int) -> None:
            try:
                begin.wait(timeout=30)
                for start in range(0, len(batches), together):
                    store(batches[start : start + together], now=NOW + timedelta(seconds=start))
            except BaseException as failure:  # noqa: BLE001 - the test tells it
                failures.append(failure)
            finally:
                connection.close()

        threads = [
            threading.Thread(target=collect, args=(batches, together))
            for batches, together in ((made, 3), (made[::-1], 7), ([*made[40:], *made[:40]], 5))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)

        assert failures == []
        assert Run.objects.count() == 1_600
        for level in RollupLevel:
            row = Rollup.objects.get(level=level, scope="all")
            assert (row.received, row.done) == (1_600, 1_600)
            assert histograms.total(histograms.unpack(row.runtime)) == 1_600
            tasks = Rollup.objects.filter(level=level, scope="task").values_list("done", flat=True)
            assert list(tasks) == [80] * 20
        boots = WorkerBoot.objects.order_by("boot_id")
        assert [(boot.attempts, boot.sequence, boot.missing) for boot in boots] == [(400, 20, [])] * 4
