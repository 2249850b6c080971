"""The night of the pictures, seeded once a process: each test gets a copy whose times are moved to its own now."""

from __future__ import annotations

import atexit
import functools
import shutil
import sqlite3
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from django.apps import apps
from django.contrib.contenttypes.models import ContentType
from django.db import connection, models, transaction

from tests import night


def fill_database() -> None:
    """Do what ``night.seed(now=…)`` does to an empty database, in a tenth of its time when it is done again."""
    if connection.vendor != "sqlite":
        night.seed(now=datetime.now(UTC))
        return
    path, kept_at = _kept()
    connection.ensure_connection()
    with sqlite3.connect(path) as kept:
        kept.backup(connection.connection)
    kept.close()
    ContentType.objects.clear_cache()
    _move_times(seconds=int((datetime.now(UTC) - kept_at).total_seconds()))


@functools.cache
def _kept() -> tuple[Path, datetime]:
    """Seed the test's database and copy it; return the copy and its now."""
    directory = Path(tempfile.mkdtemp(prefix="jobs-night-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path, now = directory / "night.sqlite3", datetime.now(UTC)
    night.seed(now=now)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM INTO %s", [str(path)])
    return path, now


def _move_times(*, seconds: int) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        for model in apps.get_models():
            columns = [
                connection.ops.quote_name(field.column)
                for field in model._meta.local_concrete_fields
                if isinstance(field, models.DateTimeField)
            ]
            # The fraction of the second is kept as it is: SQLite would round it to thousandths.
            moved = [
                f"{column} = strftime('%%Y-%%m-%%d %%H:%%M:%%S', substr({column}, 1, 19), %s) || substr({column}, 20)"
                for column in columns
            ]
            if columns:
                table = connection.ops.quote_name(model._meta.db_table)
                update = f"UPDATE {table} SET {', '.join(moved)}"  # noqa: S608 - names of our own columns
                cursor.execute(update, [f"+{seconds} seconds"] * len(columns))
