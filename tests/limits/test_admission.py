"""``admit`` in one process: seats while a job runs, Redis away, Redis missing."""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import limits
from jobs.agent.wire import SLOT_HEADER
from jobs.core.rates import Rate
from jobs.errors import HeldBack, PermanentError
from jobs.limits import client
from jobs.limits.admission import AWAY_HOLD_SECONDS, keys_of
from tests.servers import RedisServer, wait_until

SCOPE = "shop.charge"


def admit(**options: Any) -> Any:
    given: dict[str, Any] = {
        "scope": SCOPE,
        "rate": None,
        "concurrency": None,
        "lease_seconds": 60,
        "slot": None,
        "holder": "job-1",
    }
    return limits.admit(**{**given, **options})


def holders(server: RedisServer) -> dict[bytes, float]:
    with server.client() as redis:
        return dict(redis.zrange(keys_of(SCOPE).seats, 0, -1, withscores=True))


def test_a_job_without_limits_asks_no_redis(settings) -> None:
    settings.REDIS_URL, settings.BROKER_URL = "", "amqp://guest@127.0.0.1:1//"

    with admit():
        ran = True

    assert ran


def test_a_job_that_is_held_back_is_told_when_to_come_and_its_turn(limits_redis: RedisServer) -> None:
    rate = Rate(1, 60.0)
    with admit(rate=rate):
        pass

    with pytest.raises(HeldBack) as caught, admit(rate=rate):
        pass

    assert 30 < caught.value.seconds < 60
    assert caught.value.headers[SLOT_HEADER] == pytest.approx(time.time() + caught.value.seconds, abs=20)


def test_limits_count_by_scope(limits_redis: RedisServer) -> None:
    rate = Rate(1, 60.0)

    with admit(rate=rate, scope="shop.mail:7"), admit(rate=rate, scope="shop.mail:8"):
        pass
    with pytest.raises(HeldBack), admit(rate=rate, scope="shop.mail:7"):
        pass


@pytest.mark.parametrize("slot", ["tomorrow", [1], float("nan"), float("inf"), True, {"a": 1}, 1e308, -1])
def test_a_turn_that_somebody_invented_does_no_harm(limits_redis: RedisServer, slot: Any) -> None:
    with admit(rate=Rate(10, 1.0), concurrency=2, slot=slot):
        ran = True

    assert ran


def test_no_job_is_held_for_longer_than_asked(limits_redis: RedisServer) -> None:
    held = []

    for _ in range(40):
        try:
            with admit(rate=Rate(1, 1.0), longest_hold_seconds=10):
                pass
        except HeldBack as error:
            held.append((error.seconds, error.headers[SLOT_HEADER]))

    without_turn = [seconds for seconds, turn in held if turn is None]
    assert max(seconds for seconds, _ in held) <= 10
    assert len(without_turn) > 20
    assert min(without_turn) >= 5
    assert len(set(without_turn)) == len(without_turn)


def test_a_seat_is_free_when_the_job_ends_and_when_it_fails(limits_redis: RedisServer) -> None:
    with admit(concurrency=1):
        during = len(holders(limits_redis))
    with pytest.raises(ZeroDivisionError), admit(concurrency=1):
        raise ZeroDivisionError

    assert during == 1
    assert holders(limits_redis) == {}


def test_two_copies_of_one_job_take_two_seats(limits_redis: RedisServer) -> None:
    """A broker may deliver a job twice; the copies do run at once."""
    with admit(concurrency=2), admit(concurrency=2):
        taken = len(holders(limits_redis))

    assert taken == 2


def test_a_seat_is_renewed_for_as_long_as_its_job_runs(limits_redis: RedisServer) -> None:
    with admit(concurrency=1, lease_seconds=2):
        ((holder, first),) = holders(limits_redis).items()
        wait_until(lambda: holders(limits_redis).get(holder, 0) > first + 4e6, what="several renewals")
        with pytest.raises(HeldBack), admit(concurrency=1):
            pass
    renewed_no_more = holders(limits_redis)

    assert renewed_no_more == {}


def test_one_thread_renews_all_seats_of_a_process(limits_redis: RedisServer) -> None:
    with (
        admit(concurrency=3, lease_seconds=60),
        admit(concurrency=3, lease_seconds=0.5),
        admit(concurrency=3, lease_seconds=60),
    ):
        first = min(holders(limits_redis).values())
        wait_until(lambda: min(holders(limits_redis).values()) > first + 5e5, what="the short one's renewal")
        taken = len(holders(limits_redis))

    assert taken == 3


def test_a_seat_that_was_lost_is_taken_back_and_said(
    limits_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="jobs"), admit(concurrency=1, lease_seconds=1.5):
        with limits_redis.client() as redis:
            redis.flushall()
        wait_until(lambda: holders(limits_redis), what="the seat to be taken back")
        wait_until(lambda: caplog.records, what="the log line")

    assert [SCOPE in record.getMessage() for record in caplog.records] == [True]


@pytest.fixture
def own_redis(settings):
    """A Redis of the test's own, to be stopped and started."""
    server = RedisServer().start()
    settings.REDIS_URL = server.url
    client.forget()
    yield server
    client.forget()
    server.remove()


def test_while_redis_is_away_jobs_are_held_back_with_one_line_in_the_log(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ASK_AGAIN_SECONDS", 0.0)
    least, most = AWAY_HOLD_SECONDS
    own_redis.stop()
    seconds = []

    with caplog.at_level(logging.WARNING, logger="jobs"):
        for _ in range(20):
            with pytest.raises(HeldBack) as caught, admit(rate=Rate(1000, 1.0)):
                pass
            seconds.append(caught.value.seconds)
        own_redis.start()
        with admit(rate=Rate(1000, 1.0)):
            pass

    assert all(least <= each <= most for each in seconds)
    assert len(set(seconds)) == len(seconds)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "REDIS_URL" in caplog.records[0].getMessage()
    assert "20 times" in caplog.records[1].getMessage()


def test_while_redis_is_away_it_is_not_asked_for_each_job(own_redis: RedisServer) -> None:
    own_redis.stop()
    with pytest.raises(HeldBack), admit(rate=Rate(1, 1.0)):
        pass
    client.store().ask_again_at = time.monotonic() + 60
    own_redis.start()

    with pytest.raises(HeldBack), admit(rate=Rate(1, 1.0)):
        pass


def test_a_redis_that_never_answers_holds_a_job_back_within_its_timeout(settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings.REDIS_URL = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        client.forget()
        begun = time.monotonic()

        with pytest.raises(HeldBack), admit(concurrency=1):
            pass

        assert time.monotonic() - begun < client.TIMEOUT_SECONDS * 3
    client.forget()


def test_a_redis_that_refuses_to_write_lets_nothing_through(limits_redis: RedisServer) -> None:
    with limits_redis.client() as redis:
        redis.config_set("maxmemory", "1")
        try:
            with pytest.raises(HeldBack), admit(rate=Rate(1000, 1.0)):
                pass
        finally:
            redis.config_set("maxmemory", "0")


def test_a_job_whose_seat_cannot_be_freed_has_still_ended_well(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="jobs"), admit(concurrency=1):
        own_redis.stop()

    assert any("free in 60 s" in record.getMessage() for record in caplog.records)


def test_a_restarted_redis_fails_no_job(own_redis: RedisServer) -> None:
    """The connections in the pool are dead, and the script is forgotten."""
    with admit(rate=Rate(1000, 1.0)):
        pass
    own_redis.stop()
    own_redis.start()

    with admit(rate=Rate(1000, 1.0)):
        ran = True

    assert ran


@pytest.mark.parametrize(
    ("redis_url", "broker_url", "options", "expected"),
    [
        ("redis://a:1/1", "redis://b:2/0", {"global_keyprefix": "x:"}, ("redis://a:1/1", "")),
        ("", "redis://b:2/0", {"global_keyprefix": "x:"}, ("redis://b:2/0", "x:")),
        ("", "rediss://b:2/0", {}, ("rediss://b:2/0", "")),
        ("", "redis+socket:///run/r.sock?virtual_host=3", {}, ("unix:///run/r.sock?db=3", "")),
        ("", "sentinel://a:1;sentinel://b:2", {"master_name": "m"}, ("", "")),
        ("", "redis://a:1/0;redis://b:1/0", {}, ("", "")),
        ("", "amqp://a:1//", {}, ("", "")),
        ("", "", {}, ("", "")),
    ],
)
def test_the_redis_of_the_limits_is_its_own_or_the_brokers(
    settings, redis_url: str, broker_url: str, options: dict[str, Any], expected: tuple[str, str]
) -> None:
    settings.REDIS_URL, settings.BROKER_URL = redis_url, broker_url
    settings.BROKER_TRANSPORT_OPTIONS = options

    assert client.address() == expected


@pytest.mark.parametrize(
    ("redis_url", "said"),
    [
        ("", "Set REDIS_URL"),
        ("http://127.0.0.1:6379", "begins with 'http'"),
        ("nonsense", "begins with ''"),
        ("redis://127.0.0.1:many/0", "cannot be read"),
    ],
)
def test_a_job_with_limits_and_no_redis_fails_for_good_and_says_what_to_set(
    settings, redis_url: str, said: str
) -> None:
    settings.REDIS_URL, settings.BROKER_URL = redis_url, "amqp://guest@127.0.0.1:1//"
    client.forget()

    with pytest.raises(PermanentError, match=said), admit(rate=Rate(1, 1.0)):
        pass

    assert said in limits.missing_redis()
    assert "REDIS_URL" in limits.missing_redis()


def test_nothing_is_missing_while_redis_is_only_away(settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"

    assert limits.missing_redis() == ""


def test_tests_can_lift_the_limits(settings) -> None:
    settings.REDIS_URL, settings.BROKER_URL = "", ""
    ran = 0

    with limits.lifted():
        for _ in range(3):
            with admit(rate=Rate(1, 60.0), concurrency=1):
                ran += 1
    with pytest.raises(PermanentError), admit(rate=Rate(1, 60.0)):
        ran += 1

    assert ran == 3


def test_a_forked_child_has_a_client_and_a_heartbeat_of_its_own(limits_redis: RedisServer) -> None:
    reading, writing = os.pipe()

    with admit(concurrency=2, lease_seconds=0.6):
        inherited = client.store()
        child = os.fork()
        if child == 0:
            ok = b"0"
            try:
                with admit(concurrency=2, lease_seconds=0.6, holder="child"):
                    (mine,) = [each for each in holders(limits_redis) if each.startswith(b"child")]
                    first = holders(limits_redis)[mine]
                    wait_until(lambda: holders(limits_redis).get(mine, 0) > first + 5e5, what="renewal")
                    ok = b"1" if client.store() is not inherited else b"2"
            finally:
                os.write(writing, ok)
                os._exit(0)
        os.waitpid(child, 0)
        ((mine, first),) = holders(limits_redis).items()
        wait_until(lambda: holders(limits_redis).get(mine, 0) > first + 5e5, what="the parent's renewal")

    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.close(writing)


@given(scope=st.text(max_size=300))
def test_any_scope_has_keys_that_a_cluster_keeps_together(scope: str) -> None:
    keys = keys_of(scope)

    tag = keys.numbers[keys.numbers.index("{") : keys.numbers.index("}") + 1]
    assert keys.seats == f"{keys.numbers}:seats"
    assert keys.numbers == f"jobs:limits:{tag}"
    assert len(tag) <= 202
    keys.numbers.encode()


def test_long_scopes_that_differ_at_the_end_have_different_keys() -> None:
    assert keys_of("a" * 500 + "1") != keys_of("a" * 500 + "2")
