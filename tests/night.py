"""The night of the design pictures, as rows: 4,310 dead letters in 8 groups, and what was resolved before.

``seed(now=…)`` fills an empty database; times count back from ``now``, which stands for 03:12.
As a program it migrates and seeds the database of the settings: ``python -m tests.night``.
The mail relay fails 31 minutes before, the payment gateway 28; both groups still fail.
"""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs.core.words import GroupState, ItemState, LetterState, OperationKind, OperationState, Reason

PASSWORD = "only for the night"
# Of the replay of the earlier outage, those whose key another job had done: a customer had paid once more.
ALREADY_DONE = frozenset({41, 160, 161, 402})
_LIBRARY = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/celery/app/trace.py", line 453, in trace_task
    R = retval = fun(*args, **kwargs)
                 ^^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/site-packages/celery/app/trace.py", line 736, in __protected_call__
    return self.run(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^
"""


@dataclass(frozen=True, slots=True)
class Bug:
    """A failure group and how its letters are spread over the minutes before ``now``."""

    task: str
    queue: str
    reason: Reason
    error_type: str
    title: str
    errors: tuple[str, ...]
    frames: str
    state: GroupState
    # (letters, from minutes ago, to minutes ago)
    spans: tuple[tuple[int, float, float], ...]
    newest_seconds: float
    first_seen_minutes: float
    argument: tuple[str, str]
    workers: tuple[str, ...]
    owner: str = ""
    note: str = ""

    @property
    def count(self) -> int:
        return sum(number for number, _, _ in self.spans)


def _own(path: str, line: int, function: str, code: str) -> str:
    return f'  File "/app/{path}", line {line}, in {function}\n    {code}\n'


_DAY = 1440.0
BUGS = (
    Bug(
        "shop.tasks.send_receipt",
        "critical",
        Reason.RETRIES_EXHAUSTED,
        "smtplib.SMTPServerDisconnected",
        "SMTPServerDisconnected: Connection unexpectedly closed",
        (
            "Connection unexpectedly closed: timed out",
            "Connection unexpectedly closed: [Errno 104] Connection reset by peer",
        ),
        _own("shop/tasks.py", 88, "send_receipt", "mailer.send(order.email, render(order))")
        + _own("shop/mailer.py", 31, "send", "self.smtp.login(user, secret)"),
        GroupState.NEW,
        ((2914, 31, 0),),
        4,
        31,
        ("order_id", "4{}"),
        ("celery@web-1", "celery@web-2"),
    ),
    Bug(
        "shop.tasks.charge_card",
        "critical",
        Reason.RETRIES_EXHAUSTED,
        "requests.exceptions.HTTPError",
        "HTTPError: 503 Server Error: Service Unavailable for url",
        ("503 Server Error: Service Unavailable for url: https://api.pay.example/v1/orders/{n}/charge",),
        _own(
            "shop/tasks.py",
            118,
            "charge_card",
            "receipt = gateway.charge(order.total, token=card_token, key=self.idempotency_key)",
        )
        + _own(
            "shop/payments/gateway.py",
            64,
            "charge",
            'response = self._post(f"/v1/orders/{order_id}/charge", payload, key=key)',
        )
        + _own("shop/payments/gateway.py", 41, "_post", "response.raise_for_status()"),
        GroupState.REGRESSED,
        ((871, 28, 0),),
        6,
        22 * _DAY,
        ("order_id", "4{}"),
        ("celery@pay-1", "celery@pay-2"),
        owner="mara",
    ),
    Bug(
        "shop.tasks.import_feed",
        "default",
        Reason.FAILED,
        "KeyError",
        "KeyError: 'sku'",
        ("'sku'",),
        _own("shop/feeds.py", 57, "import_feed", 'rows = [(row["sku"], row["price"]) for row in feed]'),
        GroupState.KNOWN,
        ((160, 138, 118), (150, 76, 62), (8, 8, 0)),
        9,
        3 * _DAY,
        ("supplier", '"nordwind"'),
        ("celery@web-1",),
        owner="tomas",
        note="SHOP-1884: feed v2 has no sku",
    ),
    Bug(
        "shop.tasks.resize_image",
        "long",
        Reason.TIMED_OUT,
        "celery.exceptions.TimeLimitExceeded",
        "TimeLimitExceeded: 300 s",
        ("300 s",),
        "",
        GroupState.KNOWN,
        ((64, 156, 100), (48, 100, 20), (12, 20, 0)),
        20,
        71 * _DAY,
        ("image_id", "8{}"),
        ("celery@img-1", "celery@img-2"),
        owner="ines",
    ),
    Bug(
        "shop.tasks.resize_image",
        "long",
        Reason.WORKER_LOST,
        "billiard.exceptions.WorkerLostError",
        "WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL)",
        ("Worker exited prematurely: signal 9 (SIGKILL) Job: {n}.",),
        "",
        GroupState.KNOWN,
        ((13, 150, 95), (24, 88, 84), (9, 80, 0)),
        27,
        71 * _DAY,
        ("image_id", "8{}"),
        ("celery@img-1", "celery@img-2"),
        owner="ines",
        note="memory of img-1 and img-2",
    ),
    Bug(
        "shop.tasks.resize_image",
        "long",
        Reason.FAILED,
        "PIL.UnidentifiedImageError",
        "UnidentifiedImageError: cannot identify image file",
        ("cannot identify image file '/srv/uploads/{n}.jpg'",),
        _own("shop/images.py", 22, "resize_image", "image = Image.open(path)"),
        GroupState.MUTED,
        ((22, 157, 90), (6, 90, 24)),
        24 * 60,
        121 * _DAY,
        ("image_id", "8{}"),
        ("celery@img-1",),
        note="customers upload PDFs",
    ),
    Bug(
        "shop.tasks.send_sms",
        "default",
        Reason.UNREGISTERED,
        "celery.exceptions.NotRegistered",
        "NotRegistered: shop.tasks.send_sms",
        ("shop.tasks.send_sms",),
        "",
        GroupState.NEW,
        ((6, 66, 62),),
        62 * 60,
        66,
        ("order_id", "4{}"),
        ("celery@web-2",),
        note="no worker knows it",
    ),
    Bug(
        "shop.tasks.sync_stock",
        "default",
        Reason.RETRIES_EXHAUSTED,
        "psycopg.OperationalError",
        "OperationalError: deadlock detected",
        ("deadlock detected",),
        _own("shop/stock.py", 140, "sync_stock", "cursor.execute(UPDATE_STOCK, rows)"),
        GroupState.KNOWN,
        ((2, 60, 58), (1, 27, 27)),
        27 * 60,
        74 * _DAY,
        ("warehouse", '"north"'),
        ("celery@web-1",),
    ),
)


def seed(*, now: datetime) -> dict[str, int]:
    """Fill the database; returns how many rows of what. The same ``now`` gives the same night."""
    from jobs.models import DeadLetter, Death, FailureGroup, LetterMessage
    from tests import night_alerts, night_ledgers

    chance = random.Random(312)
    people = _people()
    groups: dict[int, FailureGroup] = {}
    letters: list[DeadLetter] = []
    tracebacks: list[str] = []
    for number, bug in enumerate(BUGS, start=1):
        groups[number] = _group(number, bug, people, now)
        for died_at in _moments(bug, now, chance):
            letters.append(_letter(bug, groups[number], died_at, chance))
            tracebacks.append(_traceback(bug, letters[-1].error))
    # Earlier tonight: a smaller outage that was replayed and resolved.
    for _ in range(690):
        minutes = chance.triangular(290, 325, 305) if chance.random() < 0.93 else chance.uniform(160, 480)
        letter = _letter(BUGS[1], groups[2], now - timedelta(minutes=minutes), chance)
        letter.state = LetterState.RESOLVED
        letter.replays = 1
        letter.state_changed_at = now - timedelta(minutes=270)
        letter.delete_after = now + timedelta(days=30)
        letters.append(letter)
        tracebacks.append(_traceback(BUGS[1], letter.error))
    night_ledgers.give_keys(letters)
    DeadLetter.objects.bulk_create(letters, batch_size=1000)
    LetterMessage.objects.bulk_create([letter.message for letter in letters], batch_size=1000)
    Death.objects.bulk_create(
        [_death(letter, text) for letter, text in zip(letters, tracebacks, strict=True)], batch_size=1000
    )
    _operations(letters, people, now)
    night_ledgers.seed(letters, now=now)
    night_alerts.seed(now=now)
    return {"groups": len(groups), "letters": len(letters)}


def _people() -> dict[str, Any]:
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import Group

    users = get_user_model()
    names = {
        "mara": ("Mara", "Lindqvist", "Admin"),
        "tomas": ("Tomás", "Oliveira", "Operator"),
        "ines": ("Ines", "Okafor", "Viewer"),
    }
    people = {}
    for login, (first, last, role) in names.items():
        user = users.objects.create_user(login, password=PASSWORD, first_name=first, last_name=last)
        user.groups.add(Group.objects.get(name=role))
        user.is_staff = role == "Admin"
        user.save()
        people[login] = user
    return people


def _group(number: int, bug: Bug, people: dict[str, Any], now: datetime) -> Any:
    from jobs.models import FailureGroup

    is_regressed = bug.state == GroupState.REGRESSED
    return FailureGroup.objects.create(
        fingerprint=f"{number:040x}",
        task=bug.task,
        error_type=bug.error_type,
        title=bug.title,
        state=bug.state,
        first_seen_at=now - timedelta(minutes=bug.first_seen_minutes),
        last_seen_at=now - timedelta(seconds=bug.newest_seconds),
        owner=people.get(bug.owner),
        note=bug.note,
        regressed_at=now - timedelta(minutes=28) if is_regressed else None,
        resolved_at=now - timedelta(days=9) if is_regressed else None,
        resolved_by=people["mara"] if is_regressed else None,
        muted_until=now + timedelta(days=18) if bug.state == GroupState.MUTED else None,
    )


def _moments(bug: Bug, now: datetime, chance: random.Random) -> list[datetime]:
    seconds = [
        max(bug.newest_seconds, chance.uniform(begin, end) * 60)
        for number, begin, end in bug.spans
        for _ in range(number)
    ]
    seconds.sort()
    seconds[0] = bug.newest_seconds
    return [now - timedelta(seconds=each) for each in seconds]


def _letter(bug: Bug, group: Any, died_at: datetime, chance: random.Random) -> Any:
    from jobs.models import DeadLetter, LetterMessage
    from tests.factories import make_headers

    number = chance.randint(7000, 8999)
    name, pattern = bug.argument
    literal = pattern.format(number)
    if name == "supplier":
        literal = chance.choice(('"nordwind"', '"papierhaus"'))
    value = json.loads(literal)
    kwargs: dict[str, Any] = {name: value}
    if bug.task.endswith("charge_card"):
        kwargs |= {"amount": {"value": "74.90", "currency": "EUR"}, "card_token": "tok_9f2", "capture": True}
    task_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
    deaths = chance.choices((1, 2, 3), (96, 3, 1))[0]
    headers = make_headers(task=bug.task, task_id=task_id, args=[], kwargs=kwargs)
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    letter = DeadLetter(
        uuid=uuid.UUID(int=chance.getrandbits(128), version=4),
        task=bug.task,
        task_id=task_id,
        root_id=task_id,
        queue=bug.queue,
        routing_key=bug.queue,
        content_type="application/json",
        content_encoding="utf-8",
        priority=6,
        state=LetterState.DEAD,
        state_changed_at=died_at,
        reason=bug.reason,
        group=group,
        error_type=bug.error_type,
        error=chance.choice(bug.errors).replace("{n}", str(number)),
        worker=chance.choice(bug.workers),
        deaths=deaths,
        first_died_at=died_at if deaths == 1 else died_at - timedelta(minutes=chance.uniform(1, 20)),
        died_at=died_at,
        published_at=died_at - timedelta(seconds=chance.uniform(20, 90)),
        arguments_preview=f"{name}={literal}",
        arguments_text="".join(f"\n{key}={each}\n" for key, each in {name: value}.items()),
    )
    letter.message = LetterMessage(
        letter=letter,
        body=json.dumps([[], kwargs, embed]).encode(),
        headers=headers,
        properties={"correlation_id": task_id, "delivery_mode": 2, "priority": 6},
    )
    return letter


def _traceback(bug: Bug, error: str) -> str:
    return f"{_LIBRARY}{bug.frames}{bug.error_type}: {error}\n" if bug.frames else ""


def _death(letter: Any, traceback: str) -> Any:
    from jobs.models import Death

    return Death(
        letter=letter,
        publication_id=uuid.uuid4().hex,
        attempt=4 if letter.reason == Reason.RETRIES_EXHAUSTED else 0,
        reason=letter.reason,
        task_id=letter.task_id,
        error_type=letter.error_type,
        error=letter.error,
        traceback=traceback,
        worker=letter.worker,
        boot_id="night",
        published_at=letter.published_at,
        started_at=letter.died_at - timedelta(seconds=1.2),
        died_at=letter.died_at,
    )


def _operations(letters: list[Any], people: dict[str, Any], now: datetime) -> None:
    """The replay of the earlier outage, with its items and its line in the audit."""
    from jobs import audit
    from jobs.audit import Actor
    from jobs.models import Operation, OperationItem, OperationStage

    replayed = [letter for letter in letters if letter.state == LetterState.RESOLVED]
    began = now - timedelta(minutes=274)
    operation = Operation.objects.create(
        kind=OperationKind.REPLAY,
        state=OperationState.FINISHED,
        created_at=began,
        created_by=people["mara"],
        actor="Mara Lindqvist",
        why="The gateway is back, their all-clear came at 22:30. INC-2287",
        selection_words="All dead letters of the task charge_card that died in the evening",
        selected_count=len(replayed),
        is_materialised=True,
        rate_per_second=20,
        stages=[1, 10, None],
        started_at=began,
        ended_at=now - timedelta(minutes=270),
        outcome=f"Of {len(replayed):,} replayed: {len(replayed) - len(ALREADY_DONE):,} done, "
        f"{len(ALREADY_DONE)} already done.",
        carried_out_by="runops-1",
    )
    OperationStage.objects.bulk_create(
        OperationStage(operation=operation, number=number, size=size, started_at=began, ended_at=began)
        for number, size in enumerate((1, 10, None), start=1)
    )
    OperationItem.objects.bulk_create(
        [
            OperationItem(
                operation=operation,
                letter=letter,
                state=ItemState.ALREADY_DONE if index in ALREADY_DONE else ItemState.DONE,
                stage=1 if index == 0 else 2 if index <= 10 else 3,
                batch=index // 100,
                task_id=str(uuid.uuid4()),
                publication_id=uuid.uuid4().hex,
                sent_at=began + timedelta(seconds=index / 20),
                ended_at=began + timedelta(seconds=index / 20 + 2),
            )
            for index, letter in enumerate(replayed)
        ],
        batch_size=1000,
    )
    mara = Actor(user=people["mara"])
    audit.record(actor=mara, action="login", text="logged in", now=began - timedelta(minutes=3))
    audit.record(
        actor=mara,
        action="replay",
        text=f"replayed {len(replayed):,} dead letters",
        why=operation.why,
        operation=operation,
        now=began,
    )
    audit.record(
        actor=mara,
        action="note",
        text="wrote a note: Gateway status page says “partial outage, EU”. Waiting for their all-clear. INC-2291",
        letter=letters[3000],
        now=now - timedelta(minutes=9),
    )


if __name__ == "__main__":
    import os

    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    django.setup()
    from django.core.management import call_command

    from tests import night_numbers

    call_command("migrate", verbosity=0)
    moment = datetime.now(UTC)
    print(seed(now=moment), night_numbers.seed(now=moment))  # noqa: T201 - a program says what it did
