"""What the night of the pictures has beside its letters: keys and their ledger, the outbox, jobs in progress."""

from __future__ import annotations

import json
import random
import uuid
from datetime import datetime, timedelta
from typing import Any

from jobs.agent.wire import IDEMPOTENCY_HEADER
from jobs.core.words import LedgerState, LetterState, OutboxState

_KEYS = {"shop.tasks.charge_card": "charge", "shop.tasks.send_receipt": "receipt"}
# Letters of charge_card whose key another job has done since.
ALREADY_DONE = 12
_NO_EXCHANGE = "NotFound: Exchange.declare: (404) NOT_FOUND - no exchange 'partners' in vhost '/'"


def give_keys(letters: list[Any]) -> None:
    """Give the letters of the shop's jobs with effects outside their idempotency key."""
    for letter in letters:
        prefix = _KEYS.get(letter.task)
        if prefix:
            letter.idempotency_key = f"{prefix}:{letter.arguments_preview.partition('=')[2]}"
            letter.message.headers[IDEMPOTENCY_HEADER] = letter.idempotency_key


def seed(letters: list[Any], *, now: datetime) -> None:
    """Insert the ledger, the outbox with its relay, and the progress of some jobs."""
    _ledger(letters, now)
    _outbox(now)
    _progress(letters, now)


def _ledger(letters: list[Any], now: datetime) -> None:
    from jobs.models import IdempotencyRecord

    keyed = {
        (letter.task, letter.idempotency_key): letter
        for letter in letters
        if letter.idempotency_key and letter.state == LetterState.DEAD
    }
    charges = [letter for letter in keyed.values() if letter.task.endswith("charge_card")]
    done = {letter.pk for letter in charges[-ALREADY_DONE:]}
    IdempotencyRecord.objects.bulk_create(
        [
            IdempotencyRecord(
                task=letter.task,
                key=letter.idempotency_key,
                state=LedgerState.DONE if letter.pk in done else LedgerState.FREE,
                task_id=str(uuid.uuid5(uuid.NAMESPACE_OID, letter.task_id))
                if letter.pk in done
                else letter.task_id,
                attempt=4,
                holder="pay-1:8121",
                result='{"receipt": "r-7"}' if letter.pk in done else None,
                created_at=letter.published_at,
                started_at=letter.published_at,
                completed_at=letter.died_at + timedelta(seconds=9) if letter.pk in done else None,
                updated_at=letter.died_at,
            )
            for letter in keyed.values()
        ],
        batch_size=1000,
    )


def _outbox(now: datetime) -> None:
    from jobs.models import Lease, OutboxMessage

    chance = random.Random(411)
    Lease.objects.create(
        duty="relay",
        holder="runops@web-1:411",
        token=7,
        acquired_at=now - timedelta(hours=9),
        renewed_at=now,
        expires_at=now + timedelta(hours=2),
    )
    rows = []
    # An exchange that nobody has declared: refused, and tried again after longer and longer pauses.
    for number, minutes in enumerate((18.0, 17.2, 4.1)):
        rows.append(
            _message(
                "shop.tasks.tell_partner",
                "partners",
                chance,
                now - timedelta(minutes=minutes),
                available_at=now + timedelta(seconds=41 + 77 * number),
                attempts=4 - number,
                last_error=_NO_EXCHANGE,
                exchange="partners",
            )
        )
    rows += [
        _message(
            task,
            "critical",
            chance,
            now - timedelta(seconds=seconds),
            available_at=now - timedelta(seconds=seconds - 0.1),
        )
        for task, seconds in (("shop.tasks.send_receipt", 0.5), ("shop.tasks.charge_card", 0.3))
    ]
    for number in range(14):
        eta = now + timedelta(hours=2.2 + number * 5)
        rows.append(
            _message(
                "shop.tasks.remind_cart",
                "low",
                chance,
                now - timedelta(hours=20 - number),
                available_at=eta,
                eta=eta,
            )
        )
    rows.append(
        _message(
            "shop.tasks.tell_partner",
            "partners",
            chance,
            now - timedelta(hours=21),
            available_at=now - timedelta(hours=20),
            state=OutboxState.GAVE_UP,
            attempts=8,
            last_error=_NO_EXCHANGE,
            exchange="partners",
        )
    )
    for number in range(120):
        written = now - timedelta(seconds=2 + 7.3 * number)
        rows.append(
            _message(
                chance.choice(("shop.tasks.send_receipt", "shop.tasks.charge_card")),
                "critical",
                chance,
                written,
                available_at=written + timedelta(seconds=15),
                state=OutboxState.PUBLISHED,
                published_at=written + timedelta(seconds=chance.uniform(0.004, 0.03)),
                published_by="relay" if number % 40 == 9 else "commit",
            )
        )
    OutboxMessage.objects.bulk_create(rows)


def _message(task: str, queue: str, chance: random.Random, written: datetime, **fields: Any) -> Any:
    from jobs.models import OutboxMessage
    from tests.factories import make_headers

    order = chance.randint(40_000, 49_999)
    kwargs: dict[str, Any] = {"order_id": order}
    if task.endswith("charge_card"):
        kwargs |= {"amount": {"value": "74.90", "currency": "EUR"}, "card_token": "tok_9f2"}
    task_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
    prefix = _KEYS.get(task)
    headers = make_headers(task=task, task_id=task_id, args=[], kwargs=kwargs)
    key = f"{prefix}:{order}" if prefix else ""
    if key:
        headers[IDEMPOTENCY_HEADER] = key
    eta = fields.get("eta")
    if eta is not None:
        headers["eta"] = eta.isoformat()
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    values: dict[str, Any] = {
        "uuid": uuid.UUID(int=chance.getrandbits(128), version=4),
        "task": task,
        "task_id": task_id,
        "root_id": task_id,
        "queue": queue,
        "routing_key": queue,
        "body": json.dumps([[], kwargs, embed]).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": headers,
        "properties": {"correlation_id": task_id, "delivery_mode": 2},
        "idempotency_key": key,
        "created_at": written,
    }
    return OutboxMessage(**{**values, **fields})


def _progress(letters: list[Any], now: datetime) -> None:
    from jobs.models import JobProgress

    dead = next(letter for letter in letters if letter.task.endswith("resize_image"))
    rows = (
        ("shop.tasks.import_feed", "celery@web-1", 340, 1000, "feed of nordwind", 72.0, 4.0, uuid.uuid4()),
        ("shop.tasks.sync_stock", "celery@web-1", 88_214, None, "warehouse north", 312.0, 2.0, uuid.uuid4()),
        ("shop.tasks.export_orders", "celery@img-1", 17, 24, "", 2900.0, 140.0, uuid.uuid4()),
        ("shop.tasks.resize_image", dead.worker, 41, 64, "thumbnails", 320.0, 21.0, dead.task_id),
    )
    JobProgress.objects.bulk_create(
        JobProgress(
            task_id=str(task_id),
            task=task,
            worker=worker,
            done=done,
            total=total,
            note=note,
            started_at=now - timedelta(seconds=began),
            updated_at=now - timedelta(seconds=told),
        )
        for task, worker, done, total, note, began, told, task_id in rows
    )
