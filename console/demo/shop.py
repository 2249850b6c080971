"""The shop's Celery application. This file is what any application looks like that attaches.

``IS_FIXED`` is read once, as code is deployed once: the supervisor restarts the worker when the bugs
are fixed, and a task that was missing is then there.
"""

from __future__ import annotations

import json
import os
import signal
import smtplib
import time
import urllib.error
import urllib.request
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from console.demo import feed
from console.demo.state import DIRECTORY_VARIABLE, Demo
from jobs.agent import attach

IS_FIXED = Demo(Path(os.environ[DIRECTORY_VARIABLE])).is_fixed
MAIL_PORT = int(os.environ["SHOP_MAIL_PORT"])
PAYMENTS_PORT = int(os.environ["SHOP_PAYMENTS_PORT"])
PAYMENTS, MAIL, CATALOG, MEDIA = "shop.payments", "shop.mail", "shop.catalog", "shop.media"

app = Celery("shop", broker=os.environ["BROKER_URL"])
app.conf.update(
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_default_queue=CATALOG,
    task_ignore_result=True,
    task_queues=[Queue(name, Exchange(name), routing_key=name) for name in (PAYMENTS, MAIL, CATALOG, MEDIA)],
    task_reject_on_worker_lost=True,
    task_time_limit=30,
    worker_prefetch_multiplier=1,
)
attach(app)


class PaymentProviderDown(ConnectionError):
    """The payment provider did not take a charge; trying later is safe."""


@app.task(name="shop.tasks.track_view")
def track_view(sku: str, visitor: str) -> None:
    """Count a page view. Always works."""


@app.task(name="shop.tasks.update_stock")
def update_stock(sku: str, change: int) -> str:
    """Change the stock of an article. Always works."""
    return f"{sku} {change:+d}"


@app.task(
    name="shop.tasks.charge_card",
    queue=PAYMENTS,
    autoretry_for=(OSError,),
    max_retries=2,
    retry_backoff=1,
    retry_backoff_max=3,
)
def charge_card(order_id: int, amount_cents: int, card: dict[str, str]) -> str:
    """Charge a card over HTTP. The provider answers 503 half of the time until the bugs are fixed."""
    body = json.dumps({"order": order_id, "amount": amount_cents, "card": card}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{PAYMENTS_PORT}/charges", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as response:  # noqa: S310 (our own provider)
            charge: dict[str, str] = json.load(response)
    except urllib.error.HTTPError as error:
        # HTTPError cannot be pickled, so Celery would report a bare OSError.
        raise PaymentProviderDown(f"charge of order {order_id}: {error.code} {error.reason}") from error
    return charge["id"]


@app.task(
    name="shop.tasks.send_receipt",
    queue=MAIL,
    autoretry_for=(OSError,),
    max_retries=2,
    retry_backoff=1,
    retry_backoff_max=2,
)
def send_receipt(order_id: int, email: str, customer: str) -> None:
    """Mail a receipt. The relay's port is closed until the bugs are fixed."""
    message = EmailMessage()
    message["From"], message["To"] = "shop@shop.example", email
    message["Subject"] = f"Your order {order_id}"
    message.set_content(f"Dear {customer},\n\nthank you for order {order_id}.\n")
    with smtplib.SMTP("127.0.0.1", MAIL_PORT, timeout=5) as relay:
        relay.send_message(message)


@app.task(name="shop.tasks.import_feed", queue=CATALOG)
def import_feed(supplier: str, rows: list[dict[str, Any]]) -> int:
    """Import a price list. The parser trusts the supplier until the bugs are fixed."""
    return feed.total_cents(rows, is_fixed=IS_FIXED)


@app.task(name="shop.tasks.resize_image", queue=MEDIA, time_limit=3)
def resize_image(image_id: int, width: int, height: int) -> None:
    """Resize a picture. Large ones run past the time limit until the bugs are fixed."""
    pixels = width * height
    if not IS_FIXED and pixels > 4_000_000:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.05)


@app.task(name="shop.tasks.render_invoice", queue=MEDIA)
def render_invoice(order_id: int, lines: int) -> str:
    """Render an invoice. Long ones crash the process until the bugs are fixed, as a native library does."""
    if not IS_FIXED and lines > 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"invoice-{order_id}.pdf"


if IS_FIXED:

    @app.task(name="shop.tasks.send_sms", queue=MAIL)
    def send_sms(order_id: int, phone: str, text: str) -> None:
        """Send a text message. The release before the fix does not have this task."""
