"""What a child of the pool has of its parent's connections to the broker."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from tests.agent.fleet import Worker
from tests.rabbit import VirtualHost
from tests.servers import wait_until

pytestmark = pytest.mark.worker


def replaced_child(worker: Worker) -> psutil.Process:
    """Kill a child; return the one that took its place, once it runs jobs."""
    assert worker.process is not None
    parent = psutil.Process(worker.process.pid)
    first = parent.children()
    first[0].kill()
    wait_until(
        lambda: [child for child in parent.children() if child not in first], what="the child to be replaced"
    )
    (child,) = (child for child in parent.children() if child not in first)
    # A job for each child, so that this one gets one too.
    started, go = worker.path("started"), worker.path("go")
    for _ in range(worker.concurrency):
        worker.send("shop.wait", str(started), str(go))
    worker.wait_for_line(started, count=worker.concurrency, seconds=40)
    go.touch()
    assert str(child.pid) in worker.lines(started)
    return child


def test_row_69_a_child_that_was_replaced_does_not_share_the_connection_on_which_its_parent_waits(
    own_worker: Callable[..., Worker],
) -> None:
    """While it did, Redis handed the next message to a parent that had been killed."""
    worker = own_worker("prefork").start()
    child = replaced_child(worker)

    def readers() -> set[int]:
        with worker.redis() as client:
            # Of its own database: other workers of the session wait on the same server.
            return {
                int(each["addr"].rsplit(":", 1)[1])
                for each in client.client_list()
                if each["cmd"] == "brpop" and each["db"] == worker.broker_url.rpartition("/")[2]
            }

    found: set[int] = set()
    wait_until(lambda: found.update(readers()) or found, what="the worker to wait for jobs")
    assert worker.process is not None
    parents = {each.laddr.port for each in psutil.Process(worker.process.pid).net_connections()}
    assert found <= parents
    assert not found & {each.laddr.port for each in child.net_connections()}
    worker.run_fence()


def test_a_child_that_was_replaced_does_not_keep_the_connection_to_rabbitmq_open(
    own_worker: Callable[..., Worker], rabbit: VirtualHost
) -> None:
    worker = own_worker("prefork", broker_url=rabbit.url, queue="inherited").start()
    child = replaced_child(worker)

    assert worker.process is not None
    parent = psutil.Process(worker.process.pid)
    # Its first: the others, on which it publishes, were made later.
    first, *_ = sorted(parent.net_connections(), key=lambda each: each.fd)
    assert first.laddr.port not in {each.laddr.port for each in child.net_connections()}
    path = worker.path("after")
    worker.send("shop.mark", str(path))
    worker.wait_for_line(path)
