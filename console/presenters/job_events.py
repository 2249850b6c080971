"""What happened to a job, event by event, and the parts of its life that lie between. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from django.urls import reverse

from console import addresses
from console.presenters.letter_story import NEVER_RAN
from console.presenters.plain import duration, visible
from console.states import MARKS, REASON_MARKS
from jobs.core.words import ItemState, LetterState, OutboxState, RunOutcome
from jobs.metrics.job_life import JobLife
from jobs.models import Death, OperationItem, OutboxMessage, Run

_LINE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Event:
    """One moment: an icon with its tone, a bold word, the rest, a second line, and where more is told."""

    at: datetime
    icon: str
    tone: str
    word: str
    text: str = ""
    detail: str = ""
    href: str = ""
    link: str = ""
    order: int = 0

    @property
    def word_tone(self) -> str:
        """The tone of the word: only what went ill, well or in between is coloured."""
        return self.tone if self.tone in {"red", "green", "amber"} else ""


@dataclass(frozen=True, slots=True)
class Part:
    """A span of a job's life. ``kind`` names its colour; without an end it goes on."""

    start: datetime
    end: datetime
    kind: str
    is_open: bool = False

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, (self.end - self.start).total_seconds())


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution, from its record, its death or both."""

    number: int
    published_at: datetime | None
    started_at: datetime | None
    ended_at: datetime
    outcome: str
    worker: str
    latency: float | None
    runtime: float | None
    run: Run | None = None
    death: Death | None = None


def attempts(life: JobLife) -> list[Attempt]:
    """Return the attempts that are known, in the order in which they ended."""
    deaths = {(death.publication_id, death.attempt): death for death in life.deaths}
    found = []
    for run in life.runs:
        death = deaths.pop((run.publication_id, run.attempt), None)
        if death is not None and run.runtime_seconds is None:
            # It did not tell how long it ran; the death knows until when its worker was heard of.
            found.append(replace(_of_death(death), run=run))
            continue
        found.append(
            Attempt(
                number=run.attempt + 1,
                published_at=run.published_at,
                started_at=run.started_at,
                ended_at=run.finished_at,
                outcome=run.outcome,
                worker=run.worker,
                latency=run.latency_seconds,
                runtime=run.runtime_seconds,
                run=run,
                death=death,
            )
        )
    found += [_of_death(death) for death in deaths.values()]
    return sorted(found, key=lambda each: (each.ended_at, each.number))


def _of_death(death: Death) -> Attempt:
    started = None if death.reason in NEVER_RAN else death.started_at
    return Attempt(
        number=death.attempt + 1,
        published_at=death.published_at,
        started_at=started,
        ended_at=death.died_at,
        outcome=RunOutcome.DEAD,
        worker=death.worker,
        latency=_between(death.published_at, started),
        runtime=_between(started, death.died_at),
        death=death,
    )


def events(life: JobLife) -> list[Event]:
    """Return what is known, oldest first."""
    found: list[Event] = []
    for message in life.messages:
        found.extend(_of_message(message))
    if life.replay is not None and life.replay.sent_at is not None:
        found.append(_sent(life.replay))
    done = attempts(life)
    for attempt in done:
        found.extend(_of_attempt(attempt, life, is_only=len(done) == 1))
    for running in life.running:
        words = f"on {_line(running.worker)}"
        if running.published_at is not None:
            words += f" after {duration(max(0.0, (running.started_at - running.published_at).total_seconds()))} of waiting"
            if not life.messages and life.replay is None:
                word = "Published" if running.attempt == 0 else f"Attempt {running.attempt + 1} published"
                found.append(Event(running.published_at, "upload", "plain", word, order=1))
        if not running.is_online:
            words += ", which has stopped reporting"
        found.append(
            Event(running.started_at, "play", "blue", f"Attempt {running.attempt + 1} runs", words, order=3)
        )
    for item in life.items:
        found.extend(_of_item(item))
    found += [
        Event(letter.state_changed_at, "bin", "grey", "Purged", order=9)
        for letter in life.letters
        if letter.state == LetterState.PURGED
    ]
    return sorted(found, key=lambda event: (event.at, event.order))


def parts(life: JobLife, *, now: datetime) -> list[Part]:
    """Return the spans of the job's life in order; what lies between two of them is waiting, or not known."""
    found: list[Part] = []
    # From its publication on it waits; by clocks that differ, or of several attempts, that may overlap the rest.
    published: list[datetime] = []
    for message in life.messages:
        is_open = message.state == OutboxState.PENDING
        end = now if is_open else message.published_at or message.available_at
        found.append(Part(message.created_at, max(end, message.created_at), "outbox", is_open=is_open))
        if message.published_at is not None:
            published.append(message.published_at)
    if life.replay is not None and life.replay.sent_at is not None:
        published.append(life.replay.sent_at)
    for attempt in attempts(life):
        if attempt.published_at is not None:
            published.append(attempt.published_at)
        start = attempt.started_at or attempt.ended_at
        found.append(Part(min(start, attempt.ended_at), attempt.ended_at, attempt.outcome))
    for running in life.running:
        if running.published_at is not None:
            published.append(running.published_at)
        found.append(Part(running.started_at, max(now, running.started_at), "running", is_open=True))
    found += _dead_parts(life, now=now)
    return _in_a_row(found, published, now=now)


def _dead_parts(life: JobLife, *, now: datetime) -> Iterator[Part]:
    """Yield how long its letters were dead, and how long their replays took."""
    for letter in life.letters:
        if letter.task_id != life.task_id:
            continue
        dead_since = letter.first_died_at
        for item in life.items:
            if item.letter_id != letter.pk or item.sent_at is None:
                continue
            yield Part(dead_since, item.sent_at, "down")
            ended = item.ended_at or now
            yield Part(item.sent_at, ended, "replay", is_open=item.ended_at is None)
            dead_since = ended
        if letter.state == LetterState.DEAD:
            yield Part(dead_since, now, "down", is_open=True)


def _in_a_row(found: list[Part], published: list[datetime], *, now: datetime) -> list[Part]:
    """Order the parts, cut what overlaps, and name what lies between them."""
    row: list[Part] = []
    first = min(published, default=None)
    for part in sorted(found, key=lambda each: (each.start, each.end)):
        start = max(part.start, row[-1].end) if row else part.start
        if row and row[-1].kind == RunOutcome.DEAD and part.kind == "down":
            # The death is written down a moment after the attempt ended.
            start = row[-1].end
        end = max(part.end, start)
        if row and end == row[-1].end and part.kind in {"outbox", "down"}:
            continue
        if not row and first is not None and first < start:
            row.append(Part(first, start, "wait"))
        elif row and start > row[-1].end:
            waits = row[-1].kind in {RunOutcome.RETRIED, "outbox"}
            waits = waits or any(row[-1].end <= moment < start for moment in published)
            row.append(Part(row[-1].end, start, "wait" if waits else "unknown"))
        row.append(Part(start, end, part.kind, is_open=part.is_open))
    last = row[-1].end if row else first
    if last is not None and _still_waits(row, published):
        row.append(Part(last, max(now, last), "wait", is_open=True))
    return row


def _still_waits(row: list[Part], published: list[datetime]) -> bool:
    """Say whether nothing has been told since it was published, or since it was to be tried again."""
    if not row:
        return bool(published)
    return not row[-1].is_open and row[-1].kind in {"outbox", RunOutcome.RETRIED}


def _of_message(message: OutboxMessage) -> Iterator[Event]:
    href = reverse("console:outbox-message", args=[message.uuid])
    held = f"to start at {message.eta:%Y-%m-%d %H:%M:%S} UTC" if message.eta is not None else ""
    yield Event(
        message.created_at,
        "note",
        "plain",
        "Written to the outbox",
        "with the transaction that enqueued it",
        detail=held,
        href=href,
        link="message",
    )
    if message.state == OutboxState.PUBLISHED and message.published_at is not None:
        lag = duration((message.published_at - message.created_at).total_seconds())
        who = "the transaction's process" if message.published_by == "commit" else "the relay"
        queue = f" to queue {_line(message.queue)}" if message.queue else ""
        yield Event(
            message.published_at,
            "upload",
            "plain",
            "Published",
            f"by {who}{queue}, {lag} after that",
            order=1,
        )
    elif message.state == OutboxState.GAVE_UP:
        yield Event(
            message.available_at,
            "stopped",
            "red",
            "Given up",
            "the broker did not take it",
            detail=_line(message.last_error),
            order=1,
        )


def _of_attempt(attempt: Attempt, life: JobLife, *, is_only: bool) -> Iterator[Event]:
    name = f"Attempt {attempt.number}"
    is_told = attempt.number == 1 and (
        life.replay is not None or any(each.published_at is not None for each in life.messages)
    )
    if attempt.published_at is not None and not is_told:
        word = "Published" if attempt.number == 1 else f"{name} published"
        queue = attempt.run.queue if attempt.run is not None else life.queue
        # A retry is published by the attempt before it, just before that ends.
        order = 1 if attempt.number == 1 else 5
        yield Event(
            attempt.published_at,
            "upload",
            "plain",
            word,
            f"to queue {_line(queue)}" if queue else "",
            order=order,
        )
    if attempt.started_at is not None:
        waited = f"after {duration(attempt.latency)} of waiting" if attempt.latency is not None else ""
        where = f"on {_line(attempt.worker)}" if attempt.worker else ""
        yield Event(
            attempt.started_at,
            "point",
            "plain",
            f"{name} started",
            " ".join(filter(None, (where, waited))),
            order=2,
        )
    yield _end(attempt, life, name="" if is_only else name)


def _end(attempt: Attempt, life: JobLife, *, name: str) -> Event:
    mark = MARKS["run"][attempt.outcome]
    ran = f"after {duration(attempt.runtime)}" if attempt.runtime is not None else ""
    word = mark.word
    text = " ".join(filter(None, (f"{name.lower()}," if name and ran else name.lower(), ran)))
    icon, detail, href, link = mark.icon, "", "", ""
    if attempt.run is not None:
        detail = _line(attempt.run.error_type.rsplit(".", 1)[-1])
    if attempt.death is not None:
        reason = REASON_MARKS[attempt.death.reason]
        icon, word = reason.icon, f"Died: {reason.word.lower()}"
        error = attempt.death.error_type.rsplit(".", 1)[-1]
        detail = _line(": ".join(filter(None, (error, attempt.death.error))))
        letter = next((each for each in life.letters if each.pk == attempt.death.letter_id), None)
        if letter is not None:
            href = reverse("console:letter", args=[letter.uuid])
            link = f"letter {letter.short_id}"
    return Event(attempt.ended_at, icon, mark.colour, word, text, detail, href, link, order=4)


def _sent(item: OperationItem) -> Event:
    letter = item.letter
    assert item.sent_at is not None  # noqa: S101 - the caller has looked
    return Event(
        item.sent_at,
        "replay",
        "accent",
        "Sent as a replay",
        f"by {_line(item.operation.actor)} in operation {item.operation_id}",
        detail=f"“{_line(item.operation.why)}”" if item.operation.why else "",
        href=reverse("console:letter", args=[letter.uuid]),
        link=f"letter {letter.short_id}",
    )


def _of_item(item: OperationItem) -> Iterator[Event]:
    if item.sent_at is None:
        return
    yield Event(
        item.sent_at,
        "replay",
        "accent",
        "Replayed",
        f"by {_line(item.operation.actor)} in operation {item.operation_id}",
        href=addresses.job_page(item.task_id) if item.task_id else "",
        link=f"job {item.task_id[:8]}" if item.task_id else "",
        order=5,
    )
    endings = {
        ItemState.DONE: ("done", "green", "Its replay is done"),
        ItemState.ALREADY_DONE: ("done", "green", "Its replay ran nothing: the key had been done"),
        ItemState.DIED: ("envelope", "red", "Its replay died"),
        ItemState.UNKNOWN: ("question", "amber", "How its replay ended is not known"),
    }
    ending = endings.get(ItemState(item.state))
    if ending is not None and item.ended_at is not None:
        icon, tone, word = ending
        yield Event(item.ended_at, icon, tone, word, detail=_line(item.detail), order=6)


def _between(first: datetime | None, last: datetime | None) -> float | None:
    return None if first is None or last is None else max(0.0, (last - first).total_seconds())


def _line(text: str) -> str:
    shown = visible(" ".join(text[:_LINE_LIMIT].split()), keep="")
    return f"{shown}…" if len(text) > _LINE_LIMIT else shown
