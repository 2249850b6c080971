"""The statements that move many rows at once: one each for a whole batch, no model instances.

Lists of ids and values travel as one parameter (a JSON array on SQLite, an array on PostgreSQL), so
a batch's statement has one text whatever its size. All of them are conditional: a row that somebody
else has changed stays as it is, and the caller counts what it got.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from jobs.core.words import ItemState, LetterState
from jobs.models import DeadLetter, LetterMessage, Operation, OperationItem

LETTERS = DeadLetter._meta.db_table
MESSAGES = LetterMessage._meta.db_table
ITEMS = OperationItem._meta.db_table
OPERATIONS = Operation._meta.db_table

# An item without its letter's columns, and what is needed to send it.
ItemRow = tuple[int, int]
MessageRow = tuple[Any, ...]


def write_items(*, operation_id: int, letter_ids: Sequence[int], frozen_at: datetime) -> int:
    """Write an item for each letter: pending, refused when it cannot be replayed, else skipped.

    A letter that has an item in this operation already keeps it. Returns the number written.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO {ITEMS} (operation_id, letter_id, state, stage, batch, task_id, publication_id, detail)
            SELECT %s, id,
                CASE WHEN state <> %s OR state_changed_at > %s THEN %s
                     WHEN unreplayable <> '' THEN %s ELSE %s END,
                0, 0, '', '',
                CASE WHEN state = %s AND state_changed_at <= %s THEN unreplayable ELSE '' END
            FROM {LETTERS} WHERE {_among("id")}
            ORDER BY id
            ON CONFLICT (operation_id, letter_id) DO NOTHING
            """,  # noqa: S608 - the names of our own tables
            [
                operation_id,
                *(LetterState.DEAD.value, _moment(frozen_at), ItemState.SKIPPED.value),
                *(ItemState.REFUSED.value, ItemState.PENDING.value),
                *(LetterState.DEAD.value, _moment(frozen_at)),
                _ids(letter_ids),
            ],
        )
        return int(cursor.rowcount)


def has_changed_dead(*, since: datetime, highest_id: int) -> bool:
    """Say whether any dead letter up to an id has changed its state since."""
    # Without statistics SQLite would rather go through all dead letters.
    hint = "INDEXED BY dead_letter_changed" if connection.vendor == "sqlite" else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT 1 FROM {LETTERS} {hint}
            WHERE state = 'dead' AND state_changed_at > %s AND id <= %s LIMIT 1
            """,  # noqa: S608 - the names of our own tables
            [_moment(since), highest_id],
        )
        return cursor.fetchone() is not None


def next_items(*, operation_id: int, after: int, limit: int) -> list[tuple[int, int, int]]:
    """Return (item id, letter id, bytes of its message) of the next pending items above the id ``after``."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT i.id, i.letter_id, COALESCE(LENGTH(m.body) + LENGTH(m.headers), 0)
            FROM {ITEMS} i LEFT JOIN {MESSAGES} m ON m.letter_id = i.letter_id
            WHERE i.operation_id = %s AND i.state = %s AND i.id > %s
            ORDER BY i.id LIMIT %s
            """,  # noqa: S608 - the names of our own tables
            [operation_id, ItemState.PENDING.value, after, limit],
        )
        return [(item, letter, size) for item, letter, size in cursor.fetchall()]


def read_messages(*, letter_ids: Sequence[int]) -> dict[int, MessageRow]:
    """Return the stored messages by letter id; headers and properties as their JSON text."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT l.id, l.uuid, m.body, l.content_type, l.content_encoding, m.headers, m.properties,
                l.queue, l.routing_key, l.exchange, l.priority, l.reason, l.task_id, l.replays
            FROM {LETTERS} l JOIN {MESSAGES} m ON m.letter_id = l.id WHERE {_among("l.id")}
            """,  # noqa: S608 - the names of our own tables
            [_ids(letter_ids)],
        )
        return {row[0]: row for row in cursor.fetchall()}


def claim_letters(*, letter_ids: Sequence[int], frozen_at: datetime, now: datetime) -> set[int]:
    """Move letters dead → replaying that nobody has touched since the freeze; return their ids.

    This is what makes a letter go out once, however many operations want it. Call it in a transaction.
    """
    # Without RETURNING: sqlite3 lets go of the interpreter for every row it hands over, and a thread that
    # computes then takes it for its whole turn. Nearly always all are claimed, and their number says so.
    with transaction.atomic():
        if _claim(letter_ids, frozen_at, now) == len(letter_ids):
            return set(letter_ids)
        transaction.set_rollback(True)
    lock = "FOR UPDATE" if connection.features.has_select_for_update else ""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            SELECT id FROM {_by_id(LETTERS)} WHERE {_among("id")} AND state = %s AND state_changed_at <= %s
            ORDER BY id {lock}
            """,  # noqa: S608 - the names of our own tables
            [_ids(letter_ids), LetterState.DEAD.value, _moment(frozen_at)],
        )
        free = [row[0] for row in cursor.fetchall()]
    _claim(free, frozen_at, now)
    return set(free)


def _claim(letter_ids: Sequence[int], frozen_at: datetime, now: datetime) -> int:
    return _execute(
        f"""
        UPDATE {_by_id(LETTERS)} SET state = %s, state_changed_at = %s, replays = replays + 1
        WHERE {_among("id")} AND state = %s AND state_changed_at <= %s
        """,  # noqa: S608 - the names of our own tables
        [
            *(LetterState.REPLAYING.value, _moment(now), _ids(letter_ids)),
            *(LetterState.DEAD.value, _moment(frozen_at)),
        ],
    )


def mark_sent(*, items: Sequence[tuple[int, str, str]], batch: int, stage: int, now: datetime) -> int:
    """Move items pending → sent, with the task and publication id that each is sent with."""
    if connection.vendor == "postgresql":
        source = "unnest(%s::bigint[], %s::text[], %s::text[]) AS v(id, task_id, publication_id)"
        values: list[Any] = [list(column) for column in zip(*items, strict=True)] or [[], [], []]
        columns = ("v.task_id", "v.publication_id", "v.id")
    else:
        source = "json_each(%s) AS v"
        values = [json.dumps(items)]
        columns = (
            "json_extract(v.value, '$[1]')",
            "json_extract(v.value, '$[2]')",
            "json_extract(v.value, '$[0]')",
        )
    return _execute(
        f"""
        UPDATE {ITEMS} SET state = %s, sent_at = %s, batch = %s, stage = %s,
            task_id = {columns[0]}, publication_id = {columns[1]}
        FROM {source} WHERE {ITEMS}.id = {columns[2]} AND {ITEMS}.state = %s
        """,  # noqa: S608 - the names of our own tables
        [ItemState.SENT.value, _moment(now), batch, stage, *values, ItemState.PENDING.value],
    )


def end_items(*, state: ItemState, details: Sequence[tuple[int, str]], now: datetime) -> None:
    """Move items pending or sent → skipped or refused, each with its reason."""
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {ITEMS} SET state = %s, detail = %s, ended_at = %s WHERE id = %s AND state IN (%s, %s)",  # noqa: S608
            [
                (
                    state.value,
                    detail[:255],
                    _moment(now),
                    pk,
                    ItemState.PENDING.value,
                    ItemState.SENT.value,
                )
                for pk, detail in details
            ],
        )


def unclaim_letters(*, letter_ids: Sequence[int], now: datetime) -> int:
    """Move letters replaying → dead that the broker would not take."""
    return _execute(
        f"""
        UPDATE {_by_id(LETTERS)} SET state = %s, state_changed_at = %s, replays = replays - 1
        WHERE {_among("id")} AND state = %s AND replays > 0
        """,  # noqa: S608 - the names of our own tables
        [LetterState.DEAD.value, _moment(now), _ids(letter_ids), LetterState.REPLAYING.value],
    )


def purge_letters(
    *,
    operation_id: int,
    letter_ids: Sequence[int],
    frozen_at: datetime,
    delete_after: datetime,
    now: datetime,
) -> int:
    """Move letters dead → purged that nobody has touched since the freeze."""
    return _execute(
        f"""
        UPDATE {_by_id(LETTERS)} SET state = %s, state_changed_at = %s, purged_by_id = %s, delete_after = %s
        WHERE {_among("id")} AND state = %s AND state_changed_at <= %s
        """,  # noqa: S608 - the names of our own tables
        [
            *(LetterState.PURGED.value, _moment(now), operation_id, _moment(delete_after)),
            *(_ids(letter_ids), LetterState.DEAD.value, _moment(frozen_at)),
        ],
    )


def restore_letters(*, letter_ids: Sequence[int], purged_by: int | None, now: datetime) -> int:
    """Move letters purged → dead; only those that ``purged_by`` hid, when it is given."""
    return _execute(
        f"""
        UPDATE {_by_id(LETTERS)} SET state = %s, state_changed_at = %s, purged_by_id = NULL, delete_after = NULL
        WHERE {_among("id")} AND state = %s {"" if purged_by is None else "AND purged_by_id = %s"}
        """,  # noqa: S608 - the names of our own tables
        [
            *(LetterState.DEAD.value, _moment(now), _ids(letter_ids), LetterState.PURGED.value),
            *([] if purged_by is None else [purged_by]),
        ],
    )


def _execute(sql: str, params: list[Any]) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return int(cursor.rowcount)


def _by_id(table: str) -> str:
    """Name a table whose rows are looked up by their ids.

    Left alone, SQLite would rather go through all letters of the state, for each batch anew: half of a
    claim's time among 100,000 letters, and more among more.
    """
    return f"{table} NOT INDEXED" if connection.vendor == "sqlite" else table


def _among(column: str) -> str:
    if connection.vendor == "postgresql":
        return f"{column} = ANY(%s)"
    return f"{column} IN (SELECT value FROM json_each(%s))"  # noqa: S608 - the name of our own column


def _ids(ids: Sequence[int]) -> Any:
    return list(ids) if connection.vendor == "postgresql" else json.dumps(list(ids))


def _moment(moment: datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)
