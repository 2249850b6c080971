"""Build rows that could have come from a real death; every argument has a believable default.

Times default to ``NOW``. Nothing here reads the clock or draws randomness but for unique ids.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from datetime import UTC, datetime
from typing import Any

from jobs.agent.wire import CONTENT_TYPE, Record, WireError, WireMessage, encode
from jobs.broker.inbox import Taken
from jobs.core.words import GroupState, LetterState, Reason
from jobs.models import DeadLetter, Death, FailureGroup, LetterMessage, Operation, OperationItem

NOW = datetime(2026, 11, 12, 3, 12, tzinfo=UTC)

TRACEBACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/site-packages/celery/app/trace.py", line 453, in trace_task
    R = retval = fun(*args, **kwargs)
                 ^^^^^^^^^^^^^^^^^^^^
  File "/app/shop/tasks.py", line 88, in send_receipt
    mailer.send(order.email, render(order))
  File "/app/shop/mailer.py", line 31, in send
    self.smtp.connect(host, port)
ConnectionRefusedError: [Errno 111] Connection refused
"""

MESSAGE_COLUMNS = ("body", "headers", "properties")

_numbers = itertools.count(1)


def make_group(**fields: Any) -> FailureGroup:
    """Insert a failure group; ``fields`` override its columns."""
    number = next(_numbers)
    values: dict[str, Any] = {
        "fingerprint": hashlib.sha1(str(number).encode(), usedforsecurity=False).hexdigest(),
        "task": "shop.tasks.send_receipt",
        "error_type": "ConnectionRefusedError",
        "title": "ConnectionRefusedError: [Errno 111] Connection refused",
        "state": GroupState.NEW,
        "first_seen_at": NOW,
        "last_seen_at": NOW,
    }
    return FailureGroup.objects.create(**{**values, **fields})


def make_letter(
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    embed: dict[str, Any] | None = None,
    death: bool = True,
    traceback: str = TRACEBACK,
    **fields: Any,
) -> DeadLetter:
    """Insert a dead letter with its message, its group and one death unless ``death=False``.

    ``args``, ``kwargs`` and ``embed`` make a protocol 2 JSON body; ``body=`` in ``fields`` wins.
    ``group``, ``died_at``, ``reason``, ``task``, ``queue``, ``state`` and any other column may be given,
    those of the message too.
    """
    task_id = fields.get("task_id") or str(uuid.uuid4())
    args = [] if args is None else args
    kwargs = {"order_id": 48213} if kwargs is None else kwargs
    died_at = fields.get("died_at", NOW)
    task = fields.get("task", "shop.tasks.send_receipt")
    queue = fields.get("queue", "critical")
    named = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
    callbacks = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    values: dict[str, Any] = {
        "task": task,
        "task_id": task_id,
        "root_id": task_id,
        "parent_id": "",
        "queue": queue,
        "exchange": "",
        "routing_key": queue,
        "body": json.dumps([args, kwargs, {**callbacks, **(embed or {})}]).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": make_headers(task=task, task_id=task_id, args=args, kwargs=kwargs),
        "properties": {"correlation_id": task_id, "delivery_mode": 2, "priority": 0},
        "state": LetterState.DEAD,
        "state_changed_at": died_at,
        "reason": Reason.FAILED,
        "error_type": "ConnectionRefusedError",
        "error": "[Errno 111] Connection refused",
        "worker": "celery@web-1",
        "first_died_at": died_at,
        "died_at": died_at,
        "published_at": died_at,
        "arguments_preview": "".join(f"{key}={value!r}" for key, value in list(named.items())[:1])[:255],
        "arguments_text": "".join(f"\n{key}={value}\n" for key, value in named.items()),
    }
    values.update(fields)
    if "group" not in values:
        values["group"] = make_group(
            task=task, error_type=values["error_type"], first_seen_at=died_at, last_seen_at=died_at
        )
    message = {name: values.pop(name) for name in MESSAGE_COLUMNS}
    letter = DeadLetter.objects.create(**values)
    LetterMessage.objects.create(letter=letter, **message)
    if death:
        make_death(letter, traceback=traceback)
    return letter


def make_copies(letter: DeadLetter, number: int) -> list[DeadLetter]:
    """Insert so many letters that have all but the ids of ``letter``, with its message and no deaths."""
    columns = [
        field.attname for field in DeadLetter._meta.concrete_fields if field.name not in {"id", "uuid"}
    ]
    values = {name: getattr(letter, name) for name in columns}
    message = {name: getattr(letter.message, name) for name in MESSAGE_COLUMNS}
    copies = DeadLetter.objects.bulk_create([DeadLetter(**values) for _ in range(number)], batch_size=1_000)
    LetterMessage.objects.bulk_create(
        [LetterMessage(letter=copy, **message) for copy in copies], batch_size=1_000
    )
    return copies


def make_headers(
    *, task: str, task_id: str, args: list[Any] | None = None, kwargs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the headers that Celery 5.7 puts on a protocol 2 message."""
    return {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": repr(args or []),
        "kwargsrepr": repr(kwargs or {}),
        "origin": "gen1@web-1",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }


def make_death(letter: DeadLetter, **fields: Any) -> Death:
    """Insert one death of ``letter``; what is not given is the letter's own."""
    values: dict[str, Any] = {
        "letter": letter,
        "publication_id": uuid.uuid4().hex,
        "attempt": 0,
        "reason": letter.reason,
        "task_id": letter.task_id,
        "error_type": letter.error_type,
        "error": letter.error,
        "traceback": TRACEBACK,
        "worker": letter.worker,
        "boot_id": "boot-1",
        "published_at": letter.published_at,
        "started_at": letter.died_at,
        "died_at": letter.died_at,
        "details": {},
    }
    return Death.objects.create(**{**values, **fields})


def make_operation(**fields: Any) -> Operation:
    """Insert a running replay without items."""
    values: dict[str, Any] = {
        "kind": Operation.Kind.REPLAY,
        "created_at": NOW,
        "actor": "mara",
        "why": "the mail relay is back",
        "selection_words": "All dead letters",
        "is_materialised": True,
    }
    return Operation.objects.create(**{**values, **fields})


def make_item(operation: Operation, letter: DeadLetter, **fields: Any) -> OperationItem:
    """Insert the item of ``letter`` in ``operation``, sent and waiting for its outcome."""
    values: dict[str, Any] = {
        "operation": operation,
        "letter": letter,
        "state": OperationItem.State.SENT,
        "batch": 1,
        "task_id": str(uuid.uuid4()),
        "publication_id": uuid.uuid4().hex,
        "sent_at": NOW,
    }
    return OperationItem.objects.create(**{**values, **fields})


def make_record(
    *,
    args: list[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    error: str = "[Errno 111] Connection refused",
    error_type: str = "builtins.ConnectionRefusedError",
    traceback: str = TRACEBACK,
    message: dict[str, Any] | None = None,
    has_message: bool = True,
    has_error: bool = True,
    **fields: Any,
) -> Record:
    """Return a death as an agent reports it; ``message`` overrides parts of its message."""
    task_id = fields.get("task_id") or str(uuid.uuid4())
    task = fields.get("task", "shop.tasks.send_receipt")
    args = [] if args is None else args
    kwargs = {"order_id": 48213} if kwargs is None else kwargs
    embed = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    whole = {
        "body": json.dumps([args, kwargs, embed]).encode(),
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": make_headers(task=task, task_id=task_id, args=args, kwargs=kwargs),
        "properties": {"correlation_id": task_id, "delivery_mode": 2, "priority": 0},
        "exchange": "",
        "routing_key": "critical",
        "queue": "critical",
        **(message or {}),
    }
    values: dict[str, Any] = {
        "kind": "death",
        "reason": Reason.FAILED.value,
        "publication_id": uuid.uuid4().hex,
        "attempt": 0,
        "at": NOW.timestamp(),
        "task": task,
        "task_id": task_id,
        "worker": "celery@web-1",
        "boot_id": "boot-1",
        "root_id": task_id,
        "published_at": NOW.timestamp() - 2,
        "started_at": NOW.timestamp() - 1,
        "message": WireMessage(**whole) if has_message else None,
        "error": WireError(error_type, error, traceback) if has_error else None,
        **fields,
    }
    return Record(**values)


def make_outcome(letter: DeadLetter, item: OperationItem | None, **fields: Any) -> Record:
    """Return how a replayed job ended: "done" unless ``reason`` says otherwise."""
    values = {
        "kind": "outcome",
        "reason": "done",
        "has_message": False,
        "has_error": False,
        "replay_of": str(letter.uuid),
        "replay_item": item.pk if item is not None else None,
        "task": letter.task,
        "task_id": item.task_id if item is not None else "",
    }
    return make_record(**{**values, **fields})


def make_taken(record: Record) -> Taken:
    """Return the record as it comes out of the inbox."""
    return Taken(body=encode(record), content_type=CONTENT_TYPE, content_encoding="utf-8")
