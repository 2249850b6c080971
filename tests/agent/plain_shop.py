"""A Flask-like application in a process where Django cannot be imported."""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class NoDjango(importlib.abc.MetaPathFinder):
    """Fails the import of Django, as it does where Django is not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] in ("django", "psycopg"):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


sys.meta_path.insert(0, NoDjango())

from celery import Celery  # noqa: E402 (after the import hook)

from jobs.agent import attach  # noqa: E402
from tests.applications import Application  # noqa: E402


class WebApplication:
    """What a micro framework looks like to Celery: settings, and a Celery application made from them."""

    def __init__(self) -> None:
        self.config = {"broker_url": os.environ["BROKER_URL"], "broker_connection_retry_on_startup": True}

    def make_celery(self) -> Celery:
        celery = Application("plain")
        attach(celery)  # before it is configured, and before its tasks
        celery.config_from_object(self.config)
        return celery


app = WebApplication().make_celery()


@app.task(name="plain.fail")
def fail(order_id: int) -> None:
    try:
        import django  # noqa: F401
    except ModuleNotFoundError:
        loaded = [name for name in sys.modules if name.partition(".")[0] == "django"]
        raise LookupError(f"order {order_id}, Django modules loaded: {loaded}") from None


@app.task(name="shop.mark")
def mark(path: str, text: str = "") -> None:
    with open(path, "a") as file:  # noqa: PTH123 (as short as such an application is)
        file.write(f"{text}\n")


if __name__ == "__main__":
    app.worker_main(sys.argv[1:])
