"""Dead letters as JSON lines: what ``dead_letters export`` and the page write and ``dead_letters import`` reads.

A line holds what ``--json`` prints of a letter, its older deaths, and under ``record`` the wire
record of its newest death with the whole message, byte for byte. Without the permission to see
masked values there is no ``record``: the line is for reading and says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from django.db.models import Prefetch, QuerySet

from jobs import conf, idempotency, search
from jobs.agent import wire
from jobs.core import arguments
from jobs.core.masking import DEFAULT_KEYS, MASKED, mask, mask_arguments
from jobs.idempotency import LedgerLine
from jobs.models import DeadLetter, Death
from jobs.operations import Selection
from jobs.workers import known_parameters

FORMAT = 1
# A body may have megabytes; so many are held in memory at once.
BATCH = 200
MASKED_TEXT = "masked"
NOT_IMPORTABLE = "Masked values are left out, so this line cannot be imported."


def selected(selection: Selection) -> QuerySet[DeadLetter]:
    """Return the letters of a selection in whatever state they are: an export changes none of them."""
    if selection.is_by_hand:
        return DeadLetter.objects.filter(uuid__in=selection.ids)
    return search.letters(selection.parsed).filter(pk__lte=selection.cutoff_id)


def lines(letters: QuerySet[DeadLetter], *, is_masked: bool) -> Iterator[bytes]:
    """Yield one line a letter, oldest id first, in constant memory; one query more each BATCH letters."""
    newest_first = Death.objects.order_by("-died_at", "-id")
    found = (
        letters.select_related("group", "message")
        .prefetch_related(Prefetch("death_set", queryset=newest_first))
        .order_by("pk")
    )
    keys = (*DEFAULT_KEYS, *conf.current().masked_keys)
    known = known_parameters()
    for letter, ledger in with_ledger(found.iterator(chunk_size=BATCH)):
        deaths = list(letter.death_set.all())
        line = as_line(letter, deaths, masked_keys=keys, known=known, ledger=ledger, is_masked=is_masked)
        # ASCII escapes keep lone surrogates and NUL.
        yield json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def with_ledger(letters: Iterable[DeadLetter]) -> Iterator[tuple[DeadLetter, LedgerLine | None]]:
    """Yield each letter with what the ledger knows of its key; one query for each BATCH letters with keys."""
    left = iter(letters)
    while batch := list(islice(left, BATCH)):
        states = idempotency.states((letter.task, letter.idempotency_key) for letter in batch)
        for letter in batch:
            yield letter, states.get((letter.task, letter.idempotency_key))


def summary(
    letter: DeadLetter,
    *,
    masked_keys: Iterable[str],
    known: Mapping[str, list[str]],
    ledger: LedgerLine | None,
) -> dict[str, Any]:
    """Return what ``--json`` prints of a letter, its arguments masked.

    ``known`` are the parameters of tasks, for positional arguments; see ``workers.known_parameters``.
    It reads ``letter.message``: select it along with the letters of a list.
    """
    message = letter.message
    content = arguments.read(
        bytes(message.body), letter.content_type, letter.content_encoding, message.headers or {}
    )
    keys = tuple(masked_keys)
    args = mask_arguments(content.args, letter.parameters, known.get(letter.task), keys=keys)
    return {
        "id": str(letter.uuid),
        "task_id": letter.task_id,
        "task": letter.task,
        "queue": letter.queue,
        "reason": letter.reason,
        "state": letter.state,
        "error_type": letter.error_type,
        "error": letter.error,
        "deaths": letter.deaths,
        "replays": letter.replays,
        "died_at": _iso(letter.died_at),
        "group": letter.group_id,
        "args": None if content.error else _plain(args),
        "kwargs": None if content.error else _plain(mask(content.kwargs, keys)),
        "replayable": not letter.unreplayable,
        "idempotency_key": letter.idempotency_key,
        "ledger": None if ledger is None else _ledger(ledger),
    }


def as_line(
    letter: DeadLetter,
    deaths: list[Death],
    *,
    masked_keys: Iterable[str],
    known: Mapping[str, list[str]],
    ledger: LedgerLine | None,
    is_masked: bool,
) -> dict[str, Any]:
    """Return a letter as one line; ``deaths`` newest first."""
    line = {"format": FORMAT, **summary(letter, masked_keys=masked_keys, known=known, ledger=ledger)}
    line["history"] = [_past_death(death) for death in deaths[1:]]
    if is_masked:
        return line | {"importable": False, "why_not": NOT_IMPORTABLE}
    record = to_record(letter, deaths[0] if deaths else None)
    return line | {"importable": True, "record": json.loads(wire.encode(record))}


def to_record(letter: DeadLetter, death: Death | None) -> wire.Record:
    """Return the newest death as its agent reported it, with the message as it was on the broker."""
    headers = wire.from_json_value(letter.message.headers or {})
    properties = wire.from_json_value(letter.message.properties or {})
    return wire.Record(
        kind="death",
        reason=letter.reason,
        publication_id=death.publication_id if death else str(letter.uuid),
        attempt=death.attempt if death else 0,
        at=letter.died_at.timestamp(),
        task=letter.task,
        task_id=letter.task_id,
        worker=letter.worker,
        boot_id=death.boot_id if death else "",
        root_id=letter.root_id,
        parent_id=letter.parent_id,
        published_at=letter.published_at.timestamp() if letter.published_at else None,
        started_at=death.started_at.timestamp() if death and death.started_at else None,
        message=wire.WireMessage(
            body=bytes(letter.message.body),
            content_type=letter.content_type or None,
            content_encoding=letter.content_encoding or None,
            headers=headers,
            properties=properties,
            exchange=letter.exchange,
            routing_key=letter.routing_key,
            queue=letter.queue,
        ),
        error=wire.WireError(
            type=letter.error_type, message=letter.error, traceback=death.traceback if death else ""
        ),
        parameters=letter.parameters,
        details=death.details if death else {},
    )


def _ledger(line: LedgerLine) -> dict[str, Any]:
    """Write what the ledger knows; a replay of a letter whose key is done returns the stored result."""
    return {
        "state": line.state.value,
        "task_id": line.task_id,
        "completed_at": None if line.completed_at is None else _iso(line.completed_at),
    }


def _past_death(death: Death) -> dict[str, Any]:
    return {
        "reason": death.reason,
        "error_type": death.error_type,
        "error": death.error,
        "worker": death.worker,
        "task_id": death.task_id,
        "attempt": death.attempt,
        "died_at": _iso(death.died_at),
    }


def _iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """Write masks as the text "masked"."""
    if value is MASKED:
        return MASKED_TEXT
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
