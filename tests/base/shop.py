"""The application of the workers under test: a job for each thing that a Job promises."""

from __future__ import annotations

import contextlib
import email.message
import functools
import json
import os
import signal
import time
import urllib.error
from typing import Any

import django
import redis
from celery import Celery, chain, group, states
from celery.backends.redis import RedisBackend
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Exchange, Queue

from tests.applications import Application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.contrib.auth.models import User as DjangoUser  # noqa: E402 - needs Django's settings
from django.db import transaction  # noqa: E402

from jobs import Job, PermanentError, TransientError  # noqa: E402
from jobs.agent import attach  # noqa: E402
from jobs.errors import HeldBack  # noqa: E402

LINES = "test:lines"


class Refused(PermanentError):
    """Cannot travel between processes: its arguments are not what its class takes."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code} {why}")
        self.held = lambda: None


class TooLate(PermanentError):
    """Names its own reason."""

    dead_letter_reason = "expired"


class Invented(PermanentError):
    """Names a reason that there is not."""

    dead_letter_reason = "gremlins"


class Quick(Job):
    """Waits little between attempts, so that tests do not."""

    backoff_base_seconds = 0.05
    backoff_factor = 1
    backoff_cap_seconds = 0.05


class LateRetries(RedisBackend):
    """Stores RETRY late, after its look at what is stored, as in a process that the machine gave no time."""

    def _set_with_state(self, key: Any, value: Any, state: str) -> Any:
        if state == states.RETRY:
            time.sleep(1)
        return super()._set_with_state(key, value, state)


def create(broker_url: str, backend: str | None = None) -> Celery:
    """Return the application, as a worker or as a client uses it."""
    app = Application("base", broker=broker_url, backend=backend, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        broker_connection_retry_on_startup=True,
        broker_transport_options={"visibility_timeout": 3600, "socket_timeout": 10},
        result_extended=True,
        worker_prefetch_multiplier=1,
        worker_send_task_events=False,
        task_queues=[
            Queue("celery", Exchange("celery"), routing_key="celery"),
            Queue("critical", Exchange("critical"), routing_key="critical"),
            Queue("news", Exchange("topics", type="topic"), routing_key="news.#"),
        ],
    )
    attach(app)
    _add_tasks(app)
    return app


def write(job: Job, what: str, **more: Any) -> None:
    """Add a line about the running attempt to a list in the broker's Redis."""
    url = job.app.conf.broker_url
    request = job.request
    line = {
        "what": what,
        "id": request.id,
        "attempt": request.retries,
        "headers": request.headers or {},
        "delivery": request.delivery_info,
        **more,
    }
    with redis.Redis.from_url(url, socket_timeout=10) as client:
        client.rpush(LINES, json.dumps(line, default=str))


def lose_broker(app: Celery) -> None:
    """Take the broker from this child; the worker's own process still has it."""
    app.conf.task_publish_retry = False
    app.conf.broker_write_url = "redis://127.0.0.1:1/0"
    app._pool = app.amqp._producer_pool = None


def _http_error(header: str) -> urllib.error.HTTPError:
    headers = email.message.Message()
    headers["retry-after"] = header
    return urllib.error.HTTPError("http://shop.test/", 429, "Too many", headers, None)


def _add_tasks(app: Celery) -> None:  # noqa: C901 - a list of jobs
    errors = {
        "value": lambda: ValueError("no such order"),
        "permanent": lambda: PermanentError("the card has expired"),
        "refused": lambda: Refused(4, "declined"),
        "too late": lambda: TooLate("the sale is over"),
        "invented": lambda: Invented("who knows"),
        "soft": lambda: SoftTimeLimitExceeded(),
        "after": lambda: TransientError("busy", retry_after=1),
        "http": lambda: _http_error("1"),
        "hostile": lambda: _http_error("-5, Mon, soon"),
    }

    # Of this application alone: tests make several of them in one process.
    task = functools.partial(app.task, shared=False, base=Quick, bind=True)

    @task(name="base.fails", max_attempts=3)
    def fails(self: Job, kind: str, times: int = 99, *, key: str = "") -> str:
        write(self, "start", at=time.time())
        if self.request.retries < times:
            raise errors[kind]()
        return "done"

    @task(name="base.fails_once", max_attempts=1)
    def fails_once(self: Job, kind: str) -> None:
        raise errors[kind]()

    @task(name="base.by_hand", max_attempts=3)
    def by_hand(self: Job, how: str, times: int = 1) -> str:
        write(self, "start", at=time.time())
        if self.request.retries >= times:
            return "done"
        if how == "plain":
            raise self.retry()
        if how == "countdown":
            raise self.retry(countdown=0)
        if how == "only one":
            raise self.retry(exc=ValueError("enough"), max_retries=0)
        if how == "swallowed":
            with contextlib.suppress(Exception):  # the mistake under test
                self.retry(countdown=0.2)
            write(self, "went on")
            return "went on"
        if how == "swallowed, then fails":
            try:
                self.retry(countdown=0.2)
            except Exception:  # noqa: BLE001 - the mistake under test
                raise KeyError("later") from None
        if how == "not thrown":
            self.retry(countdown=0.2, throw=False)
            return "first"
        if how == "in a block":
            with transaction.atomic():
                raise self.retry(countdown=0)
        if how == "autocommit after":
            with transaction.atomic():
                other.delay(self.request.id)
                raise self.retry(countdown=0)
        raise AssertionError(how)

    @task(name="base.other")
    def other(self: Job, of: str) -> str:
        write(self, "other", of=of)
        return of

    @task(name="base.enqueues")
    def enqueues(self: Job, ending: str) -> None:
        with transaction.atomic():
            other.delay(self.request.id)
            if ending == "error":
                raise PermanentError("rolled back")

    @task(name="base.replaces")
    def replaces(self: Job, how: str) -> Any:
        write(self, "start")
        signature = {
            "job": lambda: add.s(20, 1),
            "chain": lambda: chain(add.s(10, 1), add.s(10)),
            "group": lambda: group(add.s(1, 1), add.s(2, 2)),
        }[how]()
        if self.request.id:
            with transaction.atomic():
                return self.replace(signature)
        return None

    @task(name="base.add", idempotency_key=None)
    def add(self: Job, x: int, y: int) -> int:
        write(self, "add", x=x, y=y, stamps=self.request.stamps)
        return x + y

    @task(name="base.add_flaky", max_attempts=3)
    def add_flaky(self: Job, x: int, y: int) -> int:
        write(self, "add_flaky", x=x, y=y, stamps=self.request.stamps)
        if self.request.retries == 0:
            raise ConnectionError("try again")
        return x + y

    @task(name="base.keyed", idempotency_key="sum:{x}:{y}")
    def keyed(self: Job, x: int, y: int = 1) -> int:
        write(self, "keyed", x=x, y=y)
        return x + y

    @task(name="base.keyed_flaky", idempotency_key="f:{x}", max_attempts=3)
    def keyed_flaky(self: Job, x: int) -> int:
        write(self, "start")
        if self.request.retries == 0:
            raise ConnectionError("try again")
        return x

    @task(name="base.unkept", idempotency_key="u:{x}")
    def unkept(self: Job, x: int) -> str:
        write(self, "unkept")
        return "x" * 70_000

    @task(name="base.slow", idempotency_key="slow:{x}", max_attempts=2)
    def slow(self: Job, x: int, seconds: float) -> str:
        write(self, "start", at=time.time())
        time.sleep(seconds)
        write(self, "end", at=time.time())
        return "slow"

    @task(name="base.total")
    def total(self: Job, numbers: list[int]) -> int:
        write(self, "total", numbers=numbers)
        return sum(numbers)

    @task(name="base.note_error")
    def note_error(self: Job, failed_id: str) -> None:
        write(self, "error", of=failed_id)

    @task(name="base.recursive")
    def recursive(self: Job, depth: int) -> int:
        write(self, "depth", depth=depth)
        return 0 if depth == 0 else 1 + self(depth - 1)

    @task(name="base.retries_then_dies", idempotency_key="k:{x}", idempotency_lease_seconds=4)
    def retries_then_dies(self: Job, x: int, *, fails: bool = False) -> str:
        write(self, "start")
        if self.request.retries == 0:
            # Later than the parent looks for dead children, every 5 s: the old copy is back before it.
            self.retry(countdown=8, throw=False)
            time.sleep(0.5)  # so that the parent has seen the start
            os.kill(os.getpid(), signal.SIGKILL)
        if fails:
            raise PermanentError("the card has expired")
        return "second"

    @task(name="base.next_page", idempotency_key="pages:{x}")
    def next_page(self: Job, x: int, page: int = 0) -> int:
        write(self, "page", page=page)
        if page == 0 and self.request.retries == 0:
            raise ConnectionError("try again")
        if page < 2:
            return int(self.replace(next_page.s(x, page + 1)))
        return page

    @task(name="base.works_later", idempotency_key="later:{x}", max_attempts=2)
    def works_later(self: Job, x: int) -> str:
        write(self, "start")
        with redis.Redis.from_url(self.app.conf.broker_url, socket_timeout=10) as client:
            if not client.exists(f"test:works:{x}"):
                raise ConnectionError("not yet")
        return "done"

    @task(name="base.loses_broker", max_attempts=3)
    def loses_broker(self: Job) -> None:
        write(self, "start")
        lose_broker(self.app)
        raise LookupError("the first error")

    @task(name="base.progresses")
    def progresses(self: Job, seconds: float, *, fails: bool = False, waits: bool = False) -> None:
        for done in range(5):
            self.progress(done, 5, f"step {done}")
            time.sleep(seconds)
        deadline = time.monotonic() + 60
        with redis.Redis.from_url(self.app.conf.broker_url, socket_timeout=10) as client:
            while waits and not client.exists(f"test:go:{self.request.id}"):
                assert time.monotonic() < deadline, "nobody let it end"
                time.sleep(0.02)
        if fails:
            raise PermanentError("stopped half way")

    @task(name="base.cannot_be_held")
    def cannot_be_held(self: Job) -> str:
        with redis.Redis.from_url(self.app.conf.broker_url, socket_timeout=10) as client:
            runs = client.incr(f"test:runs:{self.request.id}")
        if runs == 1:
            lose_broker(self.app)
            raise HeldBack("not now", seconds=0.1)
        return "done"

    @task(name="base.held_once")
    def held_once(self: Job) -> str:
        write(self, "start")
        with redis.Redis.from_url(self.app.conf.broker_url, socket_timeout=10) as client:
            if client.incr(f"test:runs:{self.request.id}") == 1:
                raise HeldBack("not now", seconds=0.1)
        return "done"

    @task(name="base.much_later")
    def much_later(self: Job) -> None:
        raise TransientError("closed for the night", retry_after=8 * 3600)

    @task(name="base.atomic_by_hand", atomic=True, idempotency_key="a:{x}")
    def atomic_by_hand(self: Job, x: int) -> str:
        write(self, "start")
        DjangoUser.objects.create(username=f"{x}-{self.request.retries}")
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return ",".join(
            DjangoUser.objects.filter(username__startswith=f"{x}-").values_list("username", flat=True)
        )

    @task(name="base.one_argument")
    def one_argument(self: Job, x: int) -> int:
        return x


app = create(
    os.environ.get("BROKER_URL", "memory://"),
    os.environ.get("RESULT_BACKEND") or os.environ.get("BROKER_URL"),
)
if os.environ.get("LATE_RETRIES"):
    # Not by the setting: Celery's command line puts the variable RESULT_BACKEND before it.
    app.backend_cls = f"{__name__}:LateRetries+{os.environ['BROKER_URL']}"
