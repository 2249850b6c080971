"""Rows → the database, many at once and without a model instance each.

``bulk_create`` resolves every field of every row in Python and, on SQLite, sends at most 999 values
a statement: 240 µs a letter with its death, where these statements take 40.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

from django.db import connection, models

from jobs.fields import JSONTextField

# SQLite takes 32,766 values a statement.
UPDATE_ROWS = 1_000

Row = Mapping[str, Any]
Convert = Callable[[Any], Any]


def insert(model: type[models.Model], rows: Sequence[Row]) -> None:
    """Insert rows that all have the same columns, by attribute name; the others must be nullable."""
    if not rows:
        return
    fields = _fields(model, rows[0])
    insert_prepared(model, [field.column for field in fields], _prepared(fields, rows))


def insert_prepared(
    model: type[models.Model], columns: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> None:
    """Insert rows whose values are as the database's driver takes them, in the order of the columns."""
    names = ", ".join(connection.ops.quote_name(column) for column in columns)
    table = connection.ops.quote_name(model._meta.db_table)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Django translates what the call raises, not what the block does: a full disk would look like
            # a refused record.
            copying = f"COPY {table} ({names}) FROM STDIN"
            with connection.wrap_database_errors, cursor.copy(copying) as copy:
                for row in rows:
                    copy.write_row(row)
        else:
            marks = ", ".join(["%s"] * len(columns))
            cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(rows))  # noqa: S608 - our names


def update(model: type[models.Model], rows: Sequence[Row]) -> None:
    """Give the rows their new values, UPDATE_ROWS in a statement; each has ``id`` first and the same columns.

    Django's ``bulk_update`` writes a CASE over all rows for every column.
    """
    if not rows:
        return
    fields = _fields(model, rows[0])
    table = connection.ops.quote_name(model._meta.db_table)
    names = [connection.ops.quote_name(field.column) for field in fields]
    # PostgreSQL takes a column of VALUES that is NULL throughout for text.
    values = (
        [f"CAST(v.{name} AS {field.rel_db_type(connection) if field.primary_key else field.db_type(connection)})"
         for name, field in zip(names, fields, strict=True)]
        if connection.vendor == "postgresql"
        else [f"v.{name}" for name in names]
    )  # fmt: skip
    sets = ", ".join(f"{name} = {value}" for name, value in list(zip(names, values, strict=True))[1:])
    with connection.cursor() as cursor:
        for start in range(0, len(rows), UPDATE_ROWS):
            chunk = _prepared(fields, rows[start : start + UPDATE_ROWS])
            marks = ", ".join([f"({', '.join(['%s'] * len(fields))})"] * len(chunk))
            cursor.execute(
                f"WITH v ({', '.join(names)}) AS (VALUES {marks}) "  # noqa: S608 - our names
                f"UPDATE {table} SET {sets} FROM v WHERE {table}.{names[0]} = {values[0]}",
                [value for row in chunk for value in row],
            )


def ids_of(model: type[models.Model], uuids: Sequence[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Return the primary keys of rows that were just inserted."""
    return dict(model._default_manager.filter(uuid__in=uuids).order_by().values_list("uuid", "pk"))


def _fields(model: type[models.Model], row: Row) -> list[Any]:
    by_name: dict[str, Any] = {field.attname: field for field in model._meta.concrete_fields}
    return [by_name[name] for name in row]


def _prepared(fields: Sequence[Any], rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Return the rows as the database's driver takes them, in the order of the fields."""
    converters = [(field.attname, found) for field in fields if (found := _converter(field))]
    values = itemgetter(*(field.attname for field in fields))
    prepared = []
    for row in rows:
        changed = dict(row)
        for name, convert in converters:
            if changed[name] is not None:
                changed[name] = convert(changed[name])
        prepared.append(values(changed))
    return prepared


def _converter(field: Any) -> Convert | None:
    """Return what turns a Python value into what the database's driver takes; None when nothing does."""
    if isinstance(field, JSONTextField):
        return field.get_prep_value
    if isinstance(field, models.JSONField):
        return _as_json
    if connection.vendor == "postgresql":
        return None
    if isinstance(field, models.DateTimeField):
        return _as_sqlite_moment
    return _as_hex if isinstance(field, models.UUIDField) else None


def _as_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _as_hex(value: uuid.UUID) -> str:
    return value.hex


def _as_sqlite_moment(value: datetime) -> str:
    if value.tzinfo is UTC:
        return str(value.replace(tzinfo=None))
    return str(connection.ops.adapt_datetimefield_value(value))
