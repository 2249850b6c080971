"""Tells whether two broker addresses lead to the same place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kombu import Connection

# With and without encryption it is one server.
SAME_SERVER = {"rediss": "redis", "amqps": "amqp", "pyamqp": "amqp"}


def places(urls: str | Iterable[Any]) -> set[tuple[str, ...]]:
    """Return where addresses lead, several joined by ``;`` too: kind, host, port and database.

    Without user and password. Nobody is asked.
    """
    found: set[tuple[str, ...]] = set()
    for url in [urls] if isinstance(urls, str) else urls:
        for each in str(url).split(";"):
            about = Connection(each).info()
            host = str(about["hostname"] or "localhost")
            database = str(about["virtual_host"] or "").strip("/")
            found.add(
                (
                    SAME_SERVER.get(str(about["transport"]), str(about["transport"])),
                    "127.0.0.1" if host == "localhost" else host,
                    str(about["port"]),
                    "" if database == "0" else database,
                )
            )
    return found
