"""The table of workers, when somebody else answers too: the broker is shared."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.utils import timezone

from jobs.broker import connect
from jobs.models import Worker
from jobs.workers import refresh_workers
from tests.servers import RedisServer, wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_database")]

HONEST = {
    "boot_id": "b",
    "pool": "prefork",
    "digest": "d",
    "queues": ["critical"],
    "tasks": {
        "shop.ship": {
            "names": ["order_id"],
            "required": 1,
            "var_args": False,
            "var_kwargs": False,
            "kwonly": [],
            "kwonly_required": [],
        }
    },
}


@contextlib.contextmanager
def answering(url: str, answers: dict[str, Any]) -> Iterator[list[str]]:
    """Answer ``jobs_describe`` in the name of several workers, from a thread; give a list of who was asked."""
    app = Celery(broker=url, set_as_current=False)
    stop = threading.Event()
    asked: list[str] = []

    def answer_of(hostname: str) -> Any:
        asked.append(hostname)
        return answers[hostname]

    def listen() -> None:
        with app.connection_for_read() as connection:
            consumers = [
                app.control.mailbox.Node(
                    hostname,
                    handlers={"jobs_describe": lambda _, hostname=hostname, **__: answer_of(hostname)},
                    # Of its own: of several that listen on one channel of Redis, kombu asks only the last.
                    channel=connection.channel(),
                ).listen()
                for hostname in answers
            ]
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=0.05)
            for consumer in consumers:
                consumer.cancel()

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield asked
    finally:
        stop.set()
        thread.join(10)
        app.close()


@pytest.mark.parametrize(
    "forged",
    [
        "x",
        {
            "queues": ["\x00", 5, "\ud800"],
            "tasks": {"\x00": None, "a": "x"},
            "boot_id": "\x00",
            "pool": ["\x00"],
        },
        {"digest": "\x00", "queues": "critical", "tasks": [["a"]]},
        {"tasks": {"shop.ship": {"names": 5, "required": "x"}}, "queues": ["q" * 100_000]},
    ],
)
def test_a_forged_answer_hides_no_worker(broker: RedisServer, forged: Any):
    names = ["forger@\x00" + "x" * 300, "celery@web-1"]
    with (
        answering(broker.url, dict(zip(names, (forged, HONEST), strict=True))) as asked,
        connect() as to_broker,
    ):

        def both_answer() -> bool:
            """Ask once, of an empty table; Redis keeps no question for who does not listen yet."""
            Worker.objects.all().delete()
            asked.clear()
            refresh_workers(to_broker, now=timezone.now(), timeout_seconds=0.5)
            return set(asked) == set(names) and Worker.objects.filter(hostname=names[1]).exists()

        wait_until(both_answer, what="both to answer")

    honest = Worker.objects.get(hostname="celery@web-1")
    assert (honest.queues, honest.tasks) == (HONEST["queues"], HONEST["tasks"])
    for worker in Worker.objects.exclude(pk=honest.pk):
        assert len(worker.hostname) <= 255
        assert all(parameters is None for parameters in worker.tasks.values())
