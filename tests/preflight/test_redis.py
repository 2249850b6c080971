"""Preflight against a real Redis, set up well and badly."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Connection
from kombu.exceptions import OperationalError

from console.settings import broker_transport_options
from jobs.errors import BrokerUnavailable
from jobs.preflight.checks import check
from jobs.preflight.facts import Facts
from jobs.preflight.findings import Finding, Level, refusing
from jobs.preflight.gather_application import application_facts, declared_queues
from jobs.preflight.gather_broker import opened, redis_facts, redis_queues
from tests.applications import Application
from tests.servers import RedisServer, free_port, wait_until


def application(url: str, **settings: Any) -> Celery:
    app = Application("shop", broker=url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_time_limit=660,
        task_default_queue="shop",
        worker_prefetch_multiplier=1,
        broker_transport_options={"socket_timeout": 5, "socket_connect_timeout": 5},
    )
    app.conf.update(settings)

    @app.task(name="shop.touch", shared=False)
    def touch() -> None:
        """Do nothing."""

    return app


def inspect(app: Celery, *, with_jobs: bool = False) -> list[Finding]:
    with opened(app, timeout_seconds=5) as connection:
        facts = redis_facts(connection, with_jobs=with_jobs)
    return check(Facts(application_facts(app, has_agent=True), redis=facts))


def levels(findings: list[Finding]) -> dict[str, Level]:
    return {finding.name: finding.level for finding in findings}


def test_a_redis_that_keeps_jobs_is_found_without_fault(own_redis: RedisServer, settings) -> None:
    settings.BROKER_URL = own_redis.url

    found = inspect(application(own_redis.url))

    assert set(levels(found).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("maxmemory-policy", "allkeys-lru", "maxmemory-policy"),
        ("maxmemory-policy", "volatile-lfu", "maxmemory-policy"),
        ("appendonly", "no", "append-only file"),
        ("appendfsync", "no", "appendfsync"),
    ],
)
def test_a_redis_that_can_lose_jobs_is_refused(
    own_redis: RedisServer, settings, option: str, value: str, name: str
) -> None:
    settings.BROKER_URL = own_redis.url
    with own_redis.client() as client:
        client.config_set(option, value)

    found = refusing(inspect(application(own_redis.url)))

    assert [finding.name for finding in found] == [name]


def test_eviction_that_has_happened_is_counted(own_redis: RedisServer, settings) -> None:
    settings.BROKER_URL = own_redis.url
    app = application(own_redis.url)
    with own_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 300_000)
        for number in range(200):
            client.set(f"cache:{number}", "x" * 10_000)
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")

    found = levels(inspect(app))

    assert found["evicted keys"] is Level.WARNING
    assert found["maxmemory-policy"] is Level.OK


def test_a_replica_is_refused(own_redis: RedisServer, redis_server: RedisServer, settings) -> None:
    settings.BROKER_URL = own_redis.url
    with own_redis.client() as client:
        client.replicaof("127.0.0.1", redis_server.port)

        found = refusing(inspect(application(own_redis.url)))

        client.replicaof("NO", "ONE")
        # A Redis whose first append-only file is still being written does not end when it is told to.
        wait_until(lambda: not is_rewriting(client), seconds=60, what="the append-only file")
    assert "redis role" in [finding.name for finding in found]


def is_rewriting(client: redis.Redis) -> bool:
    state = client.info("persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"] or state["loading"])


class TestWithoutPermission:
    """As on managed services: a user that may not ask."""

    @staticmethod
    def url(server: RedisServer, *denied: str) -> str:
        with server.client() as client:
            client.execute_command(
                "ACL",
                "SETUSER",
                "shop",
                "on",
                ">secret",
                "~*",
                "&*",
                "+@all",
                *(f"-{name}" for name in denied),
            )
        return f"redis://shop:secret@127.0.0.1:{server.port}/0"

    def test_without_config_only_appendfsync_is_unknown(self, own_redis: RedisServer, settings) -> None:
        settings.BROKER_URL = url = self.url(own_redis, "config")

        found = {finding.name: finding for finding in inspect(application(url))}

        assert {name for name, finding in found.items() if finding.level is not Level.OK} == {"appendfsync"}
        assert found["appendfsync"].level is Level.UNKNOWN
        assert "this user has no permissions" in found["appendfsync"].found.lower()
        assert "redis-cli CONFIG GET appendfsync" in found["appendfsync"].set

    def test_without_info_too_everything_is_unknown_and_nothing_refused(
        self, own_redis: RedisServer, settings
    ) -> None:
        settings.BROKER_URL = url = self.url(own_redis, "config", "info")

        found = inspect(application(url))

        unknown = {finding.name for finding in found if finding.level is Level.UNKNOWN}
        assert unknown == {"redis role", "maxmemory-policy", "append-only file"}
        assert refusing(found) == []

    def test_without_info_config_still_tells(self, own_redis: RedisServer, settings) -> None:
        settings.BROKER_URL = url = self.url(own_redis, "info")
        with own_redis.client() as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_set("appendonly", "no")

        found = refusing(inspect(application(url)))

        assert {finding.name for finding in found} == {"maxmemory-policy", "append-only file"}

    def test_passwords_are_not_shown(self, own_redis: RedisServer, settings) -> None:
        settings.BROKER_URL = url = self.url(own_redis, "config")

        assert application_facts(application(url), has_agent=True).broker == (
            f"redis://shop:**@127.0.0.1:{own_redis.port}/0"
        )


def test_row_64_a_job_whose_time_is_further_away_than_the_visibility_timeout_is_found(
    own_redis: RedisServer, settings
) -> None:
    settings.BROKER_URL = own_redis.url
    app = application(own_redis.url)
    app.send_task("shop.touch", countdown=7200, queue="shop")
    app.send_task("shop.touch", countdown=60, queue="shop")
    with Connection(own_redis.url) as connection:
        # As a worker that waits holds it.
        channel = connection.channel()
        taken = [channel.basic_get("shop") for _ in range(2)]

        found = {finding.name: finding for finding in inspect(app, with_jobs=True)}

        assert found["far jobs"].level is Level.WARNING
        assert "shop.touch waits in a worker for a time 7,200 s ahead" in found["far jobs"].found
        for message in taken:
            channel.basic_ack(message.delivery_tag)


def test_hostile_messages_in_workers_are_no_trouble(own_redis: RedisServer, settings) -> None:
    settings.BROKER_URL = own_redis.url
    hostile: list[object] = [
        b"",
        b"\xff\x00",
        b"[]",
        b"{}",
        b"[" * 10_000,
        json.dumps([{"headers": None}]).encode(),
        json.dumps([{"headers": {"eta": "soon", "task": []}}]).encode(),
        json.dumps([{"headers": {"eta": "9999-12-31T23:59:59+00:00", "task": "\x1b[31m"}}]).encode(),
        b"x" * 100_000,
    ]
    with own_redis.client() as client:
        for number, text in enumerate(hostile):
            client.hset("unacked", str(number), text)
            client.zadd("unacked_index", {str(number): 1})

    found = {finding.name: finding for finding in inspect(application(own_redis.url), with_jobs=True)}

    assert "\x1b" not in found["far jobs"].found


def test_row_101_queues_are_found_with_their_messages_of_every_priority(
    own_redis: RedisServer, settings
) -> None:
    settings.BROKER_URL = own_redis.url
    app = application(own_redis.url)
    for priority in (0, 3, 9):
        app.send_task("shop.touch", queue="shop", priority=priority)
    app.send_task("shop.touch", queue="shpo")
    with own_redis.client() as client:
        client.set("_kombu.binding.strange", "not a set")

    with opened(app, timeout_seconds=5) as connection:
        queues, is_complete = redis_queues(connection, declared_queues(application(own_redis.url)))

    assert is_complete
    assert {queue.name: queue.messages for queue in queues} == {"shop": 3, "shpo": 1}


def test_queues_under_a_key_prefix_are_found(own_redis: RedisServer, settings) -> None:
    settings.BROKER_URL = own_redis.url
    app = application(own_redis.url, broker_transport_options={"global_keyprefix": "shop:"})
    app.send_task("shop.touch", queue="typo")

    with opened(app, timeout_seconds=5) as connection:
        queues, _ = redis_queues(connection, ["shop"])
        facts = redis_facts(connection, with_jobs=True)

    assert {queue.name: queue.messages for queue in queues} == {"shop": 0, "typo": 1}
    assert facts.maxmemory_policy == "noeviction"


def test_a_broker_that_is_away_is_said_with_its_address_and_without_its_password() -> None:
    app = application(f"redis://shop:hunter2@127.0.0.1:{free_port()}/0")

    with (
        pytest.raises(
            BrokerUnavailable, match=r"redis://shop:\*\*@127.0.0.1:\d+/0 does not answer: .*refused"
        ) as raised,
        opened(app, timeout_seconds=1),
    ):
        pass

    assert "hunter2" not in str(raised.value)


def test_row_94_a_broker_that_never_answers_is_given_up(own_redis: RedisServer) -> None:
    assert own_redis.process is not None
    own_redis.process.send_signal(signal.SIGSTOP)
    try:
        with (
            pytest.raises(BrokerUnavailable, match="does not answer"),
            opened(application(own_redis.url, broker_transport_options={}), timeout_seconds=0.5),
        ):
            pass
    finally:
        own_redis.process.send_signal(signal.SIGCONT)


def test_row_94_with_our_own_options_a_publish_to_a_redis_that_never_answers_ends(
    own_redis: RedisServer,
) -> None:
    options = {**broker_transport_options(own_redis.url), "socket_timeout": 0.3}
    app = application(own_redis.url, broker_transport_options=options)
    app.send_task("shop.touch", queue="shop")

    own_redis.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(OperationalError, match="Timeout"):
            app.send_task("shop.touch", queue="shop")
    finally:
        own_redis.process.send_signal(signal.SIGCONT)
        app.close()


def test_results_that_stay_for_ever_on_the_broker_are_found(own_redis: RedisServer, settings) -> None:
    settings.BROKER_URL = own_redis.url
    shared = f"redis://127.0.0.1:{own_redis.port}/1"

    assert application_facts(
        application(own_redis.url, result_backend=shared, result_expires=None), has_agent=True
    ).keeps_results_on_broker
    assert not application_facts(
        application(own_redis.url, result_backend=shared, result_expires=3600), has_agent=True
    ).keeps_results_on_broker
    assert not application_facts(
        application(own_redis.url, result_backend="redis://127.0.0.1:1/1", result_expires=None),
        has_agent=True,
    ).keeps_results_on_broker


def test_client_of_the_checks_leaves_nothing_behind(own_redis: RedisServer, settings) -> None:
    settings.BROKER_URL = own_redis.url

    inspect(application(own_redis.url), with_jobs=True)

    with own_redis.client() as client:
        assert client.keys("*") == []
        with pytest.raises(redis.exceptions.ResponseError):
            client.execute_command("NOSUCH")
