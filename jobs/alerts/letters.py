"""What rules measure of dead letters: how fast they grow, and which groups fail."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Count, Max, Min, QuerySet, Value

from jobs.core.words import GroupState, LetterState
from jobs.models import DeadLetter, FailureGroup
from jobs.search.timeline import counted_by_bucket

# Whatever became of them since: a replay that works does not hide that jobs die. Purged ones are left out,
# since what an operator takes off a queue is kept as such a letter and did not die.
DIED = (LetterState.DEAD.value, LetterState.REPLAYING.value, LetterState.RESOLVED.value)
# A group whose last death is older has stopped failing, as far as one can see.
STILL_FAILING = timedelta(minutes=15)
FAILING_STATES = (GroupState.NEW.value, GroupState.REGRESSED.value)
# Groups that are looked at, those of which most died: SQLite takes 32,766 values in one statement.
MOST_GROUPS = 20_000
# Into so many parts a window is divided, to see where a growth began.
BUCKETS = 20


@dataclass(frozen=True, slots=True)
class Growth:
    """Deaths a minute: ``average`` over the window, ``current`` since ``since``, where the growth began within it."""

    average: float
    current: float
    since: datetime


@dataclass(frozen=True, slots=True)
class FailingGroup:
    """A new or regressed group, what of it died in the window, and when its first job died since it is."""

    group_id: int
    name: str
    died: int
    since: datetime


def died(*, since: datetime, until: datetime, task: str = "", queue: str = "") -> QuerySet[DeadLetter]:
    """Return the letters whose newest death lies in [since, until), of a task, a queue, both or all."""
    found = DeadLetter.objects.filter(state__in=DIED, died_at__gte=since, died_at__lt=until).order_by()
    if task:
        found = found.filter(task=task)
    return found.filter(queue=queue) if queue else found


def growth(*, window: timedelta, limit: float, task: str = "", queue: str = "", now: datetime) -> Growth:
    """Measure how many jobs died a minute over the window, and since when more than ``limit``.

    One query, and a second one where it is more.
    """
    # What died this instant counts too.
    end = now + timedelta(microseconds=1)
    step = window / BUCKETS
    bounds = [now - window + step * number for number in range(BUCKETS)] + [end]
    counts = [0] * BUCKETS
    counted = died(since=now - window, until=end, task=task, queue=queue)
    rows = counted.values(one=Value(1)).annotate(number=Count("pk")).values_list("number")
    for bucket, number in counted_by_bucket(rows, bounds):
        counts[bucket] = number
    begin = onset(counts, expected=limit * step.total_seconds() / 60)
    since, average = bounds[begin], sum(counts) / (window.total_seconds() / 60)
    if average > limit:
        since = counted.filter(died_at__gte=since).aggregate(first=Min("died_at"))["first"] or since
    return Growth(
        average=average,
        # Not less than what is judged: of a burst within another the last seconds may be the quieter part.
        current=max(average, _per_minute(sum(counts[begin:]), now - since)),
        since=since,
    )


def onset(counts: list[int], *, expected: float) -> int:
    """Return where a rise began: the part from which on the counts exceed what is expected the most.

    Source: Page, "Continuous Inspection Schemes" (1954): the start of the largest cumulative sum.
    """
    best, best_at, total = float("-inf"), 0, 0.0
    for number in range(len(counts) - 1, -1, -1):
        total += counts[number] - expected
        if total > best:
            best, best_at = total, number
    return best_at


def _per_minute(count: int, span: timedelta) -> float:
    """A burst that is seconds old is counted as if it had taken a minute."""
    return count / max(1.0, span.total_seconds() / 60)


def failing_groups(
    *, window: timedelta, task: str = "", queue: str = "", now: datetime
) -> list[FailingGroup]:
    """Return the new and regressed groups of which jobs died lately, with how many in the window. Two queries.

    Letters are counted without their groups' rows: the index of the list answers that alone. Of more than
    MOST_GROUPS those are left out of which the fewest died.
    """
    found = died(since=now - window, until=now + timedelta(microseconds=1), task=task, queue=queue)
    by_group = found.values_list("group_id").annotate(
        number=Count("pk"), first=Min("died_at"), last=Max("died_at")
    )
    counted = {
        group_id: (number, first)
        for group_id, number, first, last in by_group.order_by("-number", "group_id")[:MOST_GROUPS]
        if now - last <= STILL_FAILING
    }
    named = FailureGroup.objects.filter(pk__in=counted, state__in=FAILING_STATES).order_by("pk")
    return [
        FailingGroup(
            group_id=pk,
            name=group_name(error_type, title, of_task),
            died=counted[pk][0],
            since=counted[pk][1],
        )
        for pk, error_type, title, of_task in named.values_list("pk", "error_type", "title", "task")
    ]


def group_name(error_type: str, title: str, task: str) -> str:
    """Call a group by its error's last name and its task: "HTTPError in shop.tasks.charge_card"."""
    error = error_type.rpartition(".")[2] or title or "a failure"
    return f"{error} in {task}" if task else error


def newest_death(found: QuerySet[DeadLetter]) -> datetime | None:
    """Return when the last of the letters died."""
    newest: datetime | None = found.aggregate(newest=Max("died_at"))["newest"]
    return newest


def whole_minute(moment: datetime) -> datetime:
    """Return the beginning of a moment's minute, UTC: what is said as 02:41 is meant so."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def end_after(found: QuerySet[DeadLetter], *, now: datetime) -> datetime:
    """Return the end of a span that holds all these letters and none that dies later: a whole second if it can."""
    newest = newest_death(found)
    if newest is None:
        return now
    second = newest.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
    return second if second <= now else newest.astimezone(UTC) + timedelta(microseconds=1)


def names_of(group_ids: Iterable[int]) -> str:
    """Return the search term of groups: "group:17,18"."""
    return f"group:{','.join(str(each) for each in sorted(group_ids))}"
