"""Preflight against a real RabbitMQ."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from console.settings import broker_transport_options
from jobs.errors import BrokerUnavailable
from jobs.preflight.checks import check
from jobs.preflight.facts import Facts
from jobs.preflight.findings import Finding, Level, refusing
from jobs.preflight.gather_application import application_facts
from jobs.preflight.gather_broker import opened, rabbit_facts, rabbit_queues
from tests.applications import Application
from tests.preflight.place import APPLICATION, Place, found
from tests.rabbit import RabbitServer
from tests.servers import free_port, running, wait_until

DEAD = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "jobs.dead"}
BOUNDED = {"confirm_publish": True, "read_timeout": 5, "write_timeout": 5}
START_SECONDS = 90


def queue(name: str, **arguments: Any) -> Queue:
    return Queue(name, Exchange(name), routing_key=name, **arguments)


@pytest.fixture
def app(rabbit: RabbitServer, settings) -> Iterator[Celery]:
    settings.BROKER_URL = rabbit.url
    app = Application("shop", broker=rabbit.url, set_as_current=False)
    app.conf.update(
        task_acks_late=True,
        task_time_limit=660,
        task_default_queue="shop",
        task_queues=[queue("shop", queue_arguments=DEAD)],
        worker_prefetch_multiplier=1,
        broker_transport_options=BOUNDED,
    )

    @app.task(name="shop.touch", shared=False)
    def touch() -> None:
        """Do nothing."""

    yield app
    app.close()


def inspect(app: Celery, *, consumer_timeout_seconds: float = 1800) -> list[Finding]:
    with opened(app, timeout_seconds=5) as connection:
        facts = rabbit_facts(connection, consumer_timeout_seconds=consumer_timeout_seconds)
    return check(Facts(application_facts(app, has_agent=True), rabbit=facts))


def faults(findings: list[Finding]) -> dict[str, Level]:
    return {finding.name: finding.level for finding in findings if finding.level is not Level.OK}


def test_a_rabbitmq_that_keeps_jobs_is_found_without_fault(app: Celery) -> None:
    assert faults(inspect(app)) == {}


def test_row_77_limits_beyond_the_consumer_timeout_are_refused(app: Celery) -> None:
    findings = refusing(inspect(app, consumer_timeout_seconds=600))

    assert [finding.name for finding in findings] == ["consumer timeout"]
    assert "rabbitmq.conf: consumer_timeout = 780000" in findings[0].set


def test_row_82_publishes_without_confirms_are_an_error_and_not_refused(app: Celery) -> None:
    app.conf.broker_transport_options = {**BOUNDED, "confirm_publish": False}

    findings = inspect(app)

    assert faults(findings) == {"publisher confirms": Level.ERROR}
    assert refusing(findings) == []


def test_row_79_queues_that_drop_jobs_without_a_dead_letter_exchange_are_found(app: Celery) -> None:
    app.conf.task_queues = [
        queue("shop", queue_arguments=DEAD),
        queue("votes", queue_arguments={"x-queue-type": "quorum"}),
        queue("brief", message_ttl=60),
        queue("safe", max_length=10, queue_arguments=DEAD),
    ]

    findings = {finding.name: finding for finding in inspect(app)}

    assert findings["dead letter exchange"].level is Level.WARNING
    assert "brief by x-message-ttl; votes by quorum" in findings["dead letter exchange"].found


def test_the_policy_that_is_said_is_one_that_rabbitmq_takes(app: Celery) -> None:
    """The JSON in the line for rabbitmqctl must be JSON."""
    app.conf.task_queues = [queue("votes", message_ttl=60)]

    line = next(
        finding.set for finding in inspect(app) if finding.name == "dead letter exchange"
    ).splitlines()[0]

    assert json.loads(line.split("'")[3]) == {
        "dead-letter-exchange": "",
        "dead-letter-routing-key": "jobs.dead",
    }
    assert line.split("'")[1] == "^(votes)$"


def test_row_101_rabbitmq_counts_messages_and_consumers_itself(app: Celery) -> None:
    app.conf.task_queues = None
    app.send_task("shop.touch", queue="lonely")

    with opened(app, timeout_seconds=5) as connection:
        queues = rabbit_queues(connection, ["lonely", "never-declared"])
        connection.default_channel.queue_delete("lonely")

    assert [(one.name, one.messages, one.consumers) for one in queues] == [("lonely", 1, 0)]


def test_row_94_with_our_own_options_a_publish_to_a_rabbitmq_that_never_answers_ends(
    app: Celery, rabbit: RabbitServer
) -> None:
    """It freezes on an open connection: the kernel takes the bytes, and no confirm ever comes."""
    app.conf.broker_transport_options = {
        **broker_transport_options(rabbit.url),
        "read_timeout": 1,
        "write_timeout": 1,
    }

    def is_sent() -> bool:
        with contextlib.suppress(OperationalError):
            app.send_task("shop.touch", queue="shop", retry=False)
            return True
        return False

    # On a full machine RabbitMQ may need more than that second for the first.
    wait_until(is_sent, what="RabbitMQ to confirm a job")
    os.killpg(rabbit.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(OperationalError):
            app.send_task("shop.touch", queue="shop", retry=False)
    finally:
        os.killpg(rabbit.process.pid, signal.SIGCONT)
    wait_until(rabbit.is_up, seconds=START_SECONDS, what="RabbitMQ to go on")


def test_a_rabbitmq_that_is_away_is_said_without_its_password() -> None:
    app = Application("shop", broker=f"amqp://shop:hunter2@127.0.0.1:{free_port()}//", set_as_current=False)

    with (
        pytest.raises(BrokerUnavailable, match=r"amqp://shop:\*\*@127.0.0.1:\d+// does not answer") as raised,
        opened(app, timeout_seconds=1),
    ):
        pass

    assert "hunter2" not in str(raised.value)


@pytest.mark.worker
def test_a_worker_refuses_limits_beyond_the_consumer_timeout(tmp_path: Path, rabbit: RabbitServer) -> None:
    place = Place(tmp_path, rabbit.url, JOBS_RABBITMQ_CONSUMER_TIMEOUT_SECONDS="600").migrate()

    done = place.run(*place.worker()[1:])

    assert done.returncode == 78
    assert "RabbitMQ's consumer timeout is taken to be 600 s" in done.stderr
    assert "the longest time limit is 660 s (shop.touch)" in " ".join(done.stderr.split())


@pytest.mark.worker
def test_our_own_options_keep_a_worker_that_has_nothing_to_do_connected(
    tmp_path: Path, rabbit: RabbitServer
) -> None:
    """A read timeout bounds a reply that does not come, not the wait for the next job."""
    place = Place(tmp_path, rabbit.url, JOBS_LOG_LEVEL="INFO", JOBS_PREFLIGHT="refuse").migrate()
    pools = ("prefork", "threads", "gevent")
    for pool in pools:
        place.write(
            APPLICATION.replace(
                "broker_transport_options=settings.BROKER_TRANSPORT_OPTIONS",
                'broker_transport_options={**settings.BROKER_TRANSPORT_OPTIONS, "read_timeout": 3, "write_timeout": 3}',
            ).replace('task_default_queue="shop"', f'task_default_queue="idle-{pool}"'),
            name=f"idle_{pool}.py",
        )
    logs = {pool: tmp_path / f"{pool}.log" for pool in pools}

    with ExitStack() as stack:
        for pool, log in logs.items():
            command = place.worker("--pool", pool, "-n", f"{pool}@%h", app=f"idle_{pool}")
            stack.enter_context(running(command, env=place.env, log=log, cwd=place.directory))
        for pool, log in logs.items():
            wait_until(
                lambda log=log: b"ready." in log.read_bytes(),
                seconds=START_SECONDS,
                what=f"{pool} to be ready",
            )
        ready_at = time.monotonic()
        reports = {pool: place.preflight("--app", f"idle_{pool}") for pool in pools}
        wait_until(lambda: time.monotonic() - ready_at > 10, what="more than three read timeouts to pass")
        with Application("shop", broker=rabbit.url, set_as_current=False) as app:
            for pool in pools:
                app.send_task("shop.touch", args=[str(tmp_path / f"{pool}.mark")], queue=f"idle-{pool}")
        for pool in pools:
            wait_until(
                (tmp_path / f"{pool}.mark").exists, seconds=START_SECONDS, what=f"the job of {pool} to run"
            )

    for pool in pools:
        assert "Connection to broker lost" not in logs[pool].read_text(), pool
        assert reports[pool]["errors"] == 0, pool
        assert set(found(reports[pool], "warning")) <= {"pool"}, pool
        assert "rabbitmqctl list_policies" in found(reports[pool], "unknown")["dead letter exchange"]["set"]
