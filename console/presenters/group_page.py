"""Reads what the page of one group shows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count

from jobs import search
from jobs.core import query
from jobs.core.words import GroupState, LetterState
from jobs.models import AuditEntry, DeadLetter, FailureGroup

RECENT_HOURS = 24
SPARK_BUCKETS = 24
ENTRIES_SHOWN = 30
# Those that still fail and nobody has looked at.
FAILING = frozenset({GroupState.NEW, GroupState.REGRESSED})


@dataclass(frozen=True, slots=True)
class GroupPanel:
    """A group's letters by state and its deaths over time."""

    letters: int
    dead: int
    buckets: list[int]
    since: datetime
    until: datetime
    is_failing: bool


@dataclass(frozen=True, slots=True)
class GroupPage:
    """The panel, the newest letter, and what was done with the group."""

    panel: GroupPanel
    newest: DeadLetter | None
    entries: list[AuditEntry]


def read(group: FailureGroup, *, now: datetime) -> GroupPage:
    """Read the page, in a fixed number of queries."""
    entries = AuditEntry.objects.filter(group=group).select_related("user", "letter", "operation")
    return GroupPage(
        panel=panel(group, now=now), newest=_newest(group), entries=list(entries[:ENTRIES_SHOWN])
    )


def _newest(group: FailureGroup) -> DeadLetter | None:
    """Return the letter that died last: one index seek a state, because the index has the state first."""
    found = []
    for state in LetterState:
        rows = DeadLetter.objects.filter(group=group, state=state).only("uuid", "died_at")
        found += list(rows.order_by("-died_at")[:1])
    return max(found, key=lambda letter: letter.died_at, default=None)


def panel(group: FailureGroup, *, now: datetime) -> GroupPanel:
    """Count a group's letters, and its deaths over the last day, or over its life when it was quiet."""
    text = f"group:{group.pk} state:any"
    if group.last_seen_at > now - timedelta(hours=RECENT_HOURS):
        text += f" since:{RECENT_HOURS}h"
    searched = query.parse(text, now=now)
    rows = search.groups(searched, spark_buckets=SPARK_BUCKETS)
    since, until = search.period(searched, now=now)
    by_state = dict(
        DeadLetter.objects.filter(group=group).order_by().values_list("state").annotate(number=Count("pk"))
    )
    return GroupPanel(
        letters=sum(by_state.values()),
        dead=by_state.get(LetterState.DEAD, 0),
        buckets=rows[0].buckets if rows else [],
        since=since,
        until=until,
        is_failing=group.state in FAILING,
    )
