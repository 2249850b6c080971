"""An application whose jobs fail until a file is there, and write down all they were given."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

from kombu.serialization import register

from jobs.agent import attach
from tests.applications import Application

DIRECTORY = Path(os.environ.get("SHOP_DIRECTORY", "."))


class Ledger:
    """A value that says in which process it was unpickled."""

    def __init__(self, order_id: int) -> None:
        self.order_id = order_id

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with (DIRECTORY / "unpickled").open("a") as file:
            file.write(f"{os.getpid()}\n")


def _dump(value: Any) -> bytes:
    return repr(value).encode()


def _load(data: bytes | str) -> Any:
    return ast.literal_eval(data if isinstance(data, str) else bytes(data).decode())


register("literal", _dump, _load, content_type="application/x-python-literal", content_encoding="binary")

app = Application("replay_shop", broker=os.environ.get("BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(
    accept_content=["json", "literal", "pickle"],
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)
attach(app)


@app.task(name="shop.flaky", bind=True)
def flaky(self: Any, *args: Any, **kwargs: Any) -> str:
    """Write down the arguments and what travels with them; fail while the bug is there."""
    request = self.request
    line = {
        "args": repr(args),
        "kwargs": repr(kwargs),
        "id": request.id,
        "root": request.root_id,
        "retries": request.retries,
        "priority": (request.properties or {}).get("priority"),
        "custom": getattr(request, "custom", None) or (request.headers or {}).get("custom"),
        "replay": (request.headers or {}).get("jobs-replay-no"),
        "pid": os.getpid(),
    }
    with (DIRECTORY / f"runs-{kwargs.get('name', 'any')}").open("a") as file:
        file.write(json.dumps(line) + "\n")
    if not (DIRECTORY / "fixed").exists():
        raise ValueError("the bug is there")
    return str(kwargs.get("name"))


@app.task(name="shop.after")
def after(previous: str) -> None:
    """Be the rest of a chain."""
    (DIRECTORY / f"after-{previous}").touch()
