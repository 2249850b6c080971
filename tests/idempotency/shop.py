"""The application of the workers under test: jobs with keys that write down each run of theirs."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import django
from redis import Redis

from tests.applications import Application

if os.environ.get("SHOP_POOL") == "gevent":
    # Celery has patched everything by now; SQLite and PostgreSQL come afterwards.
    os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from django.contrib.sessions.models import Session  # noqa: E402 - needs Django's settings
from django.utils import timezone  # noqa: E402

from jobs import Job, PermanentError, TransientError  # noqa: E402
from jobs.agent import attach  # noqa: E402
from jobs.idempotency import record_progress  # noqa: E402
from jobs.models import IdempotencyRecord  # noqa: E402

app = Application("keys", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=False,
)
attach(app)


def note(*words: object) -> None:
    """Append a line in one write, so that it is there whole or not at all, however the process ends."""
    line = " ".join(str(word) for word in (*words, os.getpid(), f"{time.time():.3f}"))
    with Path(os.environ["SHOP_NOTES"]).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())


def _notes() -> str:
    return Path(os.environ["SHOP_NOTES"]).read_text()


def pause() -> None:
    """Give a kill a moment to strike in."""
    time.sleep(random.uniform(0.0, 0.06))


class KeyedJob(Job):
    """Comes back soon, so that a test need not wait long."""

    abstract = True
    idempotency_key = "effect:{number}"
    idempotency_lease_seconds = 2
    max_attempts = 3
    backoff_base_seconds = 0.1
    backoff_cap_seconds = 0.5


@app.task(base=KeyedJob, name="keys.outside", bind=True)
def outside(self: Any, number: int) -> str:
    """Have an effect that no transaction can undo, in the middle."""
    note("begin", number, self.request.id)
    pause()
    note("effect", number, self.request.id)
    pause()
    return f"sent {number}"


@app.task(base=KeyedJob, name="keys.within", bind=True, atomic=True)
def within(self: Any, number: int) -> str:
    """Have an effect in the database."""
    pause()
    Session.objects.create(
        session_key=os.urandom(16).hex(), session_data=str(number), expire_date=timezone.now()
    )
    pause()
    return f"written {number}"


@app.task(base=KeyedJob, name="keys.long", bind=True)
def long(self: Any, number: int, go: str) -> str:
    """Run longer than its lease, and until the file is there."""
    note("begin", number, self.request.id)
    begun = time.monotonic()
    while time.monotonic() - begun < self.idempotency_lease_seconds * 1.2 or not Path(go).exists():
        assert time.monotonic() - begun < 120, f"nobody made {go}"
        time.sleep(0.02)
    note("effect", number, self.request.id)
    return "done"


@app.task(base=KeyedJob, name="keys.beat", bind=True)
def beat(self: Any, number: int) -> None:
    """Run until the heartbeat has extended its lease twice, and its progress is there."""
    record_progress(task=self.name, task_id=self.request.id, worker="w", done=1, total=2)
    seen: set[object] = set()
    deadline = time.monotonic() + 60
    while len(seen) < 3 and time.monotonic() < deadline:
        seen |= set(
            IdempotencyRecord.objects.filter(task=self.name).values_list("lease_expires_at", flat=True)
        )
        time.sleep(0.05)
    note("extended" if len(seen) >= 3 else "left alone", number, self.request.id)


class KilledAtTheEnd(KeyedJob):
    """Its process or its worker dies right after it has succeeded, or asked for a retry; once."""

    abstract = True

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        self._die("success", args)

    def on_retry(self, exc: BaseException, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        self._die("retry", args)

    def _die(self, when: str, args: Any) -> None:
        _, moment, victim = args
        flag = Path(f"{os.environ['SHOP_NOTES']}.{victim}.{moment}")
        if when == moment and not flag.exists():
            if (when, victim) == ("retry", "parent"):
                self._wait_until_retry_is_noted()
            flag.touch()
            os.kill(os.getppid() if victim == "parent" else os.getpid(), signal.SIGKILL)
            time.sleep(60)

    def _wait_until_retry_is_noted(self) -> None:
        """Not in the moment in which Redis has handed it out and kombu has not noted it: row 69 loses it."""
        marks = (f'"id": "{self.request.id}"', '"retries": 1')
        begun = f" {self.request.id} 1 "
        deadline = time.monotonic() + 60
        with Redis.from_url(os.environ["BROKER_URL"]) as client:
            while time.monotonic() < deadline:
                noted = map(bytes.decode, client.hvals("unacked"))
                # Or it has run already: this process may have stood still meanwhile.
                if any(all(mark in line for mark in marks) for line in noted) or begun in _notes():
                    return
                time.sleep(0.02)
        raise AssertionError("the retry was not fetched")


@app.task(base=KilledAtTheEnd, name="keys.mortal", bind=True)
def mortal(self: Any, number: int, moment: str, victim: str) -> str:
    note("effect", number, self.request.id, self.request.retries)
    if moment == "retry" and self.request.retries == 0:
        raise TransientError("the relay is down", retry_after=1)
    return "done"


@app.task(base=KeyedJob, name="keys.broken", bind=True, idempotency_key="order:{order}", max_attempts=1)
def broken(self: Any, number: int, order: int) -> str:
    """Die until the switch is on; the jobs of one order have one key."""
    note("begin", number, self.request.id)
    if not Path(os.environ["SHOP_SWITCH"]).exists():
        raise PermanentError(f"order {number} cannot be sent")
    note("effect", number, self.request.id)
    return "sent"


@app.task(base=KeyedJob, name="keys.deadly", bind=True)
def deadly(self: Any, number: int) -> None:
    """Take its process with it each time."""
    note("begin", number, self.request.id)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@app.task(base=KeyedJob, name="keys.ordering", bind=True, atomic=True)
def ordering(self: Any, number: int) -> None:
    """Enqueue another job in its own transaction; fail the first time."""
    outside.delay(number + 1 + self.request.retries)
    if self.request.retries == 0:
        raise ConnectionError("the relay is down")


@app.task(name="keys.fence")
def fence(path: str) -> None:
    Path(path).touch()
