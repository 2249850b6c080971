"""An application whose workers have no agent."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

app = Celery("plain", broker=os.environ.get("BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(broker_connection_retry_on_startup=True, task_ignore_result=True)


@app.task(name="shop.mark")
def mark(path: str, text: str = "") -> None:
    """Leave a line that a test can see."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
