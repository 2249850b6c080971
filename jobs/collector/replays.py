"""What a record says about a replay: one letter, its items and their states, whatever order records come in.

"done" outranks "already done", that outranks "died", and that "unknown": a job that ran twice and was done
once is done, and a late record changes no newer replay. The final state is the same for every order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from jobs.agent.wire import Record
from jobs.collector.rows import Entry
from jobs.core.cleaning import clean_name
from jobs.core.words import ItemState, LedgerState, LetterState
from jobs.idempotency.reading import LedgerLine, states
from jobs.models import DeadLetter, Operation, OperationItem

OPEN = frozenset({ItemState.SENT.value})
# Items that were sent, so that their jobs can have ended.
_RANK = {
    ItemState.UNKNOWN.value: 1,
    ItemState.DIED.value: 2,
    ItemState.ALREADY_DONE.value: 3,
    ItemState.DONE.value: 4,
}
SENT = OPEN | _RANK.keys()
_WELL = frozenset({ItemState.ALREADY_DONE.value, ItemState.DONE.value})
_DETAILS = {
    "ignored": "It asked to be ignored.",
    "revoked": "It was revoked before it ran.",
    "terminated": "It was terminated while it ran.",
}


@dataclass(slots=True)
class Replayed:
    """A letter that records of this batch are about, with those of its items that were sent."""

    letter: DeadLetter
    items: list[OperationItem]
    # Deaths to add, with the item each belongs to.
    deaths: list[tuple[Entry, OperationItem | None]] = field(default_factory=list)
    changed_items: set[int] = field(default_factory=set)
    is_changed: bool = False

    def is_about(self, record: Record) -> bool:
        """Say whether the record is of a replay of this letter, and not of a job that copied its headers.

        Anybody on the broker can write a record, and a job may hand its headers on to others: what
        does not belong here must neither hide a death in another letter nor resolve one.
        """
        item = self._item(record)
        task_id = clean_name(record.task_id)
        if item is not None and item.task_id and task_id:
            return clean_name(item.task_id) == task_id
        was_sent = item is not None or self.letter.replays > 0
        return was_sent and clean_name(record.task) == self.letter.task

    def died(self, entry: Entry, *, now: datetime, retention: timedelta) -> None:
        """Add a death; the letter is dead again if it waited for this job."""
        item = self._item(entry.record)
        self.deaths.append((entry, item))
        self.is_changed = True
        letter = self.letter
        letter.deaths += 1
        if entry.died_at >= letter.died_at:
            letter.died_at = entry.died_at
            letter.reason = entry.reason
            letter.error_type = entry.error_type
            letter.error = entry.error
            letter.worker = entry.worker
        if item is not None:
            self._end(item, ItemState.DIED, "", now)
        # A resolved letter dies again too, unless an item that is done explains why it was resolved.
        if letter.state in (LetterState.REPLAYING, LetterState.RESOLVED):
            self._settle(now, retention)

    def ended(
        self, record: Record, *, now: datetime, retention: timedelta, done_by: LedgerLine | None = None
    ) -> None:
        """Note how a replayed job ended, when that was not a death.

        ``done_by`` is the ledger's line of the letter's key when it was not this job that did it.
        """
        item = self._item(record)
        is_done = record.reason in ("done", "ignored")
        if item is not None:
            detail = _DETAILS.get(record.reason, "")
            state = ItemState.DONE if is_done else ItemState.UNKNOWN
            if record.reason == "done" and done_by is not None:
                state = ItemState.ALREADY_DONE
                detail = f"Job {done_by.task_id[:100]} had done its idempotency key; nothing ran."
            self._end(item, state, detail, now)
        elif not self._open() and is_done and self.letter.state != LetterState.PURGED:
            # Its item is gone; the letter's own header says whose job it was.
            self._move(LetterState.RESOLVED, now, retention)
            return
        if self.letter.state == LetterState.REPLAYING or (is_done and self.letter.state == LetterState.DEAD):
            self._settle(now, retention)

    def _settle(self, now: datetime, retention: timedelta) -> None:
        """Decide what the letter is once no replay of it is under way any more."""
        if not self._open():
            self._move(LetterState.RESOLVED if self._done() else LetterState.DEAD, now, retention)

    def _item(self, record: Record) -> OperationItem | None:
        return next((item for item in self.items if item.pk == record.replay_item), None)

    def _open(self) -> bool:
        return any(item.state in OPEN for item in self.items)

    def _done(self) -> bool:
        return any(item.state in _WELL for item in self.items)

    def _end(self, item: OperationItem, state: ItemState, detail: str, now: datetime) -> None:
        if _RANK[state] <= _RANK.get(item.state, 0):
            return
        item.state, item.detail, item.ended_at = state.value, detail, now
        self.changed_items.add(item.pk)

    def _move(self, state: LetterState, now: datetime, retention: timedelta) -> None:
        letter = self.letter
        if letter.state == state:
            return
        letter.state, letter.state_changed_at = state.value, now
        letter.delete_after = now + retention if state == LetterState.RESOLVED else None
        self.is_changed = True


def load(letter_uuids: Iterable[str]) -> dict[str, Replayed]:
    """Read and lock the letters and their sent items, by the letter's uuid as the header has it."""
    letters = {
        letter.pk: letter
        for letter in DeadLetter.objects.select_for_update()
        .filter(uuid__in=set(letter_uuids))
        .order_by("pk")
        .defer("arguments_text")
    }
    items: dict[int, list[OperationItem]] = {pk: [] for pk in letters}
    for item in (
        OperationItem.objects.select_for_update().filter(letter__in=letters, state__in=SENT).order_by("pk")
    ):
        items[item.letter_id].append(item)
    return {letter.uuid.hex: Replayed(letter, items[letter.pk]) for letter in letters.values()}


def done_by_others(replayed: Iterable[Replayed], outcomes: Iterable[Record]) -> dict[int, LedgerLine]:
    """Return the ledger's lines of keys that another job had done, by the item whose job found that.

    One query a batch, none when no letter has a key; one more when there is such an item. An item whose
    arguments were edited has a key of its own, which nothing here knows.
    """
    sent = {item.pk: (again.letter, item) for again in replayed for item in again.items}
    asked = [
        sent[record.replay_item]
        for record in outcomes
        if record.reason == "done" and record.replay_item is not None and record.replay_item in sent
    ]
    lines = states((letter.task, letter.idempotency_key) for letter, _ in asked)
    found = {}
    for letter, item in asked:
        line = lines.get((letter.task, letter.idempotency_key))
        if line is None or line.state != LedgerState.DONE:
            continue
        is_own = clean_name(line.task_id) == clean_name(item.task_id or letter.task_id)
        # Under the same id: done before it was sent.
        is_earlier = (
            line.completed_at is not None and item.sent_at is not None and line.completed_at < item.sent_at
        )
        if not is_own or is_earlier:
            found[item.pk] = (line, item.operation_id)
    if not found:
        return {}
    edited = set(
        Operation.objects.filter(pk__in={operation for _, operation in found.values()})
        .exclude(edited_arguments=None)
        .values_list("pk", flat=True)
    )
    return {pk: line for pk, (line, operation) in found.items() if operation not in edited}


LETTER_COLUMNS: Sequence[str] = (
    *("state", "state_changed_at", "reason", "error_type", "error", "worker"),
    *("deaths", "died_at", "group_id", "delete_after"),
)
ITEM_COLUMNS: Sequence[str] = ("state", "detail", "ended_at")
