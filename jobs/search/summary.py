"""A search in a few figures: from when to when its letters died, and for which reasons."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Count, Q

from jobs.core.query import Query
from jobs.core.words import LetterState, Reason
from jobs.search.conditions import letters, matching
from jobs.search.timeline import Timeline


def extent(query: Query) -> tuple[datetime, datetime] | None:
    """Return when the first and the last of the letters that match died; None when none does.

    Two index seeks a state: one ordered read over several states would sort all of their letters.
    """
    found: list[datetime] = []
    for state in sorted(query.states):
        dates = matching(query, states=(state,)).order_by("died_at").values_list("died_at", flat=True)
        found += dates[:1]
        found += dates.reverse()[:1]
    return (min(found), max(found)) if found else None


def reason_counts(query: Query, *, timeline: Timeline) -> dict[Reason, int]:
    """Count the letters that match by reason, from a timeline of the same search.

    Whole buckets are summed; the two that the search's times cut through are counted, one query each.
    """
    width = timedelta(seconds=timeline.width_seconds)
    sums = dict.fromkeys(Reason, 0)
    for number in range(len(timeline.gone)):
        begin = timeline.start + width * number
        end = begin + width
        low = begin if query.since is None else max(begin, query.since)
        high = end if query.until is None else min(end, query.until)
        if low >= high:
            continue
        if (low, high) == (begin, end):
            for reason, series in timeline.reasons.items():
                sums[reason] += series[number]
        else:
            for reason, number_found in _between(query, low, high).items():
                sums[reason] += number_found
    return {reason: number for reason, number in sums.items() if number}


def _between(query: Query, low: datetime, high: datetime) -> dict[Reason, int]:
    found = matching(query, states=query.states, with_time=False).filter(died_at__gte=low, died_at__lt=high)
    counts = found.order_by().aggregate(
        **{reason.value: Count("pk", filter=Q(reason=reason.value)) for reason in Reason}
    )
    return {reason: counts[reason.value] for reason in Reason}


def newer_count(query: Query, *, after_id: int) -> int:
    """Count the dead letters that match and were written after one with this id."""
    return letters(query).filter(pk__gt=after_id, state=LetterState.DEAD).count()


def newest_id(query: Query) -> int:
    """Return the highest id of the letters that there are now, matching or not: what comes later is above it."""
    newest = letters(query).model.objects.order_by("-pk").values_list("pk", flat=True).first()
    return newest or 0
