"""The overview in words: one sentence, and what each tile says beside its figure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from console import times
from console.presenters.outbox_page import lag_figure
from console.presenters.plain import visible
from jobs.core.words import GroupState
from jobs.outbox.service import OutboxOverview
from jobs.overview import Overview

# By duty of runops; all others are relays.
_NOT_DONE = {
    "collector": "dead letters are not collected",
    "operations": "replays and purges stand still",
}


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure, its change against the time before in words, and one supporting fact.

    ``change`` is "worse", "better" or "same"; empty when there is nothing to compare with.
    """

    name: str
    figure: str
    href: str
    change: str
    arrow: str
    difference: str
    before: str
    fact: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Standstill:
    """What runops does not do now, why, and since when. ``kind`` is a name in ``states.DUTY_MARKS``."""

    kind: str
    headline: str
    words: str
    since: datetime | None


def standstill(overview: Overview) -> Standstill | None:
    """Say what does not happen behind the page; None while all of it does."""
    if not overview.undone:
        return None
    # Databases have a relay each, and one clause for all.
    *first, last = dict.fromkeys(
        _NOT_DONE.get(each.duty, "what waits in the outbox is not sent") for each in overview.undone
    )
    headline = f"{', '.join(first)}, and {last}" if first else last
    since = min((each.since for each in overview.undone if each.since is not None), default=None)
    if any(not each.trouble for each in overview.undone):
        words, kind = "No runops does this. Start one: manage.py runops.", "idle"
    else:
        trouble = overview.undone[0].trouble
        said = visible(trouble.partition(": ")[2] or trouble, keep="")
        words, kind = f"{said} It goes on by itself once it can.", "blocked"
    return Standstill(kind, headline[:1].upper() + headline[1:], words, since)


def sentence(overview: Overview, *, now: datetime) -> str:
    """Say what a tired person has to know first."""
    running = len(overview.operations)
    parts = [_deaths(overview, now=now)]
    for each in overview.undone:
        if each.duty == "collector" and each.since is None:
            parts.insert(0, "No runops has run, so nobody collects what dies.")
        elif each.duty == "collector" and each.since is not None:
            lasting = times.span(max(0.0, (now - each.since).total_seconds()))
            parts.insert(0, f"What died in the last {lasting} is not known here.")
    if overview.outbox.stuck:
        parts.append(f"{_count(overview.outbox.stuck, 'message is', 'messages are')} stuck in the outbox.")
    if running:
        parts.append(f"{running} operation{'s are' if running > 1 else ' is'} not finished.")
    return " ".join(parts)


def _deaths(overview: Overview, *, now: datetime) -> str:
    died = overview.died_last_hour
    if not died:
        if not overview.dead:
            return "No job is dead, and none died in the last hour."
        letters = _count(overview.dead, "dead letter waits", "dead letters wait")
        last = (
            f"; the last job died {times.ago(overview.last_died_at, now=now)}"
            if overview.last_died_at
            else ""
        )
        return f"No job died in the last hour{last}. {letters} for somebody to look."
    jobs = "1 job" if died == 1 else f"{died:,} jobs"
    if not overview.groups:
        return f"{jobs} died in the last hour; nothing that is new or came back fails now."
    # A job that was replayed since is not in its group's letters any more.
    in_groups = min(died, sum(group.row.letters for group in overview.groups))
    groups = _count(len(overview.groups), "group", "groups")
    queues = {group.row.queue for group in overview.groups}
    where = ""
    if len(queues) == 1:
        both = {1: "", 2: "both "}.get(len(overview.groups), "all ")
        where = f", {both}on queue {visible(next(iter(queues)), keep='')[:80]}"
    if in_groups == died:
        which = "The job" if died == 1 else f"All {died:,} jobs"
        return f"{which} that died in the last hour belong{'s' if died == 1 else ''} to {groups}{where}."
    still = f"{groups} that still {'fails' if len(overview.groups) == 1 else 'fail'}"
    are = "is a dead letter" if in_groups == 1 else "are dead letters"
    return f"{in_groups:,} of the {jobs} that died in the last hour {are} of {still}{where}."


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def tiles(overview: Overview, *, letters_href: str, groups_href: str, outbox_href: str) -> list[Tile]:
    """Return the tiles in reading order."""
    per_minute = overview.died_last_five_minutes / 5
    growing = f"growing {per_minute:.0f} /min" if per_minute >= 1 else "not growing now"
    states = overview.groups_by_state
    known = [
        f"{states[state]:,} {state.value}"
        for state in (GroupState.NEW, GroupState.REGRESSED)
        if states.get(state)
    ]
    replays = sum(1 for each in overview.operations if each.operation.kind == "replay")
    return [
        _tile("Dead letters", overview.dead, letters_href, overview.dead_before, growing, more_is="worse"),
        _tile(
            "Died, last hour",
            overview.died_last_hour,
            f"{letters_href}?q=since:1h+state:any",
            overview.died_hour_before,
            _count(sum(1 for each in overview.by_task if each.last_hour), "task", "tasks") + " with a death",
            more_is="worse",
        ),
        Tile(
            "Replaying",
            f"{overview.replaying:,}",
            f"{letters_href}?q=state:replaying",
            "",
            "",
            "",
            "",
            f"{_count(replays, 'replay is', 'replays are')} not finished"
            if replays
            else "no replay is running",
        ),
        _tile(
            "Resolved, 24 h",
            overview.resolved_last_day,
            f"{letters_href}?q=state:resolved",
            overview.resolved_day_before,
            "replayed and done",
            more_is="better",
            before_words="the day before",
        ),
        Tile(
            "Groups",
            f"{overview.group_count:,}",
            groups_href,
            "worse" if overview.groups_first_seen_last_hour else "same",
            "arrow-up" if overview.groups_first_seen_last_hour else "equal",
            f"{overview.groups_first_seen_last_hour:,} first seen"
            if overview.groups_first_seen_last_hour
            else "none first seen",
            "in the last hour",
            ", ".join(known) if known else "none is new or came back",
        ),
        _outbox(overview.outbox, outbox_href),
    ]


def _outbox(outbox: OutboxOverview, href: str) -> Tile:
    """Say how late the outbox is. What it was an hour ago nobody has written down."""
    figure, unit = lag_figure(outbox.lag_seconds)
    waiting = _count(outbox.pending, "message waits", "messages wait")
    stuck = f"{outbox.stuck:,} stuck" if outbox.stuck else "none is stuck"
    fact = f"{waiting}, {stuck}" if outbox.pending else "no message waits"
    return Tile("Outbox lag", figure, href, "", "", "", "", fact, unit)


def _tile(
    name: str, now: int, href: str, before: int, fact: str, *, more_is: str, before_words: str = ""
) -> Tile:
    less_is = "better" if more_is == "worse" else "worse"
    # Fewer resolved than yesterday is no bad news: less died.
    if more_is == "better":
        less_is = "same"
    change = "same" if now == before else more_is if now > before else less_is
    arrow = "equal" if now == before else "arrow-up" if now > before else "arrow-down"
    difference = "no change" if now == before else f"{abs(now - before):,}"
    return Tile(
        name=name,
        figure=f"{now:,}",
        href=href,
        change=change,
        arrow=arrow,
        difference=difference,
        before=f"from {before:,}{' ' + before_words if before_words else ''}",
        fact=fact,
    )
