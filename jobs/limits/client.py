"""The Redis that keeps the limits: where it is, one client a process, and what happens while it is away."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis
from django.core.signals import setting_changed
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs import conf
from jobs.errors import PermanentError
from jobs.limits.script import Scripts

logger = logging.getLogger(__name__)

# A worker must not hang on a Redis that swallows packets. The script takes a tenth of a millisecond.
TIMEOUT_SECONDS = 2.0
# While Redis is away it is asked so often by one process; in between jobs are held back without asking.
ASK_AGAIN_SECONDS = 1.0
SCHEMES = ("redis", "rediss", "unix")


class LimitsUnavailable(Exception):
    """Redis cannot be asked now. Never leaves this package: its jobs are held back."""


@dataclass
class Store:
    """A process's way to the Redis of the limits."""

    prefix: str
    client: redis.Redis
    scripts: Scripts
    away_since: float | None = None
    ask_again_at: float = 0.0
    held: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def asked(self) -> Iterator[Scripts]:
        """Give the scripts; log an outage when it begins and when it ends.

        Raises:
            LimitsUnavailable: when Redis does not answer, refuses, or did so less than a second ago.
        """
        if self.away_since is not None and time.monotonic() < self.ask_again_at:
            self.held += 1
            raise LimitsUnavailable
        try:
            yield self.scripts
        except (redis.RedisError, OSError) as error:
            # Any refusal counts: a wrong password, a full memory, a replica. None of them lets a job through.
            self._is_away(error)
            raise LimitsUnavailable from error
        if self.away_since is not None:
            self._is_back()

    def _is_away(self, error: Exception) -> None:
        with self.lock:
            self.held += 1
            self.ask_again_at = time.monotonic() + ASK_AGAIN_SECONDS
            if self.away_since is not None:
                return
            self.away_since = time.monotonic()
        logger.error(
            "The Redis of the limits cannot be asked (%s: %s). Jobs with a rate or a concurrency are held "
            "back until it answers; none is let through and none fails. Look at REDIS_URL and that server.",
            type(error).__name__,
            error,
        )

    def _is_back(self) -> None:
        with self.lock:
            if self.away_since is None:
                return
            seconds, held = time.monotonic() - self.away_since, self.held
            self.away_since, self.held = None, 0
        logger.warning(
            "The Redis of the limits answers again after %.0f s; this process asked in vain or held a job "
            "back %d times.",
            seconds,
            held,
        )


_store: Store | None = None
_lock = threading.Lock()


def store() -> Store:
    """Return this process's way to Redis, made when first asked for.

    Raises:
        PermanentError: when there is no Redis to ask; says what to set.
    """
    global _store  # one for the process
    found = _store
    if found is not None:
        return found
    if problem := missing_redis():
        raise PermanentError(problem)
    with _lock:
        if _store is None:
            _store = _open(*address())
        return _store


def address() -> tuple[str, str]:
    """Return the URL of the Redis of the limits, "" when there is none, and what its keys begin with.

    It is REDIS_URL, or the broker's when that is one Redis. Several brokers, sentinels and clusters need a
    REDIS_URL: which of them answers may change, and with it the numbers.
    """
    settings = conf.current()
    if settings.redis_url:
        return settings.redis_url, ""
    url = settings.broker_url
    # As kombu writes the address of a socket, and as redis does.
    if url.startswith("redis+socket://"):
        url = url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=")
    if ";" in url or _scheme(url) not in SCHEMES:
        return "", ""
    # Its keys may be all that this user is allowed to touch.
    return url, str(settings.broker_transport_options.get("global_keyprefix", ""))


def missing_redis() -> str:
    """Say what to set when limits have no Redis to be kept in; empty when they have.

    Asks nobody: a Redis that is away is not missing.
    """
    url, _ = address()
    if not url:
        return (
            "Cannot keep a rate or a concurrency: REDIS_URL is not set, and BROKER_URL is not the address of "
            "one Redis. Set REDIS_URL, for instance to redis://127.0.0.1:6379/1, or take rate and "
            "concurrency off the jobs."
        )
    if (scheme := _scheme(url)) not in SCHEMES:
        return (
            f"Cannot keep a rate or a concurrency: REDIS_URL begins with {scheme!r}. "
            f"Write an address that begins with {', '.join(f'{name}://' for name in SCHEMES)}."
        )
    try:
        redis.ConnectionPool.from_url(url)
    except ValueError as error:
        # Without the value: it may hold a password.
        return (
            f"Cannot keep a rate or a concurrency: the address of its Redis cannot be read ({error}). "
            "Set REDIS_URL, for instance to redis://127.0.0.1:6379/1."
        )
    return ""


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme if separator else ""


def _open(url: str, prefix: str) -> Store:
    client = redis.Redis.from_url(
        url,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        # Once more at once: a server that was restarted leaves dead connections in the pool. A script that
        # ran twice has counted a job too many, never one too few.
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
    )
    return Store(prefix=prefix, client=client, scripts=Scripts(client))


def forget() -> None:
    """Leave the client behind, as a forked child must; the next job makes its own."""
    global _store, _lock  # one for the process
    _store = None
    # The parent's may have been held by a thread that does not exist here.
    _lock = threading.Lock()


def _setting_changed(*, setting: str, **_: object) -> None:
    if setting == "REDIS_URL" or "BROKER" in setting:
        forget()


os.register_at_fork(after_in_child=forget)
# Sent by tests only: a process's settings do not change, and reading them for each job would cost a tenth.
setting_changed.connect(_setting_changed)
