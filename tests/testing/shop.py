"""Tasks of an application whose broker nobody answers at: what is tested must never need it."""

from __future__ import annotations

from typing import Any

from celery.exceptions import Ignore, Reject
from django.contrib.auth.models import User

from jobs import Job, PermanentError, TransientError
from tests.applications import Application

app = Application(
    "testing-shop",
    broker="redis://127.0.0.1:1/0",
    backend="redis://127.0.0.1:1/1",
    set_as_current=False,
)
app.conf.update(
    accept_content=["json"],
    task_default_queue="default",
    task_queues=None,
    broker_connection_retry=False,
    broker_connection_max_retries=0,
    redis_socket_connect_timeout=1,
)

effects: list[Any] = []
failures: list[BaseException] = []


@app.task(base=Job, name="shop.send_receipt", idempotency_key="receipt:{order_id}", queue="critical")
def send_receipt(order_id: int, language: str = "en") -> str:
    effects.append((order_id, language))
    if failures:
        raise failures.pop(0)
    return f"receipt {order_id}"


@app.task(base=Job, name="shop.flaky", max_attempts=3)
def flaky(token: str = "") -> str:
    effects.append("flaky")
    if failures:
        raise failures.pop(0)
    return "done"


@app.task(base=Job, name="shop.make_user", idempotency_key="user:{name}", atomic=True)
def make_user(name: str, *, fails: bool = False) -> int:
    user = User.objects.create(username=name)
    if fails:
        raise PermanentError("no more users")
    return int(user.pk)


@app.task(base=Job, name="shop.add")
def add(a: int, b: int) -> int:
    effects.append(("add", a, b))
    return a + b


@app.task(base=Job, name="shop.parent", bind=True)
def parent(self: Job, children: int) -> None:
    for number in range(children):
        send_receipt.delay(number)


@app.task(base=Job, name="shop.slow", rate="1/h", concurrency=1)
def slow() -> None:
    effects.append("slow")


@app.task(base=Job, name="shop.import_rows", bind=True, idempotency_key="import:{file_id}")
def import_rows(self: Job, file_id: int) -> int:
    self.progress(1, 2, note="half")
    effects.append(file_id)
    if failures:
        raise failures.pop(0)
    return 2


@app.task(base=Job, name="shop.forever")
def forever() -> None:
    forever.delay()


@app.task(name="shop.plain")
def plain(value: Any = None) -> Any:
    effects.append(("plain", value))
    return value


@app.task(name="shop.by_hand", bind=True, max_retries=2)
def by_hand(self: Any) -> None:
    effects.append("by hand")
    raise self.retry(exc=ValueError("not yet"), countdown=3600)


@app.task(name="shop.rejects")
def rejects(requeue: bool) -> None:
    effects.append("rejects")
    raise Reject("unwanted", requeue=requeue)


@app.task(name="shop.ignores")
def ignores() -> None:
    raise Ignore("nothing to do")


@app.task(name="shop.exits")
def exits() -> None:
    raise SystemExit(3)


@app.task(base=Job, name="shop.asks")
def asks() -> None:
    raise TransientError("busy", retry_after=86_000)


@app.task(name="shop.replaces", bind=True)
def replaces(self: Any) -> None:
    raise self.replace(add.si(20, 22))
