"""A search that was read → rows, counts, groups and the timeline.

Every function is a fixed number of database queries, whatever it finds. A ``task:`` term and a
``queue:`` pattern look the names up first, one query more each, when the queryset is built.
"""

from jobs.search.conditions import letters, matching, names
from jobs.search.groups import (
    GROUP_ORDERS,
    SPARK_BUCKETS,
    Breakdown,
    GroupRow,
    Share,
    breakdown,
    group_states,
    groups,
)
from jobs.search.pages import (
    HEAVY_COLUMNS,
    ORDERS,
    CursorError,
    LetterPage,
    Neighbours,
    count,
    find,
    neighbours,
    page,
    siblings,
)
from jobs.search.shares import state_breakdown
from jobs.search.timeline import Timeline, period, timeline

__all__ = [
    "GROUP_ORDERS",
    "HEAVY_COLUMNS",
    "ORDERS",
    "SPARK_BUCKETS",
    "Breakdown",
    "CursorError",
    "GroupRow",
    "LetterPage",
    "Neighbours",
    "Share",
    "Timeline",
    "breakdown",
    "count",
    "find",
    "group_states",
    "groups",
    "letters",
    "matching",
    "names",
    "neighbours",
    "page",
    "period",
    "siblings",
    "state_breakdown",
    "timeline",
]
