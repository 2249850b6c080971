"""What the benchmarks of the two collectors share: a real Redis, both databases, and messages as kombu writes them."""

from __future__ import annotations

import base64
import gc
import json
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command

from tests.postgres import PostgresServer, default_database
from tests.servers import RedisServer


def measured(
    words: str,
    *,
    unit: str,
    target_per_second: int,
    ours: Callable[[RedisServer], float],
    peer: Callable[[], float],
) -> list[dict[str, Any]]:
    """Return one row a database: so many a second, the bare insert's, and their ratio.

    ``ours`` is told the Redis that is the broker meanwhile; ``peer`` is measured after it in the same database.
    """
    rows = []
    with redis_server() as redis, sqlite_url() as sqlite, postgres_url() as postgres:
        settings.BROKER_URL = redis.url
        for name, url in (("SQLite", sqlite), ("PostgreSQL", postgres)):
            with default_database(url):
                call_command("migrate", verbosity=0)
                per_second = ours(redis)
                bare = peer()
                rows.append(
                    {
                        "name": f"{words} into {name}",
                        "ours": round(per_second),
                        "peer": round(bare),
                        "ratio": round(per_second / bare, 2),
                        "target": f">= {target_per_second:,} {unit}",
                        "unit": unit,
                        "is_met": per_second >= target_per_second,
                    }
                )
    return rows


def leave_out_what_is_here() -> None:
    """Keep what was made until now out of the collection of garbage, as runops keeps what it has loaded."""
    gc.collect()
    gc.freeze()


def envelope(body: bytes, *, queue: str, content_type: str, encoding: str) -> bytes:
    """Return a message as kombu puts it on a Redis list."""
    return json.dumps(
        {
            "body": base64.b64encode(body).decode("ascii"),
            "content-encoding": encoding,
            "content-type": content_type,
            "headers": {},
            "properties": {
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": str(uuid.uuid4()),
            },
        }
    ).encode()


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer().start()
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def sqlite_url() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="jobs-bench-") as directory:
        yield f"sqlite:///{Path(directory) / 'console.sqlite3'}"


@contextmanager
def postgres_url() -> Iterator[str]:
    server = PostgresServer(is_durable=True)
    try:
        yield server.start().url
    finally:
        server.remove()
