"""A shop whose jobs fail until the switch is on; the application of the journeys' worker."""

from __future__ import annotations

import os
import time
from pathlib import Path

from jobs.agent import attach
from tests.applications import Application

app = Application("shop", broker=os.environ.get("BROKER_URL", "memory://"))
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_connection_retry_on_startup=True,
    task_queues=None,
)
attach(app)


def is_fixed() -> bool:
    """True once somebody has put the shop right."""
    return Path(os.environ["SHOP_SWITCH"]).exists()


@app.task(name="shop.tasks.send_receipt")
def send_receipt(order_id: int, email: str = "a@shop.example") -> str:
    if not is_fixed():
        raise ConnectionError(f"mail relay refused order {order_id}")
    return f"sent {order_id}"


@app.task(name="shop.tasks.import_feed")
def import_feed(supplier: str, rows: list[dict[str, int]]) -> int:
    if not is_fixed():
        return sum(row["sku"] for row in [{"price": 1}])
    return len(rows)


@app.task(name="shop.tasks.charge_card")
def charge_card(order_id: int, amount: int) -> int:
    if amount <= 0:
        raise ValueError(f"amount {amount} of order {order_id} is not above zero")
    return amount


@app.task(name="shop.tasks.export_report")
def export_report(started: str, go: str) -> None:
    """Start, and go on when the file is there."""
    Path(started).touch()
    deadline = time.monotonic() + 60
    while not Path(go).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(go)
        time.sleep(0.05)
