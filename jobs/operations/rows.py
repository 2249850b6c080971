"""The statements that move many rows at once: one each for a whole batch, no model instances.

Lists of ids and values travel as one parameter (a JSON array on SQLite, an array on PostgreSQL), so
a batch's statement has one text whatever its size. All of them are conditional: a row that somebody
else has changed stays as it is, and the caller counts what it got.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db import connection, transaction

from jobs.core.words import ItemState, LetterState
from jobs.models import DeadLetter, LetterMessage, Operation, OperationItem

LETTERS = DeadLetter._meta.db_table
MESSAGES = LetterMessage._meta.db_table
ITEMS = OperationItem._meta.db_table
OPERATIONS = Operation._meta.db_table

# The columns of _MESSAGES: headers and properties are their JSON text.
MessageRow = tuple[Any, ...]
_MESSAGES = f"""
    SELECT i.id, i.letter_id, l.uuid, m.body, l.content_type, l.content_encoding, m.headers, m.properties,
        l.queue, l.routing_key, l.exchange, l.priority, l.reason, l.task_id, l.replays
    FROM {ITEMS} i JOIN {LETTERS} l ON l.id = i.letter_id LEFT JOIN {MESSAGES} m ON m.letter_id = i.letter_id
"""  # noqa: S608 - the names of our own tables


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


def pending_messages(*, operation_id: int, after: int, limit: int, limit_bytes: int) -> list[MessageRow]:
    """Return the messages of the next pending items above the id ``after``, in their order.

    At most ``limit``, of at most ``limit_bytes`` together, but one of whatever size.
    """
    found: list[MessageRow] = []
    size = 0
    with _streaming() as cursor:
        cursor.execute(
            f"{_MESSAGES} WHERE i.operation_id = %s AND i.state = %s AND i.id > %s ORDER BY i.id LIMIT %s",
            [operation_id, ItemState.PENDING.value, after, limit],
        )
        for row in cursor:
            # A letter without a message is one that the caller refuses.
            size += 0 if row[3] is None else len(row[3]) + len(row[6]) + len(row[7])
            if found and size > limit_bytes:
                break
            found.append(row)
    return found


def sent_messages(
    *, operation_id: int, batch: int, first_item_id: int, last_item_id: int
) -> list[MessageRow]:
    """Return the messages of a batch that still wait for an outcome."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            {_MESSAGES}
            WHERE i.operation_id = %s AND i.state = %s AND i.batch = %s AND i.id BETWEEN %s AND %s ORDER BY i.id
            """,
            [operation_id, ItemState.SENT.value, batch, first_item_id, last_item_id],
        )
        return list(cursor.fetchall())


@contextlib.contextmanager
def _streaming() -> Iterator[Any]:
    """Give a cursor whose rows are read as they are asked for: all at once may be more than the memory holds."""
    if connection.vendor == "postgresql":
        # Outside of a transaction the server would write the whole result down first.
        with transaction.atomic(), connection.chunked_cursor() as cursor:
            yield cursor
    else:
        with connection.cursor() as cursor:
            yield cursor


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
