"""The life of a job on one line of time: published, died, replayed, how that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from console.presenters.letter_story import NEVER_RAN, ordinal
from console.presenters.plain import count_of, duration, visible
from console.states import REASON_MARKS
from jobs.core.words import ItemState, LetterState
from jobs.models import DeadLetter, Death, OperationItem

# A letter that loops has thousands of entries; the first and the last tell it.
ENTRY_LIMIT = 60
_HEAD = 10
_LINE_LIMIT = 300


@dataclass(frozen=True, slots=True)
class Entry:
    """One point: an icon with the tone of its state, a bold word, the rest, and a second line."""

    at: datetime
    icon: str
    tone: str
    word: str
    text: str
    detail: str = ""
    quote: str = ""
    operation_id: int | None = None
    death_id: int | None = None
    order: int = 0

    @property
    def word_tone(self) -> str:
        """The tone of the word: only what went ill, well or in between is coloured."""
        return self.tone if self.tone in {"red", "green", "amber"} else ""


@dataclass(frozen=True, slots=True)
class Life:
    """The entries, oldest first, in one or two runs, and the sum in words."""

    first: tuple[Entry, ...]
    left_out: int
    last: tuple[Entry, ...]
    summary: str
    # Whether a date stands before some of the times.
    has_days: bool


def present(
    letter: DeadLetter, deaths: Sequence[Death], items: Sequence[OperationItem], *, now: datetime
) -> Life:
    """Build the life of a letter; ``deaths`` and ``items`` oldest first, items with their operation."""
    entries: list[Entry] = []
    for number, death in enumerate(deaths, start=1):
        entries.extend(_death(letter, death, number, len(deaths)))
    for item in items:
        entries.extend(_replay(item))
    if letter.state == LetterState.PURGED:
        entries.append(
            Entry(
                letter.state_changed_at,
                "bin",
                "grey",
                "Purged",
                "",
                detail=_deleted(letter),
                operation_id=letter.purged_by_id,
                order=9,
            )
        )
    entries.sort(key=lambda entry: (entry.at, entry.order))
    left_out = max(0, len(entries) - ENTRY_LIMIT)
    first = entries[:_HEAD] if left_out else entries
    last = entries[_HEAD + left_out :] if left_out else []
    return Life(
        first=tuple(first),
        left_out=left_out,
        last=tuple(last),
        summary=_summary(deaths, items),
        has_days=any(entry.at.date() != now.date() for entry in entries),
    )


def _summary(deaths: Sequence[Death], items: Sequence[OperationItem]) -> str:
    replays = sum(1 for item in items if item.sent_at is not None)
    attempts = sum(death.attempt + 1 for death in deaths if death.started_at is not None)
    parts = []
    # How many attempts a job took that did not die is not reported.
    if attempts and not any(item.state in {ItemState.DONE, ItemState.ALREADY_DONE} for item in items):
        parts.append(count_of(attempts, "attempt"))
    if replays:
        parts.append(count_of(replays, "replay"))
    parts.append(count_of(len(deaths), "death"))
    return ", ".join(parts)


def _death(letter: DeadLetter, death: Death, number: int, total: int) -> list[Entry]:
    entries = []
    attempt = f"Attempt {death.attempt + 1}" if death.attempt else ""
    if death.item_id is None and death.published_at is not None:
        headers = letter.message.headers
        origin = headers.get("origin") if isinstance(headers, dict) else None
        entries.append(
            Entry(
                death.published_at,
                "upload",
                "plain",
                f"{attempt} published" if attempt else "Published",
                published_by(origin),
                detail=f"to queue {_line(letter.queue)}" if letter.queue else "",
                order=1,
            )
        )
    if death.started_at is not None and death.reason not in NEVER_RAN:
        waited = ""
        if death.published_at is not None and death.started_at >= death.published_at:
            waited = f" waited {duration((death.started_at - death.published_at).total_seconds())}"
        ran = ""
        if death.died_at > death.started_at:
            ran = (
                f"{', ' if waited else ' '}ran {duration((death.died_at - death.started_at).total_seconds())}"
            )
        where = f" on {_line(death.worker)}" if death.worker else ""
        entries.append(
            Entry(
                death.started_at,
                "point",
                "plain",
                "",
                f"{attempt or 'Attempt 1'}{waited}{ran}{where}",
                detail=_error(death),
                order=2,
            )
        )
    which = f"the {ordinal(number)} time: " if total > 1 else ""
    entries.append(
        Entry(
            death.died_at,
            REASON_MARKS[death.reason].icon,
            "red",
            "Died" if which else "Died:",
            f"{which}{death.get_reason_display().lower()}",
            detail="" if entries and entries[-1].detail == _error(death) else _error(death),
            death_id=death.pk,
            order=3,
        )
    )
    return entries


def _replay(item: OperationItem) -> list[Entry]:
    operation = item.operation
    actor = _line(operation.actor)
    entries = []
    if item.sent_at is not None:
        stages = len(operation.stages) if isinstance(operation.stages, list) else 0
        stage = f", stage {item.stage} of {stages}" if stages > 1 and item.stage else ""
        edited = " with edited arguments" if operation.edited_arguments is not None else ""
        entries.append(
            Entry(
                item.sent_at,
                "replay",
                "accent",
                "Replayed",
                f"{edited} by {actor}{stage}",
                quote=_line(operation.why),
                operation_id=operation.pk,
            )
        )
    endings = {
        ItemState.DONE: ("done", "green", "Done", "the replayed job ran to its end"),
        ItemState.ALREADY_DONE: (
            "done",
            "green",
            "Already done",
            "its replay ran nothing",
        ),
        ItemState.UNKNOWN: (
            "question",
            "amber",
            "Outcome unknown",
            "no answer in time: the job may have run",
        ),
        ItemState.SKIPPED: ("shield", "grey", "Skipped", f"in a replay by {actor}"),
        ItemState.REFUSED: ("stopped", "red", "Not replayed", f"in a replay by {actor}"),
    }
    ending = endings.get(ItemState(item.state))
    if ending is not None and item.ended_at is not None:
        icon, tone, word, text = ending
        entries.append(
            Entry(
                item.ended_at,
                icon,
                tone,
                word,
                text,
                detail=_line(item.detail),
                operation_id=None if item.sent_at is not None else operation.pk,
                order=4,
            )
        )
    return entries


def published_by(origin: object) -> str:
    """Return "by web-2" of Celery's origin "gen1234@web-2"."""
    if not isinstance(origin, str) or not origin:
        return ""
    return f"by {_line(origin.rpartition('@')[2])}"


def _deleted(letter: DeadLetter) -> str:
    if letter.delete_after is None:
        return ""
    return f"deleted for good on {letter.delete_after.day} {letter.delete_after:%b, %H:%M} UTC"


def _error(death: Death) -> str:
    name = _line(death.error_type.rsplit(".", 1)[-1])
    text = _line(death.error)
    return f"{name}: {text}" if name and text else name or text


def _line(text: str) -> str:
    shown = visible(" ".join(text[:_LINE_LIMIT].split()), keep="")
    return f"{shown}…" if len(text) > _LINE_LIMIT else shown
