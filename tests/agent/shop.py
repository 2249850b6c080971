"""The application of the workers under test: a job for each ending."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from kombu import Queue
from kombu.serialization import register

from jobs.agent import attach
from tests.applications import Application


class Unpicklable(Exception):
    """Needs two arguments and holds what cannot travel between processes."""

    def __init__(self, first: str, second: str) -> None:
        self.held = lambda: None
        self.second = second
        super().__init__(f"{first} and {second}")


class HeldBack(Retry):
    """As ``jobs.base`` raises it for a job that is in another message before its body ran."""

    goes_on = True


def _dump(value: Any) -> bytes:
    return repr(value).encode()


def _load(data: bytes | str) -> Any:
    import ast

    return ast.literal_eval(data if isinstance(data, str) else bytes(data).decode())


register("literal", _dump, _load, content_type="application/x-python-literal", content_encoding="binary")


def create(broker: str, **settings: Any) -> Celery:
    """Return the application, as a worker or as a client uses it."""
    app = Application("shop", broker=broker, set_as_current=False)
    app.conf.update(
        accept_content=["json", "literal", "pickle"],
        broker_connection_retry_on_startup=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        task_publish_retry=False,
        worker_prefetch_multiplier=4,
        worker_send_task_events=False,
        result_backend_transport_options={"retry_policy": {"max_retries": 0, "timeout": 1}},
        redis_socket_connect_timeout=1,
        redis_socket_timeout=2,
        **settings,
    )
    return app


app = create(
    os.environ.get("BROKER_URL", "memory://"), result_backend=os.environ.get("RESULT_BACKEND") or None
)
if "SOFT_SHUTDOWN_SECONDS" in os.environ:
    app.conf.worker_soft_shutdown_timeout = float(os.environ["SOFT_SHUTDOWN_SECONDS"])
if "QUORUM_QUEUE" in os.environ:
    app.conf.task_queues = [Queue(os.environ["QUORUM_QUEUE"], queue_arguments={"x-queue-type": "quorum"})]
if "BROKER_FOLDER" in os.environ:
    folder = os.environ["BROKER_FOLDER"]
    app.conf.broker_transport_options = {
        "data_folder_in": folder,
        "data_folder_out": folder,
        "control_folder": folder,
    }
attach(app)


@app.task(name="shop.mark")
def mark(path: str, text: str = "") -> str:
    """Leave a line that a test can see."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
    return text


@app.task(name="shop.fail")
def fail(*args: Any, **kwargs: Any) -> None:
    raise ValueError("no such order")


@app.task(name="shop.fail_late", acks_late=True)
def fail_late(*args: Any, **kwargs: Any) -> None:
    raise ValueError("no such order")


@app.task(name="shop.ship")
def ship(order_id: int, address: str, *, express: bool = False) -> None:
    raise ValueError(f"cannot ship {order_id}")


@app.task(name="shop.http")
def http() -> None:
    raise urllib.error.HTTPError("http://pay", 503, "Unavailable", Message(), io.BytesIO())


@app.task(name="shop.unpicklable")
def unpicklable() -> None:
    raise Unpicklable("one", "two")


@app.task(name="shop.unserialisable")
def unserialisable() -> object:
    return object()


@app.task(name="shop.memory")
def memory() -> None:
    raise MemoryError("4 GB")


@app.task(name="shop.leave")
def leave() -> None:
    sys.exit(3)


@app.task(name="shop.leave_late", acks_late=True)
def leave_late() -> None:
    sys.exit(3)


@app.task(name="shop.interrupt")
def interrupt() -> None:
    raise KeyboardInterrupt


@app.task(name="shop.kill")
def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="shop.poison", acks_late=True, reject_on_worker_lost=True)
def poison(path: str) -> None:
    mark.run(path, "ran")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="shop.take_all_down", acks_late=True)
def take_all_down(path: str, fetched: int = 0) -> None:
    mark.run(path, "ran")
    if fetched:
        _wait_until_fetched(fetched)
    os._exit(1)


def _wait_until_fetched(number: int) -> None:
    """Wait until the worker has noted so many messages in Redis.

    What Redis has popped and a dying worker has not read is lost whatever anybody does (FAILURE_MODES row 69).
    """
    deadline = time.monotonic() + 60
    with redis.Redis.from_url(app.conf.broker_url, socket_timeout=10) as client:
        while client.hlen("unacked") < number:
            assert time.monotonic() < deadline, f"{client.hlen('unacked')} of {number} jobs were fetched"
            time.sleep(0.02)


@app.task(name="shop.mark_late", acks_late=True)
def mark_late(path: str, text: str = "") -> None:
    mark.run(path, text)


@app.task(name="shop.hard_limit", time_limit=1)
def hard_limit() -> None:
    time.sleep(30)


@app.task(name="shop.hard_limit_late", time_limit=1, acks_late=True, acks_on_failure_or_timeout=False)
def hard_limit_late(path: str) -> None:
    mark.run(path, "ran")
    time.sleep(30)


@app.task(name="shop.soft_limit", soft_time_limit=1)
def soft_limit() -> None:
    time.sleep(30)


@app.task(name="shop.soft_limit_caught", soft_time_limit=1)
def soft_limit_caught(path: str) -> None:
    try:
        time.sleep(30)
    except SoftTimeLimitExceeded:
        mark.run(path, "caught")


@app.task(name="shop.reject")
def reject() -> None:
    raise Reject("not this one", requeue=False)


@app.task(name="shop.reject_late", acks_late=True)
def reject_late() -> None:
    raise Reject("not this one", requeue=False)


@app.task(name="shop.reject_requeue", acks_late=True)
def reject_requeue(path: str) -> None:
    mark.run(path, "ran")
    raise Reject("not now", requeue=True)


@app.task(name="shop.reject_requeue_early")
def reject_requeue_early() -> None:
    raise Reject("not now", requeue=True)


@app.task(name="shop.ignore")
def ignore() -> None:
    raise Ignore("somebody else did it")


@app.task(name="shop.replace", bind=True)
def replace(self: Any, path: str) -> None:
    self.replace(mark.si(path, "replacement"))


@app.task(name="shop.hold_back")
def hold_back() -> None:
    raise HeldBack("the limit is reached")


@app.task(name="shop.nap")
def nap(seconds: float) -> None:
    time.sleep(seconds)


@app.task(name="shop.retry_with_error", bind=True, max_retries=1, default_retry_delay=0)
def retry_with_error(self: Any) -> None:
    try:
        raise ConnectionError("mail relay refused")
    except ConnectionError as error:
        raise self.retry(exc=error) from error


@app.task(name="shop.retry_without_error", bind=True, max_retries=1, default_retry_delay=0)
def retry_without_error(self: Any) -> None:
    self.retry()


@app.task(
    name="shop.autoretry",
    autoretry_for=(ConnectionError,),
    max_retries=1,
    default_retry_delay=0,
    retry_jitter=False,
)
def autoretry() -> None:
    raise ConnectionError("mail relay refused")


@app.task(name="shop.retry_once", bind=True, max_retries=3, default_retry_delay=0)
def retry_once(self: Any, path: str, then: str = "succeed") -> None:
    mark.run(path, f"attempt {self.request.retries}")
    if self.request.retries == 0:
        self.retry()
    if then == "fail":
        raise ValueError("still no such order")


@app.task(name="shop.wait")
def wait(started: str, go: str) -> None:
    """Start, and go on when the file is there."""
    mark.run(started, str(os.getpid()))
    _wait_for(go)


@app.task(name="shop.wait_late", acks_late=True)
def wait_late(started: str, go: str) -> None:
    wait.run(started, go)


@app.task(name="shop.wait_and_fail")
def wait_and_fail(started: str, go: str) -> None:
    wait.run(started, go)
    raise ValueError("no such order")


@app.task(name="shop.wait_and_retry", bind=True, default_retry_delay=0)
def wait_and_retry(self: Any, started: str, go: str) -> None:
    wait.run(started, go)
    try:
        raise ConnectionError("mail relay refused")
    except ConnectionError as error:
        raise self.retry(exc=error) from error


def _wait_for(path: str) -> None:
    deadline = time.monotonic() + 60
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.02)
