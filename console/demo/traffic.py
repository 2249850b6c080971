"""Sends the shop's jobs: a steady stream that works, and failures up to a limit, so that nothing grows without end."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kombu.exceptions import OperationalError

from console.demo import shop
from console.demo.services import MailRelay, PaymentProvider
from console.demo.state import Demo

if TYPE_CHECKING:
    # Loads the tables; the traffic itself runs without Django.
    from jobs.runops import StopRequest

# One job that works a second, one of the risky kinds every few seconds.
STEADY_SECONDS = 1.0
RISKY_SECONDS = 4.0
# At the start there is something to look at soon.
FIRST_ORDERS = 24
# More than this many of the shop's letters that are dead, and only jobs that work are sent.
DEAD_LIMIT = 300
# The same for all its letters, resolved and purged ones too.
TOTAL_LIMIT = 3_000
COUNT_SECONDS = 5.0

CUSTOMERS = (
    ("Ada Byron", "ada@shop.example"),
    ("Zoë Ångström", "zoe@shop.example"),
    ("Jürgen Müller", "juergen@shop.example"),
    ("松本 美咲", "misaki@shop.example"),
    ("Grace Hopper", "grace@shop.example"),
)
SUPPLIERS = ("Nordwind", "Fjord & Sons", "Albatros")


class Traffic:
    """One run of the shop. ``random`` decides amounts and names only, never whether a job fails."""

    def __init__(self, demo: Demo, *, count_letters: Callable[[], tuple[int, int]]) -> None:
        self._demo = demo
        self._count_letters = count_letters
        self._random = random.Random(48_213)  # noqa: S311 (sample data)
        self._orders = itertools.count(48_213)
        self._risky = self._risky_jobs()
        self._relay = MailRelay(shop.MAIL_PORT)
        self._provider = PaymentProvider(shop.PAYMENTS_PORT, is_fixed=demo.is_fixed)
        self.sent = 0

    def run(self, stop: threading.Event | StopRequest, *, say: Callable[[str], None]) -> None:
        """Send jobs until ``stop`` is set."""
        self._provider.start()
        self._follow_switch(say)
        for _ in range(FIRST_ORDERS):
            if stop.is_set() or self._is_full():
                break
            self._send(next(self._risky), say)
        next_risky = next_count = time.monotonic()
        is_full = told = False
        while not stop.wait(STEADY_SECONDS):
            self._follow_switch(say)
            self._send(self._steady, say)
            if time.monotonic() >= next_count:
                next_count = time.monotonic() + COUNT_SECONDS
                is_full = self._is_full()
                if is_full and not told:
                    say("There are enough dead letters to look at; from now on only jobs that work are sent.")
                told = is_full
            if not is_full and time.monotonic() >= next_risky:
                next_risky = time.monotonic() + RISKY_SECONDS
                self._send(next(self._risky), say)
        self._relay.release()
        self._provider.shutdown()
        self._provider.server_close()

    def _is_full(self) -> bool:
        dead, total = self._count_letters()
        return dead >= DEAD_LIMIT or total >= TOTAL_LIMIT

    def _follow_switch(self, say: Callable[[str], None]) -> None:
        """Repair or break what is not code: the mail relay and the payment provider."""
        is_fixed = self._demo.is_fixed
        self._provider.is_fixed = is_fixed
        if is_fixed and not self._relay.is_open:
            self._relay.open()
            say("The mail relay takes mail and the payment provider answers.")
        elif not is_fixed and self._relay.is_open:
            self._relay.close()
            say("The mail relay is closed and the payment provider flaps.")

    def _send(self, job: Callable[[], None], say: Callable[[str], None]) -> None:
        """Send one job; a broker that is away for a while stops the shop no longer than that."""
        try:
            job()
        except OperationalError as error:
            say(f"The broker does not take a job ({error}); this one is not sent.")

    def _steady(self) -> None:
        sku = f"SKU-{self._random.randint(1, 400):03d}"
        if self._random.random() < 0.7:
            shop.track_view.delay(sku, visitor=f"v{self._random.randint(1, 9_999)}")
        else:
            shop.update_stock.delay(sku, change=self._random.randint(-3, 12))
        self.sent += 1

    def _risky_jobs(self) -> Iterator[Callable[[], None]]:
        """Yield the kinds of jobs that fail while the bugs are there, the frequent ones more often."""
        turn = (
            self._order,
            self._receipt,
            self._feed_without_price,
            self._order,
            self._sms,
            self._image,
            self._receipt,
            self._feed_with_comma,
            self._order,
            self._feed_without_price,
            self._receipt,
            self._invoice,
        )
        yield from turn
        yield self._cut_off_message
        while True:
            for _ in range(5):
                yield from turn
            yield self._cut_off_message

    def _order(self) -> None:
        """Charge a card, then take the goods from the stock, then mail the receipt: a chain."""
        order = next(self._orders)
        customer, email = self._random.choice(CUSTOMERS)
        charge = shop.charge_card.si(
            order,
            amount_cents=self._random.randint(500, 25_000),
            card={"number": "4242424242424242", "holder": customer},
        )
        receipt = shop.send_receipt.si(order, email=email, customer=customer)
        self._sent((charge | shop.update_stock.si("SKU-001", change=-1) | receipt).apply_async)

    def _receipt(self) -> None:
        customer, email = self._random.choice(CUSTOMERS)
        order = next(self._orders)
        self._sent(lambda: shop.send_receipt.delay(order, email=email, customer=customer))

    def _feed_without_price(self) -> None:
        rows = [{"sku": "SKU-001", "price": "12.50"}, {"sku": f"SKU-{next(self._orders)}"}]
        self._sent(lambda: shop.import_feed.delay(self._random.choice(SUPPLIERS), rows))

    def _feed_with_comma(self) -> None:
        rows = [{"sku": "SKU-002", "price": f"{self._random.randint(1, 99)},50"}]
        self._sent(lambda: shop.import_feed.delay(self._random.choice(SUPPLIERS), rows))

    def _image(self) -> None:
        self._sent(lambda: shop.resize_image.delay(next(self._orders), width=6_000, height=4_000))

    def _invoice(self) -> None:
        self._sent(lambda: shop.render_invoice.delay(next(self._orders), lines=250))

    def _sms(self) -> None:
        """Send a job that the worker of the old release has no task for."""
        arguments = {"phone": "+49 30 901820", "text": "Your order is on its way"}
        self._sent(
            lambda: shop.app.send_task(
                "shop.tasks.send_sms", args=[next(self._orders)], kwargs=arguments, queue=shop.MAIL
            )
        )

    def _cut_off_message(self) -> None:
        """Send what a crashing publisher leaves: half a body. No fix makes it readable."""
        with shop.app.producer_pool.acquire() as producer:
            producer.publish(
                b'[["SKU-001", {"chan',
                content_type="application/json",
                content_encoding="utf-8",
                headers={"task": "shop.tasks.update_stock", "id": f"cut-off-{next(self._orders)}"},
                exchange=shop.CATALOG,
                routing_key=shop.CATALOG,
                declare=[shop.app.amqp.queues[shop.CATALOG]],
            )
        self.sent += 1

    def _sent(self, send: Callable[[], object]) -> None:
        send()
        self.sent += 1
