"""What an operation would do, told before anything is sent or purged."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import Count, Min, OuterRef, QuerySet, Subquery

from jobs import search
from jobs.core import replay
from jobs.core.query import parse, quote
from jobs.core.spans import span
from jobs.core.words import PRESUMED_LOST, LetterState, OperationKind, Reason
from jobs.idempotency.reading import count_done
from jobs.models import DeadLetter, FailureGroup, Worker
from jobs.operations.selection import Selection
from jobs.operations.starting import ONLINE_SECONDS

SAMPLES = 5
# A death within so long means that the failures have not stopped.
QUIET_SECONDS = 120
# What only a letter's own row tells is looked up in at most so many; a page must not wait for more.
MAX_LOOKED_AT = 10_000
# Bodies are opened to look for chords in at most so many letters.
MAX_OPENED = 2_000
# A link that names more letters one by one is no longer a search.
MAX_LINKED_IDS = 20
MAX_NAMED = 3
# Groups whose newest deaths are looked at.
MAX_GROUPS = 100
# The job may have done its work before it ended in one of these ways.
RISKY_REASONS = (Reason.RESULT_NOT_STORED, Reason.TIMED_OUT, Reason.WORKER_LOST)
# It ran until it raised; what it did until then is done.
FAILED_REASONS = (Reason.FAILED, Reason.RETRIES_EXHAUSTED, Reason.REJECTED, Reason.RETRY_NOT_SENT)


class Level(StrEnum):
    """How a check looks: good, worth knowing, a risk, a refusal."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Check:
    """One fact to decide by. ``query`` is a search to follow, ``query_label`` the words of its link."""

    level: Level
    headline: str
    text: str
    query: str = ""
    query_label: str = ""


@dataclass(frozen=True, slots=True)
class Preview:
    """``selected`` = ``to_send`` + ``refused`` + ``skipped`` (those that are no longer what is acted on)."""

    words: str
    selected: int
    refused: int
    skipped: int
    to_send: int
    oldest: datetime | None
    newest: datetime | None
    by_task: list[search.Share]
    by_queue: list[search.Share]
    by_reason: list[search.Share]
    samples: list[DeadLetter] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    # How many the idempotency ledger has as done: of the newest MAX_LOOKED_AT, when there are more.
    already_done: int = 0


def preview(selection: Selection, *, kind: OperationKind, now: datetime) -> Preview:
    """Count and check a selection; nothing is changed. A fixed number of queries.

    Raises:
        OperationRefused: when an id is no letter's.
    """
    selection.check_ids()
    found = selection.found(kind).order_by()
    shares = selection.breakdown(kind)
    skipped = selection.left_out(kind).count() if selection.is_by_hand else 0
    refused = _unreplayable(found).count() if kind == OperationKind.REPLAY else 0
    checks: list[Check] = []
    already_done = 0
    if skipped:
        checks.append(_skipped(selection, kind, skipped))
    if kind == OperationKind.REPLAY and shares.total:
        already_done = count_done(found, limit=MAX_LOOKED_AT)
        checks += _replay_checks(selection, found, shares, refused, now, already_done)
    return Preview(
        words=selection.words,
        selected=shares.total + skipped,
        refused=refused,
        skipped=skipped,
        to_send=shares.total - refused,
        oldest=shares.oldest,
        newest=shares.newest,
        by_task=shares.by_task,
        by_queue=shares.by_queue,
        by_reason=shares.by_reason,
        samples=_samples(found, shares),
        checks=checks,
        already_done=already_done,
    )


def _near(found: QuerySet[DeadLetter], shares: search.Breakdown) -> tuple[QuerySet[DeadLetter], str]:
    """Return those that are looked at one by one, and which of all they are, in words."""
    if shares.total <= MAX_LOOKED_AT:
        return found, ""
    # The newest, because they are together in the index and mostly in the table.
    newest = found.order_by("-died_at", "-pk").values("pk")[:MAX_LOOKED_AT]
    return DeadLetter.objects.filter(pk__in=newest), f"of the newest {MAX_LOOKED_AT:,} "


def _samples(found: QuerySet[DeadLetter], shares: search.Breakdown) -> list[DeadLetter]:
    """Pick up to five: all of a few, else the next one that died at or after a random moment, five times."""
    if shares.oldest is None or shares.newest is None:
        return []
    ids: set[int] = set()
    ordered = found.order_by("died_at", "pk").values_list("pk", flat=True)
    if shares.total > SAMPLES:
        span = shares.newest - shares.oldest
        for _ in range(SAMPLES):
            moment = shares.oldest + span * random.random()  # noqa: S311 - a sample, not a secret
            ids.update(ordered.filter(died_at__gte=moment)[:1])
    if len(ids) < SAMPLES:
        # Few letters, or many that died at one moment.
        ids.update(pk for pk in ordered[: 2 * SAMPLES] if len(ids) < SAMPLES)
    letters = DeadLetter.objects.filter(pk__in=sorted(ids)[:SAMPLES])
    return list(letters.select_related("group").defer(*search.HEAVY_COLUMNS).order_by("-died_at", "-pk"))


def _unreplayable(found: QuerySet[DeadLetter]) -> QuerySet[DeadLetter]:
    """Return those that cannot be replayed; they are few, and an index lists them."""
    return found.filter(pk__in=DeadLetter.objects.filter(unreplayable__gt="").order_by().values("pk"))


def _skipped(selection: Selection, kind: OperationKind, count: int) -> Check:
    states = (
        selection.left_out(kind)
        .order_by()
        .values_list("state")
        .annotate(number=Count("pk"))
        .order_by("-number")
    )
    words = ", ".join(
        f"{number:,} {'changed since' if state == 'dead' else state}" for state, number in states
    )
    return Check(Level.INFO, f"{count:,} will be skipped.", f"They are not to be acted on now: {words}.")


def _replay_checks(
    selection: Selection,
    found: QuerySet[DeadLetter],
    shares: search.Breakdown,
    refused: int,
    now: datetime,
    already_done: int,
) -> list[Check]:
    near, scope = _near(found, shares)
    checks = [_have_failures_stopped(shares, now)]
    if refused:
        checks += _refused(selection, found)
    if already_done:
        checks.append(_already_done(already_done, scope))
    checks += _with_key(near, scope, already_done)
    checks += _workers(selection, shares, now)
    checks += _may_still_run(selection, found, shares)
    checks += _may_repeat(selection, found, shares)
    checks += _without_key(found, shares)
    checks += _chords(near, scope)
    checks += _unread(near, scope)
    return checks


def _have_failures_stopped(shares: search.Breakdown, now: datetime) -> Check:
    """Look at the newest death of the same groups, inside the selection or not."""
    group_ids = sorted(shares.group_ids)[:MAX_GROUPS]
    # Each state is named, because the index on the group has it before the time.
    same_bugs = DeadLetter.objects.filter(group_id__in=group_ids, state__in=list(LetterState)).order_by()
    deaths = DeadLetter.objects.filter(group=OuterRef("pk")).order_by("-died_at").values("died_at")
    last_deaths = FailureGroup.objects.filter(pk__in=group_ids).values_list(
        *(Subquery(deaths.filter(state=state)[:1]) for state in LetterState)
    )
    newest = max(
        (moment for row in last_deaths for moment in row if moment is not None), default=shares.newest
    )
    assert newest is not None and shares.oldest is not None  # noqa: S101, PT018 - the selection is not empty
    quiet = (now - newest).total_seconds()
    if quiet < QUIET_SECONDS:
        recent = same_bugs.filter(died_at__gte=now - timedelta(seconds=QUIET_SECONDS)).count()
        return Check(
            Level.WARNING,
            "The failures are still going on.",
            f"{recent:,} of the same kind died in the last 2 minutes, the newest {span(max(0.0, quiet))} ago."
            " What is sent now will probably die again.",
        )
    before = same_bugs.filter(died_at__gte=newest - timedelta(minutes=10), died_at__lte=newest)
    found = before.aggregate(first=Min("died_at"), number=Count("pk"))
    minutes = max(1.0, (newest - (found["first"] or newest)).total_seconds() / 60)
    rate = found["number"] / minutes
    pace = f"; before that {rate:,.0f} a minute died" if rate >= 1 and found["number"] > 1 else ""
    return Check(
        Level.OK,
        "The failures have stopped.",
        f"The last of this kind died at {newest:%H:%M:%S}, {span(max(0.0, quiet))} ago{pace}.",
    )


def _refused(selection: Selection, found: QuerySet[DeadLetter]) -> list[Check]:
    rows = (
        _unreplayable(found)
        .values_list("unreplayable")
        .annotate(number=Count("pk"))
        .order_by("-number", "unreplayable")
    )
    checks = []
    for why, number in rows[:5]:
        ids = [
            uuid.hex[:8]
            for uuid in found.filter(unreplayable=why).values_list("uuid", flat=True)[: MAX_LINKED_IDS + 1]
        ]
        is_few = len(ids) <= MAX_LINKED_IDS
        checks.append(
            Check(
                Level.REFUSED,
                f"{number:,} cannot be replayed.",
                why,
                f"id:{','.join(ids)}" if is_few else "",
                f"Show {number:,}" if is_few else "",
            )
        )
    return checks


def _already_done(number: int, scope: str) -> Check:
    is_one = number == 1
    return Check(
        Level.INFO,
        f"{number:,} {scope}{'is' if is_one else 'are'} already done.",
        f"The idempotency ledger has {'its key' if is_one else 'their keys'} as done. A replay runs nothing:"
        f" it returns the stored result, and the letter{'' if is_one else 's'} will be resolved.",
    )


def _with_key(near: QuerySet[DeadLetter], scope: str, already_done: int) -> list[Check]:
    """Say what guards those whose key no job has completed."""
    keyed = near.exclude(idempotency_key="").filter(unreplayable="").order_by().count()
    number = keyed - already_done
    if number <= 0:
        return []
    is_one = number == 1
    return [
        Check(
            Level.INFO,
            f"{number:,} {scope}{'has' if is_one else 'have'} an idempotency key and no completed run:"
            f" {'it will run' if is_one else 'each key runs once'}.",
            f"{'Its key is' if is_one else 'Their keys are'} sent along; of letters with the same key one runs and"
            " the others end as already done. What a failed attempt did outside, the ledger cannot see.",
        )
    ]


def _workers(selection: Selection, shares: search.Breakdown, now: datetime) -> list[Check]:
    online = list(
        Worker.objects.filter(seen_at__gte=now - timedelta(seconds=ONLINE_SECONDS)).values_list(
            "tasks", "queues"
        )
    )
    if not online:
        return [
            Check(
                Level.WARNING,
                "No worker is online.",
                "What is sent waits in its queue until one is started, and its outcome with it.",
            )
        ]
    known_tasks = {task for tasks, _ in online for task in tasks}
    consumed = {queue for _, queues in online for queue in queues}
    checks = []
    unknown = [share for share in shares.by_task if share.name and share.name not in known_tasks]
    if unknown:
        checks.append(
            Check(
                Level.WARNING,
                f"{sum(share.count for share in unknown):,} will probably die again.",
                f"No online worker knows {_names(unknown)}.",
                *_leave_out(selection, "task", unknown),
            )
        )
    unread = [share for share in shares.by_queue if share.name and share.name not in consumed]
    if unread:
        checks.append(
            Check(
                Level.WARNING,
                f"{sum(share.count for share in unread):,} will wait.",
                f"No online worker consumes the queue {_names(unread)}.",
                *_leave_out(selection, "queue", unread),
            )
        )
    return checks


def _may_still_run(
    selection: Selection, found: QuerySet[DeadLetter], totals: search.Breakdown
) -> list[Check]:
    """Warn of jobs whose worker only fell silent: one that is frozen or cut off goes on with them."""
    lost = sum(share.count for share in totals.by_reason if share.name == Reason.WORKER_LOST)
    if not lost:
        return []
    if lost <= MAX_LOOKED_AT:
        presumed = found.filter(error_type=PRESUMED_LOST, idempotency_key="", unreplayable="")
        rows = presumed.values_list("worker").annotate(number=Count("pk")).order_by("-number", "worker")
        shares = [search.Share(worker, number) for worker, number in rows]
        if not shares:
            return []
        headline, named = (
            _counted(shares, "may still be running.", "may still be running."),
            f": {_names(shares)}",
        )
    else:
        headline, named = f"Up to {lost:,} may still be running.", ""
    return [
        Check(
            Level.WARNING,
            headline,
            "Its worker fell silent, and nobody saw it die: if it only stands still or is cut off, the job goes on,"
            f" and a replay does it a second time. Make sure first that it is gone{named}.",
            *_leave_out(selection, "error", [search.Share(PRESUMED_LOST, lost)]),
        )
    ]


def _may_repeat(selection: Selection, found: QuerySet[DeadLetter], totals: search.Breakdown) -> list[Check]:
    risky = {share.name: share.count for share in totals.by_reason if share.name in RISKY_REASONS}
    if not risky:
        return []
    is_exact = sum(risky.values()) <= MAX_LOOKED_AT
    if is_exact:
        rows = (
            found.filter(reason__in=list(risky), idempotency_key="", unreplayable="")
            .exclude(error_type=PRESUMED_LOST)
            .values_list("reason")
            .annotate(number=Count("pk"))
            .order_by("-number")
        )
        shares = [search.Share(reason, number) for reason, number in rows]
    else:
        shares = [search.Share(reason, number) for reason, number in risky.items()]
    if not shares:
        return []
    whys = {
        Reason.RESULT_NOT_STORED: "ran to the end",
        Reason.TIMED_OUT: "stopped in the middle by the time limit",
        Reason.WORKER_LOST: "in the middle when the process died",
    }
    told = ", ".join(f"{share.count:,} {whys[Reason(share.name)]}" for share in shares)
    if is_exact:
        headline = _counted(shares, "may repeat its effects.", "may repeat their effects.")
        keys = "No idempotency key, and what"
    else:
        headline = "Up to " + _counted(shares, "may repeat its effects.", "may repeat their effects.")
        keys = "Where there is no idempotency key, what"
    return [
        Check(
            Level.WARNING,
            headline,
            f"{keys} was done before the death cannot be seen: {told}.",
            *_leave_out(selection, "reason", shares),
        )
    ]


def _without_key(found: QuerySet[DeadLetter], totals: search.Breakdown) -> list[Check]:
    """Warn of jobs that ran into an error: what they did before it, nothing here keeps from happening again."""
    failed = sum(share.count for share in totals.by_reason if share.name in FAILED_REASONS)
    if not failed:
        return []
    scope = "Up to "
    if failed <= MAX_LOOKED_AT:
        scope = ""
        failed = found.filter(reason__in=FAILED_REASONS, idempotency_key="", unreplayable="").count()
        if not failed:
            return []
    verb = "has" if failed == 1 else "have"
    return [
        Check(
            Level.WARNING,
            f"{scope}{failed:,} {verb} no idempotency key.",
            "What an attempt did before its error is done again.",
        )
    ]


def _chords(near: QuerySet[DeadLetter], scope: str) -> list[Check]:
    """Count chord members among the letters that belong to a group of jobs."""
    columns = ("message__body", "content_type", "content_encoding", "reason")
    # Headers are text, written by json.dumps.
    rows = near.filter(message__headers__contains='"group": "', unreplayable="").values_list(*columns)
    members: Counter[bool] = Counter()
    opened = 0
    for body, content_type, content_encoding, reason in rows[:MAX_OPENED].iterator(chunk_size=100):
        opened += 1
        message = replay.StoredMessage(
            bytes(body), content_type, content_encoding, {}, {}, "", None, reason, ""
        )
        if replay.has_chord(message):
            members[reason == Reason.WORKER_LOST] += 1
    if not members:
        return []
    if opened == MAX_OPENED:
        scope = f"of the first {MAX_OPENED:,} that belong to a group "
    text = (
        "A chord that broke cannot be completed by its members: they run by themselves, and its callback"
        " does not run."
    )
    if members[True]:
        text += (
            f" {members[True]:,} lost their worker before they reported, so their chord may still be open:"
            " with the same job id they complete it."
        )
    return [Check(Level.INFO, f"{members.total():,} {scope}belonged to a chord.", text)]


def _unread(near: QuerySet[DeadLetter], scope: str) -> list[Check]:
    rows = (
        near.exclude(content_type__in=sorted(replay.JSON_TYPES))
        .filter(unreplayable="")
        .order_by()
        .values_list("content_type")
        .annotate(number=Count("pk"))
        .order_by("-number")
    )
    shares = [search.Share(name or "of no content type", number) for name, number in rows]
    if not shares:
        return []
    return [
        Check(
            Level.INFO,
            _counted(shares, f"{scope}is replayed unread.", f"{scope}are replayed unread."),
            f"Content type {_names(shares)}: sent byte for byte, never opened here.",
        )
    ]


def _leave_out(selection: Selection, qualifier: str, shares: list[search.Share]) -> tuple[str, str]:
    """Return the search without these names, when the selection is a search."""
    if selection.is_by_hand or len(shares) > MAX_LINKED_IDS:
        return "", ""
    excluded = f"-{qualifier}:{','.join(quote(share.name) for share in shares)}"
    query = parse(selection.query, now=selection.frozen_at)
    return query.with_term(excluded), "Leave them out"


def _counted(shares: list[search.Share], one: str, many: str) -> str:
    number = sum(share.count for share in shares)
    return f"{number:,} {one if number == 1 else many}"


def _names(shares: list[search.Share]) -> str:
    named = ", ".join(share.name for share in shares[:MAX_NAMED])
    rest = len(shares) - MAX_NAMED
    return f"{named} and {rest:,} more" if rest > 0 else named
