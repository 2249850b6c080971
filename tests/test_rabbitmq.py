"""The same product on RabbitMQ: capture, replay, a queue that is not there, a dead letter exchange."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kombu import Connection, Exchange, Producer, Queue

from tests.rabbit import RabbitServer
from tests.servers import wait_until
from tests.stack import Stack

pytestmark = pytest.mark.worker


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    stack = Stack(RabbitServer())
    try:
        yield stack.start()
    finally:
        stack.stop()


def test_a_job_that_dies_on_rabbitmq_is_captured_replayed_and_resolved(stack: Stack) -> None:
    stack.switch.unlink(missing_ok=True)
    for number in range(7000, 7010):
        stack.app.send_task("shop.tasks.send_receipt", kwargs={"order_id": number})
    wait_until(lambda: len(stack.letters("task:shop.tasks.send_receipt")) == 10, what="ten letters")

    stack.switch.touch()
    done = stack.command(
        *("dead_letters", "replay", "--query", "task:shop.tasks.send_receipt"),
        *("--yes", "--why", "the relay is back"),
    )

    assert "10 done" in done.stdout
    assert [letter["state"] for letter in stack.letters()] == ["resolved"] * 10


def test_a_replay_to_a_queue_that_rabbitmq_does_not_have_is_refused_and_loses_nothing(stack: Stack) -> None:
    stack.app.send_task("shop.tasks.charge_card", kwargs={"order_id": 7100, "amount": -1})
    wait_until(lambda: stack.letters("args.order_id:7100"), what="the letter")

    done = stack.command(
        *("dead_letters", "replay", "--query", "args.order_id:7100", "--queue", "nowhere"),
        *("--yes", "--why", "a slip"),
        check=False,
    )

    assert done.returncode != 0
    assert "nowhere" in done.stdout + done.stderr
    assert [letter["state"] for letter in stack.letters("args.order_id:7100")] == ["dead"]


def test_what_rabbitmq_dead_letters_by_itself_becomes_a_letter_with_reason_broker(stack: Stack) -> None:
    with Connection(stack.broker.url) as connection, connection.channel() as channel:
        doomed = Queue(
            "short-lived",
            Exchange("short-lived", durable=True),
            routing_key="short-lived",
            queue_arguments={
                "x-message-ttl": 100,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "jobs.dead",
            },
        )
        doomed(channel).declare()
        Producer(channel).publish(
            [[], {"order_id": 7200}, {}],
            exchange="short-lived",
            routing_key="short-lived",
            serializer="json",
            headers={"task": "shop.tasks.send_receipt", "id": "a-job-that-expired", "retries": 0},
            correlation_id="a-job-that-expired",
        )

    wait_until(lambda: stack.letters("reason:broker"), what="the letter")
    letter = stack.letters("reason:broker")[0]
    assert (letter["task"], letter["task_id"]) == ("shop.tasks.send_receipt", "a-job-that-expired")
    assert letter["kwargs"] == {"order_id": 7200}
