"""The overview in words: one sentence, and why something stands still. The tiles are presenters/overview_tiles.py."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from console import times
from console.console_health import NOT_DONE, why_undone
from console.presenters.plain import visible
from jobs.overview import Overview

# More clauses than these are no headline.
_MOST_CLAUSES = 3


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
    clauses = list(
        dict.fromkeys(
            NOT_DONE.get(each.duty, "what waits in the outbox is not sent") for each in overview.undone
        )
    )
    since = min((each.since for each in overview.undone if each.since is not None), default=None)
    idle = next((each for each in overview.undone if not each.trouble), None)
    kind = "blocked" if idle is None else "idle"
    words = why_undone(idle or overview.undone[0])
    what = _listed(clauses)
    if len(clauses) > _MOST_CLAUSES:
        return Standstill(kind, "Runops does not do its work", f"{what}. {words}", since)
    return Standstill(kind, what, words, since)


def _listed(clauses: list[str]) -> str:
    """Join clauses to one that begins a sentence: "A, b, and c"."""
    *first, last = clauses
    joined = f"{', '.join(first)}, and {last}" if first else last
    return joined[:1].upper() + joined[1:]


def sentence(overview: Overview, *, now: datetime) -> str:
    """Say what a tired person has to know first."""
    running = len(overview.operations)
    parts = [_deaths(overview, now=now)]
    if overview.alerts:
        parts.insert(0, f"{_count(len(overview.alerts), 'alert is', 'alerts are')} firing.")
    for each in overview.undone:
        if each.duty == "collector" and each.since is None:
            parts.insert(0, "No runops has run, so nobody collects what dies.")
        elif each.duty == "collector" and each.since is not None:
            lasting = times.span(max(0.0, (now - each.since).total_seconds()))
            parts.insert(0, f"What died in the last {lasting} is not known here.")
    if overview.unconsumed:
        parts.append(
            f"Nobody takes from {_count(len(overview.unconsumed), 'queue', 'queues')} with messages."
        )
    if overview.lost:
        parts.append(f"{_count(len(overview.lost), 'worker is', 'workers are')} lost.")
    if overview.outbox.stuck:
        parts.append(f"{_count(overview.outbox.stuck, 'message is', 'messages are')} stuck in the outbox.")
    if overview.remark:
        parts.append(f"{visible(overview.remark, keep='')}.")
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
    # Of an unreadable message nobody knows the queue.
    if len(queues) == 1 and "" not in queues:
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
