"""Samples: written each round, summed into minutes and hours, read for pages."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from jobs import leases
from jobs.agent.wire import DEAD_QUEUE, RUNS_QUEUE
from jobs.broker import connect
from jobs.broker.queues import Meter
from jobs.broker.redis_queues import SCANNED_KEYS
from jobs.core import windows
from jobs.core.words import SampleLevel
from jobs.errors import BrokerUnavailable
from jobs.models import OutboxMessage, QueuePause, QueueSample, Worker
from jobs.queues import reading
from jobs.queues.sampling import LOOK_EVERY, MOST_QUEUES, Sampler, prune, write
from tests.metrics_rows import make_boot, make_rollup, make_sample, running_job
from tests.queues.messages import publisher, send

NOW = datetime(2026, 11, 30, 3, 12, 4, tzinfo=UTC)
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]


@pytest.fixture
def sampler(broker):
    meter = Meter(connect())
    yield Sampler(meter)
    meter.close()


def sample_of(queue: str, level: SampleLevel = SampleLevel.SAMPLE) -> QueueSample:
    return QueueSample.objects.filter(queue=queue, level=level).order_by("-at")[0]


def test_a_round_counts_what_waits_what_is_held_and_who_consumes(broker, sampler):
    make_boot("celery@a", queues=["critical", "low"], last_seen_at=NOW, held={"critical": 300})
    make_boot("celery@b", queues=["critical"], last_seen_at=NOW)
    OutboxMessage.objects.create(
        queue="critical",
        created_at=NOW,
        available_at=NOW + timedelta(hours=1),
        eta=NOW + timedelta(hours=1),
        body=b"",
    )
    with publisher(broker.url) as app:
        send(app, count=3)

    assert sampler.sample(now=NOW) == 2

    found = sample_of("critical")
    assert (found.ready, found.unacknowledged, found.held_by_workers, found.held_in_outbox) == (3, 0, 300, 1)
    assert (found.consumers, found.held_by_broker, found.is_paused, found.trouble) == (2, 0, False, "")
    assert sample_of("low").consumers == 1


def test_queues_come_from_workers_counts_pauses_and_the_broker(broker, sampler):
    make_boot(queues=["by-report"], last_seen_at=NOW)
    Worker.objects.create(hostname="celery@old", queues=["by-answer"], seen_at=NOW - timedelta(hours=3))
    make_rollup(at=NOW - timedelta(hours=2), queue="by-count", done=1)
    QueuePause.objects.create(queue="by-pause", paused_at=NOW, actor="mara")
    with publisher(broker.url) as app:
        send(app, "by-message")

    sampler.sample(now=NOW)

    assert [found.queue for found in reading.now_of_all(now=NOW)] == [
        *("by-answer", "by-count", "by-message", "by-pause", "by-report")
    ]


def test_a_worker_without_the_agent_counts_as_a_consumer_and_leaves_its_memory_unknown(broker, sampler):
    Worker.objects.create(hostname="celery@plain", queues=["critical"], seen_at=NOW - timedelta(seconds=20))
    Worker.objects.create(hostname="celery@gone", queues=["critical"], seen_at=NOW - timedelta(seconds=90))

    sampler.sample(now=NOW)

    assert sample_of("critical").consumers == 1
    assert sample_of("critical").held_by_workers is None


def test_a_worker_that_said_goodbye_is_no_consumer_though_it_answered_a_moment_before(broker, sampler):
    make_boot("celery@a", queues=["critical"], last_seen_at=NOW, goodbye_at=NOW)
    Worker.objects.create(hostname="celery@a", queues=["critical"], seen_at=NOW - timedelta(seconds=5))

    sampler.sample(now=NOW)

    assert sample_of("critical").consumers == 0


def test_a_queue_whose_last_worker_has_gone_is_counted_on(broker, sampler):
    boot = make_boot("celery@a", queues=["critical"], last_seen_at=NOW)
    sampler.sample(now=NOW)
    boot.goodbye_at = NOW
    boot.save()

    sampler.sample(now=NOW + reading.SAMPLE_EVERY)

    found = sample_of("critical")
    assert (found.at, found.consumers) == (NOW + reading.SAMPLE_EVERY, 0)


def declare(client: Redis, *queues: str) -> None:
    """Declare queues as kombu does, each with a message."""
    with client.pipeline() as pipeline:
        for queue in queues:
            pipeline.sadd(f"_kombu.binding.{queue}", "\x06\x16".join((queue, "", queue)))
            pipeline.lpush(queue, "{}")
        pipeline.execute()


def test_a_queue_that_nobody_consumes_is_counted_on_where_one_look_does_not_reach_all_keys(broker, sampler):
    """Results of Celery's are keys too. It was counted for the minute after the look that found it, and its alert
    ended while the messages still waited."""
    with broker.client() as client:
        client.mset({f"celery-task-meta-{number}": "" for number in range(SCANNED_KEYS + 5_000)})
        declare(client, "mistyped")
    looks = [NOW + LOOK_EVERY * number for number in range(6)]

    counted = [sampler.sample(now=at) for at in looks]

    first = counted.index(1)
    assert first <= 1
    assert counted[first:] == [1] * (6 - first)
    assert sample_of("mistyped").at == looks[-1]


def test_a_queue_that_nobody_consumes_is_counted_on_after_a_restart_of_runops(broker, sampler):
    with broker.client() as client:
        declare(client, "mistyped")
        sampler.sample(now=NOW)
        # No look finds it now, as one that would come to it only in an hour.
        client.delete("_kombu.binding.mistyped")
    meter = Meter(connect())

    Sampler(meter).sample(now=NOW + reading.SAMPLE_EVERY)

    meter.close()
    assert sample_of("mistyped").at == NOW + reading.SAMPLE_EVERY


def test_a_queue_that_nobody_consumes_is_left_out_once_it_is_empty(broker, sampler):
    with broker.client() as client:
        declare(client, "mistyped")
        sampler.sample(now=NOW)
        client.delete("mistyped")
    sampler.sample(now=NOW + LOOK_EVERY)

    assert sampler.sample(now=NOW + LOOK_EVERY * 2) == 0

    found = reading.now_of("mistyped", now=NOW + LOOK_EVERY * 2)
    assert found.is_stale
    assert found.trouble.startswith("It is not counted now. ")


def test_queues_that_come_later_displace_none_in_which_messages_wait(broker, sampler):
    with broker.client() as client:
        declare(client, *(f"q{number}" for number in range(MOST_QUEUES)))
        sampler.sample(now=NOW)
        declare(client, *(f"a{number}" for number in range(MOST_QUEUES)))

    sampler.sample(now=NOW + LOOK_EVERY)

    found = reading.now_of_all(now=NOW + LOOK_EVERY)
    assert len(found) == MOST_QUEUES
    assert {each.queue[0] for each in found} == {"q"}


def test_hostile_names_are_left_out_and_their_number_is_bounded(broker, sampler):
    make_boot(queues=["a\nb", "x" * 300, "", DEAD_QUEUE, *(f"q{n}" for n in range(1_000))], last_seen_at=NOW)

    assert sampler.sample(now=NOW) == MOST_QUEUES

    assert {len(found.queue) for found in reading.now_of_all(now=NOW)} == {2, 3, 4}


def test_minutes_and_hours_keep_the_newest_and_the_highest():
    for second, ready, age in ((0, 5, 10.0), (5, 90, None), (10, 7, 4.0)):
        row = QueueSample(queue="critical", ready=ready, oldest_age_seconds=age, consumers=second)
        write([row], now=NOW.replace(second=second))

    for level in (SampleLevel.MINUTE, SampleLevel.HOUR):
        found = sample_of("critical", level)
        assert (found.samples, found.ready, found.ready_max, found.oldest_age_seconds) == (3, 7, 90, 10.0)
        assert found.consumers == 10
    assert sample_of("critical", SampleLevel.MINUTE).at == NOW.replace(second=0)
    assert sample_of("critical", SampleLevel.HOUR).at == NOW.replace(minute=0, second=0)


def test_what_is_past_its_time_is_deleted():
    for age in (timedelta(minutes=59), timedelta(hours=2), timedelta(days=8), timedelta(days=800)):
        make_sample(at=NOW - age)

    prune(now=NOW)

    kept = QueueSample.objects.values_list("level", flat=True)
    assert sorted(kept) == ["hour", "hour", "hour", "minute", "minute", "sample"]


def test_a_broker_that_is_away_leaves_a_gap_and_its_trouble_is_told(settings):
    settings.BROKER_URL = "redis://127.0.0.1:1/0"
    make_sample(at=NOW - timedelta(seconds=20))
    with pytest.raises(BrokerUnavailable) as away:
        Sampler(Meter(connect())).sample(now=NOW)
    lease = leases.acquire(duty=reading.DUTY, holder="runops", seconds=60)
    lease.tell_trouble(str(away.value))

    assert QueueSample.objects.filter(level=SampleLevel.SAMPLE).count() == 1
    [found] = reading.now_of_all(now=NOW)
    assert found.is_stale
    assert "127.0.0.1:1" in found.trouble


def test_a_sample_of_a_clock_that_was_ahead_does_not_stay_the_newest():
    make_sample(at=NOW + timedelta(hours=5), ready=1)
    make_sample(at=NOW - timedelta(seconds=5), ready=2)

    assert reading.now_of("critical", now=NOW).ready == 2
    assert [found.ready for found in reading.now_of_all(now=NOW)] == [2]


def test_without_runops_the_queues_say_that_nobody_counts():
    make_sample(at=NOW - timedelta(minutes=5))

    found = reading.now_of("critical", now=NOW)

    assert found.is_stale
    assert "runops" in found.trouble


def test_queues_that_a_runops_counts_slowly_are_not_said_to_be_counted_by_nobody():
    """With a second on the way to Redis a round takes longer than a sample is fresh."""
    make_sample(at=NOW - timedelta(minutes=5))
    assert leases.acquire(duty=reading.DUTY, holder="runops", seconds=60)

    found = reading.now_of("critical", now=NOW)

    assert found.is_stale
    assert found.trouble.startswith("Queues have not been counted lately: a runops is at it,")


def test_a_queue_with_messages_and_nobody_who_consumes_is_marked_unless_it_is_paused():
    make_sample(queue="critical", at=NOW, ready=3, consumers=0)
    make_sample(queue="low", at=NOW, ready=3, consumers=0)
    make_sample(queue="empty", at=NOW, ready=0, consumers=0)
    make_sample(queue="unknown", at=NOW, ready=3, consumers=None)
    QueuePause.objects.create(queue="low", paused_at=NOW, actor="mara")

    found = {each.queue: each for each in reading.now_of_all(now=NOW)}

    assert [queue for queue, each in found.items() if each.is_unconsumed] == ["critical"]
    assert (found["low"].is_paused, found["low"].paused_by, found["low"].paused_at) == (True, "mara", NOW)


def test_reading_takes_the_same_few_queries_however_many_queues_there_are(django_assert_max_num_queries):
    for number in range(50):
        make_sample(queue=f"q{number}", at=NOW)

    with django_assert_max_num_queries(4):
        assert len(reading.now_of_all(now=NOW)) == 50
    with django_assert_max_num_queries(3):
        assert reading.now_of("q7", now=NOW).queue == "q7"
    for name in windows.NAMED:
        with django_assert_max_num_queries(2):
            assert len(reading.depth_series(windows.named(name, now=NOW), now=NOW)) == 50


def test_depth_by_step_shows_gaps_the_last_and_the_highest():
    window = windows.named("6h", now=NOW)
    at = window.start
    make_sample(at=at, level=SampleLevel.MINUTE, ready=1, ready_max=8, oldest_age_seconds=3.0)
    make_sample(at=at + timedelta(minutes=4), level=SampleLevel.MINUTE, ready=4, ready_max=6)
    make_sample(at=at + timedelta(minutes=10), level=SampleLevel.MINUTE, ready=2)

    points = reading.depth_series(window, queues=["critical", "never"], now=NOW)

    assert len(points["critical"]) == 72
    assert points["critical"][0] == reading.DepthPoint(4, 8, 3.0, 1)
    assert points["critical"][1] is None
    assert points["critical"][2] == reading.DepthPoint(2, 2, None, 1)
    assert points["never"] == [None] * 72


def test_a_window_of_30_days_is_made_of_hours():
    window = windows.named("30d", now=NOW)
    make_sample(at=NOW - timedelta(days=20), level=SampleLevel.HOUR, ready=5)
    make_sample(at=NOW - timedelta(days=20), level=SampleLevel.MINUTE, ready=6)

    points = [point for point in reading.depth_series(window, now=NOW)["critical"] if point]

    assert [point.ready for point in points] == [5]


def test_the_backlog_of_the_collector_is_counted_and_listed_nowhere(broker, sampler):
    with broker.client() as client:
        client.lpush(DEAD_QUEUE, b"{}", b"{}")
        client.lpush(RUNS_QUEUE, b"{}")

    sampler.sample(now=NOW)

    backlog = reading.collector_backlog(now=NOW)
    assert (backlog.dead, backlog.runs, backlog.is_stale) == (2, 1, False)
    assert reading.now_of_all(now=NOW) == []
    assert reading.depth_series(windows.named("1h", now=NOW), now=NOW) == {}


def test_on_other_brokers_unacknowledged_is_the_word_of_the_workers(settings):
    settings.BROKER_URL = "memory://"
    running = [running_job(queue="critical"), running_job(queue="critical", is_acknowledged=True)]
    make_boot(
        queues=["critical"], last_seen_at=NOW, held={"critical": 2}, reserved={"critical": 4}, running=running
    )
    meter = Meter(connect())

    Sampler(meter).sample(now=NOW)

    meter.close()
    found = reading.now_of("critical", now=NOW)
    assert (found.unacknowledged, found.held_by_workers, found.is_told_by_workers) == (7, 2, True)


def test_a_round_over_200_queues_and_20000_messages_takes_less_than_a_second(broker, sampler):
    queues = [f"q{number:03}" for number in range(200)]
    make_boot(queues=queues, last_seen_at=NOW)
    with broker.client() as client, client.pipeline(transaction=False) as pipeline:
        item = b'{"headers": {"jobs-published-at": 1}, "properties": {"delivery_info": {}}}' + b" " * 1_000
        for queue in queues:
            pipeline.lpush(queue, *[item] * 50)
        for number in range(10_000):
            pipeline.zadd("unacked_index", {f"tag-{number}": 1.8e9})
            pipeline.hset("unacked", f"tag-{number}", b'[{"body": "' + b"x" * 1_000 + b'"}, "", "q000"]')
        pipeline.execute()
    sampler.sample(now=NOW)

    began = time.perf_counter()
    sampler.sample(now=NOW + timedelta(seconds=5))
    seconds = time.perf_counter() - began

    assert sample_of("q000").unacknowledged == 10_000
    assert seconds < 1.0


def test_row_66_messages_of_workers_that_are_gone_are_told_with_the_time_of_their_return(broker, sampler):
    make_boot("celery@a", queues=["critical"], last_seen_at=NOW, held={"critical": 1})
    with publisher(broker.url) as app:
        send(app, count=4)
    with connect() as connection:
        for _ in range(4):
            connection.default_channel.basic_get("critical")
        with broker.client() as client:
            at = time.time() - 600
            for tag in client.zrange("unacked_index", 0, 2):
                client.zadd("unacked_index", {tag: at})

        sampler.sample(now=NOW)

    found = reading.now_of("critical", now=NOW)
    assert found.unacknowledged == 4
    returns_at = datetime.fromtimestamp(at + 3_600, UTC)
    assert found.trouble == (
        "2 delivered messages belong to no worker that is there. Redis delivers them again from"
        f" {returns_at:%Y-%m-%d %H:%M} UTC on, when their visibility timeout is over."
    )
