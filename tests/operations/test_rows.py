"""The statements of a batch: which way the database goes to its rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from jobs.operations import rows
from tests.factories import NOW, make_letter, make_operation

LATER = NOW + timedelta(minutes=5)

pytestmark = pytest.mark.django_db


class Plans:
    """Notes how SQLite would carry out each UPDATE that is run."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.split()[0] == "UPDATE":
            found = context["connection"].create_cursor().execute(f"EXPLAIN QUERY PLAN {sql}", params)
            self.steps += [step for *_, step in found if "jobs_deadletter" in step]
        return execute(sql, params, many, context)


def claim(ids: list[int], _operation: int) -> int:
    return len(rows.claim_letters(letter_ids=ids, frozen_at=NOW, now=LATER))


def unclaim(ids: list[int], _operation: int) -> int:
    return rows.unclaim_letters(letter_ids=ids, now=LATER)


def purge(ids: list[int], operation: int) -> int:
    return rows.purge_letters(
        operation_id=operation, letter_ids=ids, frozen_at=NOW, delete_after=LATER, now=LATER
    )


def restore(ids: list[int], operation: int) -> int:
    return rows.restore_letters(letter_ids=ids, purged_by=operation, now=LATER)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        (claim, {}),
        (unclaim, {"state": "replaying", "replays": 1}),
        (purge, {}),
        (restore, {"state": "purged"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_letters_are_found_by_their_ids_and_not_among_all_of_their_state(
    change: Callable[[list[int], int], int], fields: dict[str, Any]
) -> None:
    """SQLite went through all dead letters for each batch: a claim among 1,000,000 took seconds."""
    operation = make_operation()
    if change is restore:
        fields = {**fields, "purged_by": operation}
    ids = [make_letter(death=False, **fields).pk for _ in range(3)]
    plans = Plans()

    with connection.execute_wrapper(plans):
        assert change(ids[:2], operation.pk) == 2

    assert plans.steps == ["SEARCH jobs_deadletter USING INTEGER PRIMARY KEY (rowid=?)"]
