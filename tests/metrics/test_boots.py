"""The lives of workers as pages list them: online, lost and gone."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs.metrics import lost
from jobs.metrics.storing import store
from jobs.metrics.workers import boots_now
from tests.metrics.batches import NOW, make_batch, make_running

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

LATER = NOW + timedelta(seconds=31)


def test_online_lost_and_gone_workers_are_told_by_name():
    store(
        [
            make_batch(boot_id="a", hostname="celery@a", held={"low": 3}, reserved={"low": 1, "q": 1}),
            make_batch(boot_id="b", hostname="celery@b", running=[make_running()]),
            make_batch(boot_id="c", hostname="celery@c", is_goodbye=True),
        ],
        now=NOW,
    )
    lost.declare_lost(now=LATER)
    store([make_batch(boot_id="a", hostname="celery@a", sequence=2, held={"low": 3})], now=LATER)

    boots = boots_now(now=LATER)

    assert [(boot.hostname, boot.state, boot.jobs_lost) for boot in boots] == [
        ("celery@a", "online", 0),
        ("celery@b", "lost", 1),
        ("celery@c", "gone", 0),
    ]
    assert (boots[0].held_total, boots[0].reserved_total) == (3, 0)
    assert boots[1].running[0]["task"] == "shop.tasks.send_receipt"


def test_one_that_is_gone_is_listed_for_an_hour_unless_its_name_is_back():
    store([make_batch(boot_id="a", is_goodbye=True)], now=NOW)
    assert [boot.state for boot in boots_now(now=NOW + timedelta(minutes=59))] == ["gone"]
    assert boots_now(now=NOW + timedelta(minutes=61)) == []

    store([make_batch(boot_id="b")], now=NOW)
    assert [boot.boot_id for boot in boots_now(now=NOW + timedelta(minutes=1))] == ["b"]


def test_one_that_is_lost_is_listed_for_a_day_beside_its_successor():
    store([make_batch(boot_id="a")], now=NOW)
    lost.declare_lost(now=LATER)
    store([make_batch(boot_id="b", started_at=LATER.timestamp())], now=LATER)

    assert [boot.state for boot in boots_now(now=NOW + timedelta(hours=23))] == ["online", "lost"]
    assert "lost" not in [boot.state for boot in boots_now(now=NOW + timedelta(hours=25))]


def test_the_list_of_workers_is_one_query(django_assert_num_queries):
    store([make_batch(boot_id=f"b{n}", hostname=f"h{n}") for n in range(30)], now=NOW)

    with django_assert_num_queries(1):
        assert len(boots_now(now=NOW)) == 30
