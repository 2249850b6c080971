"""A place to measure in: an empty SQLite database and a Redis of its own, both gone afterwards."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from django.conf import settings
from django.core.management import call_command
from django.db import connections

from tests.servers import RedisServer


class Place:
    """Makes the default database and ``BROKER_URL`` those of this place while it is entered."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="jobs-bench-"))
        self.database = str(self._directory / "console.sqlite3")
        self._redis = RedisServer()
        self.broker_url = self._redis.url
        self.redis = self._redis.client()

    def __enter__(self) -> Place:
        self._redis.start()
        self._former = (settings.BROKER_URL, connections.settings["default"], connections["default"])
        settings.BROKER_URL = self.broker_url
        connections.settings["default"] = {
            **connections.settings["default"],
            "NAME": self.database,
        }
        connections["default"] = connections.create_connection("default")
        call_command("migrate", verbosity=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connections["default"].close()
        settings.BROKER_URL, connections.settings["default"], connections["default"] = self._former
        self.redis.close()
        self._redis.remove()
        shutil.rmtree(self._directory, ignore_errors=True)
