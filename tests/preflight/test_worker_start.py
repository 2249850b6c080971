"""Real workers on real brokers: they refuse one that can lose jobs, and say why."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.preflight.place import APPLICATION, ROOT, Place
from tests.servers import RedisServer, free_port, running, wait_until

pytestmark = pytest.mark.worker

REFUSED = 78
START_SECONDS = 90

POOLS = ("prefork", "threads", "solo", "gevent")
LRU, NO_FILE, NO_SYNC = (
    ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy: allkeys-lru"),
    ({"appendonly": "no"}, "append-only file: off"),
    ({"appendfsync": "no"}, "appendfsync: no"),
)


def set_up(server: RedisServer, options: dict[str, str]) -> None:
    with server.client() as client:
        for name, value in options.items():
            client.config_set(name, value)


@contextmanager
def started(
    place: Place, *arguments: str, log: str = "worker.log", **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a worker; yield its process and its log."""
    path = place.directory / log
    with running(
        place.worker(*arguments),
        env={**clean(), **place.env, **environment},
        log=path,
        cwd=place.directory,
    ) as process:
        yield process, path


def clean() -> dict[str, str]:
    """What running() would inherit from the tests."""
    return {"JOBS_PREFLIGHT": "refuse"}


def is_ready(log: Path) -> bool:
    return log.exists() and b"ready." in log.read_bytes()


def drop_what_waits(server: RedisServer) -> None:
    """Drop the connections on which workers wait for jobs; any other would be made anew without a word."""
    with server.client() as client:
        for connection in client.client_list():
            if connection["cmd"] == "brpop" and "b" in connection["flags"]:
                client.client_kill_filter(_id=connection["id"])


@pytest.mark.parametrize(
    ("pool", "bad"),
    [("prefork", LRU), ("threads", NO_FILE), ("solo", NO_SYNC), ("gevent", LRU)],
    ids=["prefork-eviction", "threads-no file", "solo-no sync", "gevent-eviction"],
)
def test_worker_refuses_a_redis_that_can_lose_jobs(
    place: Place, own_redis: RedisServer, pool: str, bad: tuple[dict[str, str], str]
) -> None:
    options, words = bad
    set_up(own_redis, options)

    # The worker of prefork as it comes, with Django's own checks.
    checks = {"CELERY_SKIP_CHECKS": ""} if pool == "prefork" else {}
    done = place.run(*place.worker("--pool", pool)[1:], **checks)

    assert done.returncode == REFUSED
    assert "This worker does not start: its broker redis://127.0.0.1" in done.stderr
    assert words in done.stderr
    assert "To set: redis-cli CONFIG SET " in done.stderr
    assert "JOBS_PREFLIGHT=warn" in done.stderr
    assert "Traceback" not in done.stderr
    assert "ready." not in done.stderr


def test_worker_refuses_a_visibility_timeout_below_the_longest_time_limit(place: Place) -> None:
    place.write(APPLICATION.replace("task_time_limit=660", "task_time_limit=7200"))

    done = place.run(*place.worker()[1:])

    assert done.returncode == REFUSED
    assert "the longest time limit is 7,200 s (shop.touch)" in " ".join(done.stderr.split())
    assert '"visibility_timeout": 7920' in done.stderr


def test_line_that_is_said_lets_the_worker_start(place: Place) -> None:
    place.write(APPLICATION.replace("task_time_limit=660", "task_time_limit=7200"))

    with started(place, JOBS_VISIBILITY_TIMEOUT_SECONDS="7920") as (_, log):
        wait_until(lambda: is_ready(log), seconds=START_SECONDS, what="the worker to be ready")


def test_worker_refuses_a_visibility_timeout_below_three_times_the_measured_p99(place: Place) -> None:
    code = """
from datetime import timedelta
from django.utils import timezone
from jobs.models import IdempotencyRecord
now = timezone.now()
IdempotencyRecord.objects.bulk_create(
    IdempotencyRecord(task="shop.touch", key=str(n), state="done", task_id=str(n), created_at=now, updated_at=now,
                      started_at=now - timedelta(seconds=1300), completed_at=now)
    for n in range(50)
)
"""
    assert place.manage("shell", "-v", "0", "-c", code).returncode == 0

    done = place.run(*place.worker()[1:])

    assert done.returncode == REFUSED
    assert "p99 runtime of shop.touch is 1,300 s, measured on 50 runs" in " ".join(done.stderr.split())


def test_warn_starts_and_logs_what_was_found_and_off_says_nothing(
    place: Place, own_redis: RedisServer
) -> None:
    set_up(own_redis, {"maxmemory-policy": "allkeys-lru"})

    with (
        started(place, log="warn.log", JOBS_PREFLIGHT="warn") as (_, warned),
        started(place, log="off.log", JOBS_PREFLIGHT="off") as (_, off),
    ):
        for log in (warned, off):
            wait_until(
                lambda log=log: is_ready(log), seconds=START_SECONDS, what=f"the worker to be ready ({log})"
            )

    assert "Preflight: maxmemory-policy: allkeys-lru" in warned.read_text()
    assert "Preflight" not in off.read_text()


def test_a_word_that_is_not_known_is_refused(place: Place) -> None:
    place.write("from console.settings import *\nJOBS_PREFLIGHT = 'maybe'\n", name="badsettings.py")

    done = place.run(*place.worker()[1:], DJANGO_SETTINGS_MODULE="badsettings")

    assert done.returncode == REFUSED
    assert "JOBS_PREFLIGHT='maybe' is not known. Use one of refuse, warn, off." in done.stderr


def test_a_broker_that_was_away_is_looked_at_when_it_is_there(place: Place, own_redis: RedisServer) -> None:
    """By workers of every pool, side by side."""
    own_redis.stop()

    with ExitStack() as stack:
        workers = {
            pool: stack.enter_context(started(place, "--pool", pool, log=f"{pool}.log")) for pool in POOLS
        }
        for pool, (process, log) in workers.items():
            wait_until(
                lambda log=log: b"Cannot connect to redis" in log.read_bytes(),
                seconds=START_SECONDS,
                what=f"the worker of {pool} to wait for its broker",
            )
            assert process.poll() is None, pool
        own_redis.start("--appendonly", "no")
        ends = {pool: process.wait(timeout=START_SECONDS) for pool, (process, _) in workers.items()}

    assert ends == dict.fromkeys(POOLS, REFUSED)
    for _, log in workers.values():
        assert "append-only file: off" in log.read_text()
        assert not is_ready(log)


def test_a_broker_that_is_away_keeps_no_worker_from_starting(place: Place, own_redis: RedisServer) -> None:
    own_redis.stop()

    with started(place) as (process, log):
        wait_until(
            lambda: log.exists() and b"Cannot connect to redis" in log.read_bytes(),
            seconds=START_SECONDS,
            what="the worker to wait for its broker",
        )
        own_redis.start()
        wait_until(lambda: is_ready(log), seconds=START_SECONDS, what="the worker to be ready")
        assert process.poll() is None


def test_a_worker_that_has_worked_goes_on_when_its_broker_comes_back_worse(
    place: Place, own_redis: RedisServer
) -> None:
    with started(place) as (process, log):
        wait_until(lambda: is_ready(log), seconds=START_SECONDS, what="the worker to be ready")
        set_up(own_redis, {"maxmemory-policy": "allkeys-lru"})

        def has_looked_again() -> bool:
            drop_what_waits(own_redis)
            return "Preflight: maxmemory-policy: allkeys-lru" in log.read_text()

        wait_until(
            has_looked_again,
            seconds=START_SECONDS,
            what="the worker to look at its broker again",
        )
        assert process.poll() is None


def test_a_user_without_config_permission_keeps_no_worker_from_starting(
    place: Place, own_redis: RedisServer
) -> None:
    with own_redis.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-config", "-info"
        )
        client.config_set("maxmemory-policy", "allkeys-lru")
    place.broker_url = f"redis://shop:secret@127.0.0.1:{own_redis.port}/0"

    with started(place) as (_, log):
        wait_until(lambda: is_ready(log), seconds=START_SECONDS, what="the worker to be ready")

    assert "secret" not in log.read_text()


def test_a_worker_without_django_is_not_looked_at(tmp_path: Path, own_redis: RedisServer) -> None:
    place = Place(tmp_path / "bare", own_redis.url)
    place.write(
        """
        import os
        from celery import Celery
        from jobs.agent import attach

        app = Celery("shop", broker=os.environ["BROKER_URL"])
        app.conf.update(task_default_queue="shop", broker_connection_retry_on_startup=True)
        attach(app)
        """
    )
    set_up(own_redis, {"maxmemory-policy": "allkeys-lru"})
    log = place.directory / "worker.log"
    env = {**clean(), **place.env}
    del env["DJANGO_SETTINGS_MODULE"]

    with running(
        ["env", "-u", "DJANGO_SETTINGS_MODULE", *place.worker()], env=env, log=log, cwd=place.directory
    ):
        wait_until(lambda: is_ready(log), seconds=START_SECONDS, what="the worker to be ready")


def test_a_database_that_is_away_keeps_no_worker_from_starting(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    place = Place(
        tmp_path / "place",
        own_redis.url,
        DATABASE_URL=f"postgres://shop:secret@127.0.0.1:{free_port()}/shop",
    )

    with started(place) as (_, log):
        wait_until(lambda: is_ready(log), seconds=START_SECONDS, what="the worker to be ready")


def test_up_says_plainly_why_its_worker_refused(place: Place, own_redis: RedisServer) -> None:
    set_up(own_redis, {"maxmemory-policy": "allkeys-lru", "appendfsync": "no"})

    done = subprocess.run(
        [place.worker()[0], str(ROOT / "manage.py"), "up", "--port", "0", "--no-beat"],
        cwd=ROOT,
        env=place.env,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 1
    _, _, reason = (done.stdout + done.stderr).partition("worker refused to start; stopping the rest.")
    assert "This worker does not start" in reason
    assert "maxmemory-policy: allkeys-lru" in reason
    assert "appendfsync: no" in reason
    assert "redis-cli CONFIG SET appendfsync everysec" in reason
