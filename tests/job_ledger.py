"""What jobs of the tests write down, in the worker; ``job_fleet`` reads it."""

from __future__ import annotations

import json
import os
from typing import Any

import redis

LEDGER = "test:ledger"
# The key on which a job waits that runs until it is let go.
GO = "test:go"

_client: redis.Redis | None = None


def ledger_client() -> redis.Redis:
    """Return this process's connection to the Redis of the ledger."""
    global _client
    if _client is None:
        _client = redis.Redis.from_url(os.environ["LEDGER_URL"], socket_timeout=10)
    return _client


def write(what: str, number: int, **more: Any) -> None:
    """Add a line to the ledger: a list in Redis, in the order and by the clock of its server."""
    client = ledger_client()
    seconds, micros = client.time()
    client.rpush(LEDGER, json.dumps({"what": what, "number": number, "at": seconds + micros / 1e6, **more}))
