"""Messages that were taken off a queue → purged letters, which the ordinary restore brings back."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import InterfaceError, OperationalError, transaction

from jobs import conf
from jobs.agent import wire
from jobs.agent.wire import Record, WireError, WireMessage
from jobs.broker.inbox import Taken
from jobs.collector.reading import is_too_deep
from jobs.collector.storing import store
from jobs.core.cleaning import clean_name
from jobs.core.words import GroupState, LetterState, Reason
from jobs.models import DeadLetter, Death, FailureGroup, Operation

logger = logging.getLogger(__name__)

PURGED = "jobs.queues.Purged"
_TEXT = "It was purged from the queue {queue} while it waited there. It never ran."
_MALFORMED = "It was purged from the queue {queue}, and is no message that a worker can run: {problem}."


@dataclass(frozen=True, slots=True)
class Purge:
    """Which purge it was, for the letters' details."""

    queue: str
    operation: Operation
    number: int
    actor: str
    why: str


def archive(taken: Sequence[Taken], *, purge: Purge, now: datetime) -> int:
    """Store messages as purged letters; return how many were not there already. Whole batches, one transaction each.

    Storing a message again adds nothing: it is known by its publication, or by all of its bytes. When a batch
    is refused each message is stored by itself.

    Raises:
        OperationalError: when the database is away or busy; nothing of this batch is stored.
    """
    try:
        return _store([record_of(one, purge=purge, now=now) for one in taken], purge=purge, now=now)
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        logger.warning(
            "A batch of %s purged messages was refused; each is stored by itself.", len(taken), exc_info=True
        )
        return sum(_archive_alone(one, purge=purge, now=now) for one in taken)


def known(taken: Sequence[Taken], *, purge: Purge, now: datetime) -> list[bool]:
    """Say of each message whether it is stored already, as after a crash between storing and removing. One query."""
    keys = [
        (clean_name(record.publication_id), record.attempt)
        for record in (record_of(one, purge=purge, now=now) for one in taken)
    ]
    found = set(
        Death.objects.filter(publication_id__in={publication for publication, _ in keys})
        .order_by()
        .values_list("publication_id", "attempt")
    )
    return [key in found for key in keys]


def _archive_alone(one: Taken, *, purge: Purge, now: datetime) -> int:
    try:
        return _store([record_of(one, purge=purge, now=now)], purge=purge, now=now)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        logger.exception(
            "A purged message was refused by the database; its bytes are kept as a malformed letter."
        )
        bare = Taken(body=one.body, problem=f"the database refused its headers ({type(error).__name__})")
        return _store([record_of(bare, purge=purge, now=now)], purge=purge, now=now)


def _store(records: Sequence[Record], *, purge: Purge, now: datetime) -> int:
    """Store deaths, and hide their letters in the same transaction."""
    uuids = [uuid.uuid4() for _ in records]
    with transaction.atomic():
        stored = store(records, now=now, uuids=uuids)
        hidden = {
            "state": LetterState.PURGED,
            "state_changed_at": now,
            "purged_by": purge.operation,
            "delete_after": now + conf.current().purge_deadline,
        }
        DeadLetter.objects.filter(uuid__in=uuids).update(**hidden)
        # A replay that was purged before it ran is one more death of its letter.
        again = [record for record in records if record.replay_of]
        if again:
            DeadLetter.objects.filter(
                uuid__in=[each for record in again if (each := _uuid(record.replay_of))],
                death_set__publication_id__in=[record.publication_id for record in again],
                state=LetterState.DEAD,
                state_changed_at=now,
            ).update(**hidden)
        # Nothing failed: what an operator did himself is no news to anybody.
        FailureGroup.objects.filter(
            error_type=PURGED, letters__uuid__in=uuids, state__in=[GroupState.NEW, GroupState.REGRESSED]
        ).update(state=GroupState.KNOWN)
    return stored.deaths


def record_of(taken: Taken, *, purge: Purge, now: datetime) -> Record:
    """Make a death of a message, whatever it is."""
    if problem := problem_of(taken):
        return _malformed(taken, problem, purge=purge, now=now)
    headers = taken.headers
    names = names_of(taken)
    task_id = _text(names.get("id"))
    delivery = taken.properties.get("delivery_info")
    delivery = delivery if isinstance(delivery, dict) else {}
    return Record(
        kind="death",
        reason=Reason.REJECTED,
        publication_id=_text(headers.get(wire.PUBLICATION_HEADER)) or f"purged:{_digest(taken)}",
        attempt=_whole(headers.get("retries")),
        at=now.timestamp(),
        task=_text(names.get("task")),
        task_id=task_id,
        worker="",
        boot_id="",
        root_id=_text(headers.get("root_id")),
        parent_id=_text(headers.get("parent_id")),
        published_at=_seconds(headers.get(wire.PUBLISHED_AT_HEADER)),
        message=WireMessage(
            body=taken.body,
            content_type=taken.content_type,
            content_encoding=taken.content_encoding,
            headers=_json_of(taken, headers),
            properties=_json_of(taken, taken.properties),
            exchange=_text(delivery.get("exchange")),
            routing_key=_text(delivery.get("routing_key")),
            queue=purge.queue,
        ),
        error=WireError(PURGED, _TEXT.format(queue=purge.queue), ""),
        replay_of=_text(headers.get(wire.REPLAY_OF_HEADER)),
        replay_item=_whole(headers.get(wire.REPLAY_ITEM_HEADER)) or None,
        details=_details(purge),
    )


def _json_of(taken: Taken, values: dict[str, Any]) -> dict[str, Any]:
    """Return headers or properties as JSON, which an item of a list is already."""
    return values if isinstance(taken.receipt, bytes) else wire.to_json_value(values)


def _malformed(taken: Taken, problem: str, *, purge: Purge, now: datetime) -> Record:
    is_deep = is_too_deep(taken.headers) or is_too_deep(taken.properties)
    return Record(
        kind="death",
        reason=Reason.MALFORMED,
        publication_id=f"purged:{_digest(taken)}",
        attempt=0,
        at=now.timestamp(),
        task="",
        task_id="",
        worker="",
        boot_id="",
        message=WireMessage(
            # The item as it lay there where its headers cannot be kept.
            body=taken.receipt if is_deep and isinstance(taken.receipt, bytes) else taken.body,
            content_type=taken.content_type,
            content_encoding=taken.content_encoding,
            headers={} if is_deep else wire.to_json_value(taken.headers),
            properties={} if is_deep else wire.to_json_value(taken.properties),
            exchange="",
            routing_key="",
            # Of no queue: sent there again it would end another worker.
            queue="",
        ),
        error=WireError(PURGED, _MALFORMED.format(queue=purge.queue, problem=problem.rstrip(".")), ""),
        details=_details(purge),
    )


def problem_of(taken: Taken) -> str:
    """Say why a worker could not run a message, as far as its envelope shows; "" when nothing is wrong with it."""
    if taken.problem:
        return taken.problem
    if is_too_deep(taken.headers) or is_too_deep(taken.properties):
        return "its headers are nested too deep"
    if isinstance(taken.receipt, bytes) and not taken.properties:
        return "it has no properties, which ends the worker that takes it"
    if not _text(names_of(taken).get("task")):
        return "it names no task"
    return ""


def names_of(taken: Taken) -> dict[str, Any]:
    """Return where a message says its task, its id and its ETA: in its headers, or in its body under protocol 1."""
    if "task" in taken.headers:
        return taken.headers
    if taken.content_type == "application/json":
        try:
            body = json.loads(taken.body)
        except (ValueError, RecursionError):
            return {}
        if isinstance(body, dict):
            return body
    return {}


def _details(purge: Purge) -> dict[str, Any]:
    return {"purge": purge.number, "purged_by": purge.actor, "why": purge.why[:500]}


def _digest(taken: Taken) -> str:
    """Return what is the same when this message comes again, and another's is not: kombu's tag is in the item."""
    if isinstance(taken.receipt, bytes):
        return hashlib.sha256(taken.receipt).hexdigest()[:40]
    found = hashlib.sha256(taken.body)
    properties = {name: value for name, value in taken.properties.items() if name != "delivery_info"}
    for values in (taken.headers, properties):
        found.update(json.dumps(wire.to_json_value(values), sort_keys=True).encode())
    return found.hexdigest()[:40]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0


def _seconds(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    except OverflowError:
        return None  # JSON has whole numbers of any length


def _uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None
