"""A job's page: in one sentence, on one line, as a list, and what is not known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from console import times
from console.presenters import job_events, progress_view
from console.presenters.job_events import Attempt, Event, Part
from console.presenters.job_list import hours
from console.presenters.plain import count_of, duration
from console.presenters.progress_view import ProgressLine
from jobs.core.words import LedgerState, LetterState, OutboxState, RunOutcome
from jobs.metrics import job_life
from jobs.metrics.job_life import JobLife

# The line in its own units; the page stretches it over its width.
LINE_WIDTH = 1000.0
# A part that took a moment can be seen and pointed at.
_LEAST_WIDTH = 6.0
# A part that is longer than this share of all others together is broken, so that they can be seen.
_MOST_SHARE = 1.0
# In the order of the legend: the class, and what the part is called.
KINDS: dict[str, str] = {
    "outbox": "in the outbox",
    "wait": "waits for a worker",
    "running": "runs now",
    "done": "runs, done",
    "retried": "runs, fails and is tried again",
    "dead": "runs, dies",
    "revoked": "runs, revoked",
    "ignored": "runs, ignored",
    "down": "dead",
    "replay": "its replay runs",
    "unknown": "not known",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the line. ``is_broken`` says that it is shorter than its time."""

    kind: str
    x: str
    width: str
    title: str
    is_broken: bool
    break_at: str


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend: a kind of part and how long all of its kind took."""

    kind: str
    word: str
    length: str


@dataclass(frozen=True, slots=True)
class Line:
    """The life on one line, from its first moment to its last."""

    bars: list[Bar]
    legend: list[Key]
    start: datetime
    end: datetime
    is_open: bool
    is_broken: bool
    length: str
    label: str


@dataclass(frozen=True, slots=True)
class JobPage:
    """Everything on the page, ready to be printed. ``state`` names its mark."""

    life: JobLife
    state: str
    sentence: str
    line: Line | None
    events: list[Event]
    has_days: bool
    unknown: list[str]
    kept: list[tuple[str, str]]
    progress: ProgressLine | None
    ledger: str
    is_over: bool


def read(task_id: str, *, may_see_letters: bool, now: datetime) -> JobPage:
    """Read a job's page: a fixed number of queries, whatever the job went through.

    Who may not see letters is told that it died and why, and not the error's text, which may hold anything.
    """
    life = job_life.read(task_id, now=now)
    if not may_see_letters:
        for death in life.deaths:
            death.error = ""
    return present(life, now=now)


def present(life: JobLife, *, now: datetime) -> JobPage:
    """Put a life into words and onto its line."""
    done = job_events.attempts(life)
    found = job_events.events(life)
    state = _state(life, done)
    return JobPage(
        life=life,
        state=state,
        sentence=_sentence(life, done, state, now=now) if life.is_known else "",
        line=_line(job_events.parts(life, now=now)),
        events=found,
        has_days=any(event.at.date() != now.date() for event in found),
        unknown=_unknown(life, done) if life.is_known else [],
        kept=[(what, _length(length)) for what, length in job_life.forgotten_after(life)],
        progress=progress_view.present(life.progress, now=now) if life.progress is not None else None,
        ledger=_ledger(life),
        is_over=state not in {"running", "waiting"} and life.is_known,
    )


def _state(life: JobLife, done: Sequence[Attempt]) -> str:
    if life.running:
        return "running" if life.running[-1].is_online else "unknown"
    newest = done[-1] if done else None
    if newest is not None and newest.outcome != RunOutcome.RETRIED:
        return newest.outcome
    if newest is not None or any(each.state == OutboxState.PENDING for each in life.messages):
        return "waiting"
    if life.letters and life.replay is None:
        return RunOutcome.DEAD
    return "waiting" if life.messages or life.replay is not None else "unknown"


def _sentence(life: JobLife, done: Sequence[Attempt], state: str, *, now: datetime) -> str:
    if life.running:
        running = life.running[-1]
        since = duration((now - running.started_at).total_seconds())
        if not running.is_online:
            return f"Attempt {running.attempt + 1} was running when its worker stopped reporting."
        return f"Attempt {running.attempt + 1} has been running for {since}."
    if state == "waiting":
        return _waiting(life, done, now=now)
    if not done:
        return "How it ended is not known any more."
    newest = done[-1]
    mark = {
        RunOutcome.DONE: "It was done",
        RunOutcome.DEAD: "It died",
        RunOutcome.REVOKED: "It was revoked",
        RunOutcome.IGNORED: "It ended and asked to be ignored",
    }[RunOutcome(newest.outcome)]
    first = _first_moment(life, done)
    took = f", {duration((newest.ended_at - first).total_seconds())} after it was published" if first else ""
    tries = f" on attempt {newest.number}" if newest.number > 1 else ""
    return f"{mark}{tries}{took}.{_what_follows(life)}"


def _waiting(life: JobLife, done: Sequence[Attempt], *, now: datetime) -> str:
    pending = [each for each in life.messages if each.state == OutboxState.PENDING]
    if pending:
        return f"It has been in the outbox for {duration((now - pending[-1].created_at).total_seconds())}."
    if done:
        ago = duration((now - done[-1].ended_at).total_seconds())
        return f"Attempt {done[-1].number} failed {ago} ago; no later one has been reported yet."
    sent = [each.published_at for each in life.messages if each.published_at is not None]
    if life.replay is not None and life.replay.sent_at is not None:
        sent.append(life.replay.sent_at)
    if not sent:
        return "It has not been published yet."
    return f"It was published {times.ago(sent[-1], now=now)}; no worker has reported an attempt of it."


def _what_follows(life: JobLife) -> str:
    own = [letter for letter in life.letters if letter.task_id == life.task_id]
    if not own:
        return ""
    return {
        LetterState.DEAD: " It will not run again by itself.",
        LetterState.REPLAYING: " It is being replayed.",
        LetterState.RESOLVED: " A replay of it has been done since.",
        LetterState.PURGED: " Its letter was purged.",
    }[LetterState(own[-1].state)]


def _first_moment(life: JobLife, done: Sequence[Attempt]) -> datetime | None:
    known = [each.published_at for each in life.messages if each.published_at is not None]
    known += [each.published_at for each in done if each.published_at is not None]
    return min(known, default=None)


def _line(parts: Sequence[Part]) -> Line | None:
    if not parts:
        return None
    weights, broken = _weights(parts)
    total = sum(weights) or 1.0
    widths = [max(_LEAST_WIDTH, LINE_WIDTH * weight / total) for weight in weights]
    scale = LINE_WIDTH / sum(widths)
    bars, x = [], 0.0
    for part, width, is_broken in zip(parts, widths, broken, strict=True):
        width *= scale
        bars.append(
            Bar(
                kind=part.kind,
                x=f"{x:.2f}",
                width=f"{width:.2f}",
                title=f"{KINDS[part.kind]}: {duration(part.seconds)}"
                f"{' so far' if part.is_open else ''}, from {times.exact(part.start)}",
                is_broken=is_broken,
                break_at=f"{x + width / 2:.2f}",
            )
        )
        x += width
    lengths: dict[str, float] = {}
    for part in parts:
        lengths[part.kind] = lengths.get(part.kind, 0.0) + part.seconds
    legend = [Key(kind, word, duration(lengths[kind])) for kind, word in KINDS.items() if kind in lengths]
    return Line(
        bars=bars,
        legend=legend,
        start=parts[0].start,
        end=parts[-1].end,
        is_open=parts[-1].is_open,
        is_broken=any(broken),
        length=duration((parts[-1].end - parts[0].start).total_seconds()),
        label="; ".join(f"{KINDS[part.kind]} {duration(part.seconds)}" for part in parts),
    )


def _weights(parts: Sequence[Part]) -> tuple[list[float], list[bool]]:
    """Return how much room each part gets: its seconds, less for one that would leave none to the others."""
    weights = [part.seconds for part in parts]
    broken = [False] * len(parts)
    for index in sorted(range(len(parts)), key=lambda each: -weights[each]):
        others = sum(weights) - weights[index]
        if others > 0 and weights[index] > 4 * others * _MOST_SHARE:
            weights[index], broken[index] = others * _MOST_SHARE, True
    return weights, broken


def _unknown(life: JobLife, done: Sequence[Attempt]) -> list[str]:
    """Say which parts of the life nobody has told of, and why."""
    found = []
    if not life.messages and life.replay is None:
        found.append(
            "No outbox message: it was published directly, or its message was sent so long ago "
            "that it is no longer kept."
        )
    numbers = {each.number for each in done} | {each.attempt + 1 for each in life.running}
    missing = sorted(set(range(1, max(numbers, default=0))) - numbers)
    if missing and not life.has_more_runs:
        words = count_of(len(missing), "attempt")
        found.append(
            f"{words} before the last {'has' if len(missing) == 1 else 'have'} no record: "
            "records are kept for a while only, and may be sampled."
        )
    if any(each.published_at is None for each in done):
        found.append("How long it waited is not known of every attempt: its publisher has no agent.")
    if not done and not life.running:
        found.append(
            "No attempt has been reported: it waits, or the record is no longer kept, or its worker has no agent."
        )
    if life.has_more_runs:
        found.append(f"Only the newest {job_life.MOST_ATTEMPTS} attempts are shown.")
    return found


def _ledger(life: JobLife) -> str:
    if not life.idempotency_key:
        return ""
    if life.ledger is None:
        return "not in the ledger: nothing has claimed it, or it is no longer kept"
    if life.ledger.state == LedgerState.DONE:
        by = "by this job" if life.ledger.task_id == life.task_id else f"by job {life.ledger.task_id[:8]}"
        return f"done {by}: a copy does nothing"
    if life.ledger.state == LedgerState.RUNNING:
        return "running: a copy waits"
    return "free: a copy runs it"


def _length(length: timedelta) -> str:
    return f"{length.days} days" if length.days > 2 else hours(length)
