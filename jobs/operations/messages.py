"""The messages of a replay, made of the rows of their letters. Touches neither the database nor the network."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs.agent import wire
from jobs.broker.publish import JSONText, Outgoing
from jobs.core import job_ids, replay, replay_text
from jobs.models import Operation
from jobs.operations.rows import MessageRow

logger = logging.getLogger(__name__)

_NO_MESSAGE = "Its message is not there any more, so there is nothing to send."


@dataclass(slots=True)
class Prepared:
    """What may go out in a batch, as (item, letter, message, task id, publication id), and what cannot."""

    ready: list[tuple[int, int, Outgoing, str, str]]
    refused: list[tuple[int, int, str]]

    @property
    def messages(self) -> list[Outgoing]:
        """What goes out, in its order."""
        return [outgoing for _, _, outgoing, _, _ in self.ready]

    def stayed(self, refused: Mapping[int, str]) -> list[tuple[int, int, str]]:
        """Return (item, letter, why) of those that the broker refused, by their positions."""
        return [(*self.ready[position][:2], why) for position, why in refused.items()]


def prepare(operation: Operation, stored: Sequence[MessageRow], *, replays_made: bool = False) -> Prepared:
    """Build the messages. Ids follow from the operation's seed, so a batch sent twice has the same.

    ``replays_made`` says that the letters count this replay already.
    """
    seed = str(operation.selection.get("seed", "")).encode()
    published_at = datetime.now().timestamp()  # noqa: DTZ005 - seconds since the epoch have no zone
    is_plain = operation.edited_arguments is None and not operation.keeps_task_id
    target_queue = operation.target_queue
    # The text of each header that changes; those of the letter itself are set below.
    changed = {
        "retries": ', "retries": 0',
        "eta": ', "eta": null',
        "expires": ', "expires": null',
        wire.PUBLISHED_AT_HEADER: f', "{wire.PUBLISHED_AT_HEADER}": {published_at!r}',
    }
    prepared = Prepared([], [])
    for row in stored:
        item_id, letter_id = row[:2]
        if row[3] is None:
            prepared.refused.append((item_id, letter_id, _NO_MESSAGE))
            continue
        task_id, publication_id = job_ids.derive(seed, item_id)
        replays = row[-1] if replays_made else row[-1] + 1
        if is_plain:
            changed["id"] = f', "id": "{task_id}"'
            changed[wire.PUBLICATION_HEADER] = f', "{wire.PUBLICATION_HEADER}": "{publication_id}"'
            changed[wire.REPLAY_OF_HEADER] = f', "{wire.REPLAY_OF_HEADER}": "{_hyphenated(row[2])}"'
            changed[wire.REPLAY_ITEM_HEADER] = f', "{wire.REPLAY_ITEM_HEADER}": {item_id}'
            changed[wire.REPLAY_NUMBER_HEADER] = f', "{wire.REPLAY_NUMBER_HEADER}": {replays}'
            copied = _copied(row, changed, task_id, target_queue)
            if copied is not None:
                prepared.ready.append((item_id, letter_id, copied, task_id, publication_id))
                continue
        letter_uuid, message = _stored(row)
        stamp = {
            wire.PUBLICATION_HEADER: publication_id,
            wire.PUBLISHED_AT_HEADER: published_at,
            wire.REPLAY_OF_HEADER: letter_uuid,
            wire.REPLAY_ITEM_HEADER: item_id,
            wire.REPLAY_NUMBER_HEADER: replays,
        }
        try:
            result = replay.prepare(
                message,
                new_task_id=task_id,
                stamp=stamp,
                target_queue=target_queue,
                edited_arguments=operation.edited_arguments,
                keeps_task_id=operation.keeps_task_id,
            )
        except replay.ReplayRefused as refusal:
            prepared.refused.append((item_id, letter_id, str(refusal)))
            continue
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            # Anybody can have sent it: one that nobody foresaw must not hold up all the others.
            logger.exception("operation %s: letter %s cannot be made ready", operation.pk, letter_uuid)
            why = f"Its message cannot be made ready to send ({type(error).__name__}: {error})."
            prepared.refused.append((item_id, letter_id, why))
            continue
        # All but its last part, the task id.
        outgoing = Outgoing(*result[:-1])
        prepared.ready.append((item_id, letter_id, outgoing, result.task_id, publication_id))
    return prepared


def _copied(row: MessageRow, changed: Mapping[str, str], task_id: str, target_queue: str) -> Outgoing | None:
    """Return what ``replay.prepare`` would, written over the stored text; None when it takes more than that."""
    body, content_type, content_encoding, headers, properties, queue, routing_key, exchange, priority = row[
        3:12
    ]
    queue = target_queue or queue or ("" if exchange else routing_key)
    body = bytes(body)
    if not queue or not replay_text.are_plain(properties) or replay.may_have_chord(body, content_type):
        return None
    text = replay_text.headers(headers, changed)
    if text is None:
        return None
    return Outgoing(
        body,
        content_type or "application/data",
        content_encoding or "binary",
        JSONText(text),
        JSONText(f'{{"delivery_mode": 2, "correlation_id": "{task_id}"}}'),
        queue,
        priority,
    )


def _stored(row: MessageRow) -> tuple[str, replay.StoredMessage]:
    _, _, letter_uuid, body, content_type, content_encoding, headers, properties, queue, *rest = row
    routing_key, exchange, priority, reason, task_id, _ = rest
    if not queue and not exchange:
        # On the default exchange the routing key is the queue's name.
        queue = routing_key
    message = replay.StoredMessage(
        bytes(body),
        content_type,
        content_encoding,
        _header_values(headers),
        _header_values(properties),
        queue,
        priority,
        reason,
        task_id,
    )
    return _hyphenated(letter_uuid), message


# json.loads looks at its options for every text, and for spaces around it.
_decode = json.JSONDecoder().raw_decode


def _hyphenated(letter_uuid: object) -> str:
    """Write a letter's id as text; SQLite holds 32 digits, PostgreSQL gives a UUID."""
    digits = str(letter_uuid)
    if len(digits) != 32:
        return digits
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _header_values(text: str) -> dict[str, Any]:
    values: dict[str, Any] = _decode(text)[0]
    # Tagged values are rare, and looking for them in every header of 100,000 letters is not cheap.
    if '"__' in text:
        values = wire.from_json_value(values)
    return values
