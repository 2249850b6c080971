"""How many dead letters there are by queue or by task, now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from django.db.models import Count, Value

from jobs.core.words import LetterState
from jobs.models import DeadLetter

# SQLite joins at most 500 SELECTs with UNION ALL.
_MOST_SELECTS = 400


def dead_by(column: Literal["queue", "task", "worker"], names: Sequence[str]) -> dict[str, int]:
    """Count the dead letters of each of ``names``: one index range each, in one query for 400 of them."""
    dead = DeadLetter.objects.filter(state=LetterState.DEAD).order_by()
    found: dict[str, int] = {}
    for start in range(0, len(names), _MOST_SELECTS):
        counted = [
            dead.filter(**{column: name})
            .values(name=Value(name))
            .annotate(number=Count("pk"))
            .values_list("name", "number")
            for name in names[start : start + _MOST_SELECTS]
        ]
        found |= dict(counted[0].union(*counted[1:], all=True))
    return found
