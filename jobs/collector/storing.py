"""Records → rows, a batch in one transaction, with a fixed number of statements."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef

from jobs import conf
from jobs.agent.wire import Record
from jobs.collector import rows
from jobs.collector.replays import ITEM_COLUMNS, LETTER_COLUMNS, Replayed, done_by_others, load
from jobs.collector.rows import Entry
from jobs.collector.writing import ids_of, insert, update
from jobs.core.masking import DEFAULT_KEYS
from jobs.core.words import GroupState, LetterState
from jobs.models import DeadLetter, Death, FailureGroup, LetterMessage, OperationEvent, OperationItem
from jobs.workers import known_parameters

logger = logging.getLogger(__name__)

# Lines about deaths in one operation's log; the letters themselves are listed by group.
DIED_EVENTS = 100


@dataclass(frozen=True, slots=True)
class Stored:
    """What a batch added. A record that was known already adds nothing."""

    letters: int = 0
    deaths: int = 0
    outcomes: int = 0


def store(records: Sequence[Record], *, now: datetime, uuids: Sequence[uuid.UUID | None] = ()) -> Stored:
    """Write a batch of checked records in one transaction; storing it again writes nothing.

    ``uuids`` are the ids new letters get, in the order of the records; without one a fresh one.
    """
    current = conf.current()
    ids = {id(record): given for record, given in zip(records, uuids, strict=False) if given is not None}
    entries: dict[tuple[str, int], Entry] = {}
    for record in records:
        if record.kind == "death":
            entry = rows.entry(record, now=now)
            entries.setdefault(entry.key, entry)
    outcomes = [record for record in records if record.kind == "outcome"]
    with transaction.atomic():
        for key in _known_deaths(entries):
            del entries[key]
        replayed = _load_replayed([*(e.record for e in entries.values()), *outcomes])
        group_ids = _groups(entries.values(), now=now)
        first: list[Entry] = []
        for entry in entries.values():
            again = replayed.get(_letter_hex(entry.record))
            if again is None or not again.is_about(entry.record):
                first.append(entry)
            else:
                again.died(entry, now=now, retention=current.resolved_retention)
                if again.letter.died_at == entry.died_at:
                    again.letter.group_id = group_ids[entry.fingerprint]
        counted = 0
        by_others = done_by_others(replayed.values(), outcomes)
        for record in outcomes:
            outcome_of = replayed.get(_letter_hex(record))
            if outcome_of is None or not outcome_of.is_about(record):
                logger.warning(
                    "An outcome names a letter that is not here, or a job that was no replay of it; it is dropped.",
                    extra={"letter": record.replay_of[:40], "job": record.task_id[:80]},
                )
                continue
            outcome_of.ended(
                record,
                now=now,
                retention=current.resolved_retention,
                done_by=by_others.get(record.replay_item or 0),
            )
            counted += 1
        known = _known_parameters(first)
        letters = [
            rows.new_letter(
                entry,
                group_id=group_ids[entry.fingerprint],
                now=now,
                masked_keys=(*DEFAULT_KEYS, *current.masked_keys),
                parameters=known.get(entry.task)
                if entry.record.parameters is None
                else entry.record.parameters,
                letter_id=ids.get(id(entry.record)) or uuid.uuid4(),
            )
            for entry in first
        ]
        insert(DeadLetter, letters)
        letter_ids = ids_of(DeadLetter, [letter["uuid"] for letter in letters])
        messages = [
            rows.new_message(entry, letter_id=letter_ids[letter["uuid"]])
            for entry, letter in zip(first, letters, strict=True)
        ]
        insert(LetterMessage, messages)
        deaths = [
            rows.new_death(entry, letter_id=letter_ids[letter["uuid"]], item_id=None, now=now)
            for entry, letter in zip(first, letters, strict=True)
        ]
        deaths += [
            rows.new_death(entry, letter_id=again.letter.pk, item_id=item.pk if item else None, now=now)
            for again in replayed.values()
            for entry, item in again.deaths
        ]
        insert(Death, deaths)
        if replayed:
            _write_replayed(replayed.values(), now=now)
    for record in records:
        if record.kind == "ending":
            logger.info(
                "A job ended without a death.",
                extra={"ending": record.reason, "job": record.task_id[:80], "task": record.task[:80]},
            )
    return Stored(letters=len(letters), deaths=len(deaths), outcomes=counted)


def _known_deaths(entries: Iterable[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return those of the keys that have their row already."""
    wanted = set(entries)
    if not wanted:
        return set()
    found = Death.objects.filter(publication_id__in={publication for publication, _ in wanted})
    return wanted.intersection(found.order_by().values_list("publication_id", "attempt"))


def _known_parameters(entries: Iterable[Entry]) -> dict[str, list[str]]:
    """Ask the other workers where one did not know its task: without names no argument is masked."""
    if all(entry.record.parameters is not None or entry.record.message is None for entry in entries):
        return {}
    return known_parameters()


def _letter_hex(record: Record) -> str:
    """Return the letter that a record says it replays, as 32 hexadecimal digits; else ""."""
    try:
        return uuid.UUID(record.replay_of).hex if len(record.replay_of) <= 40 else ""
    except ValueError:
        return ""


def _load_replayed(records: Iterable[Record]) -> dict[str, Replayed]:
    named = {name for record in records if (name := _letter_hex(record))}
    return load(named) if named else {}


def _groups(entries: Iterable[Entry], *, now: datetime) -> dict[str, int]:
    """Return the id of each entry's group; make those that are missing, note when they were seen."""
    seen: dict[str, list[Entry]] = {}
    for entry in entries:
        seen.setdefault(entry.fingerprint, []).append(entry)
    if not seen:
        return {}
    found = _locked_groups(seen)
    missing = [fingerprint for fingerprint in seen if fingerprint not in found]
    if missing:
        # Another collector may make the same ones at the same moment.
        FailureGroup.objects.bulk_create(
            [_new_group(fingerprint, seen[fingerprint]) for fingerprint in missing], ignore_conflicts=True
        )
        found |= _locked_groups(missing)
    _note_seen([(found[fingerprint], of_group) for fingerprint, of_group in seen.items()])
    return {fingerprint: group.pk for fingerprint, group in found.items()}


def _locked_groups(fingerprints: Iterable[str]) -> dict[str, FailureGroup]:
    groups = (
        FailureGroup.objects.select_for_update().filter(fingerprint__in=list(fingerprints)).order_by("pk")
    )
    return {group.fingerprint: group for group in groups}


def _new_group(fingerprint: str, entries: list[Entry]) -> FailureGroup:
    first = min(entries, key=lambda entry: entry.died_at)
    return FailureGroup(
        fingerprint=fingerprint,
        task=first.task,
        error_type=first.error_type,
        title=first.title,
        state=GroupState.NEW.value,
        first_seen_at=first.died_at,
        last_seen_at=max(entry.died_at for entry in entries),
    )


def _note_seen(groups: Iterable[tuple[FailureGroup, list[Entry]]]) -> None:
    seen, regressed = [], []
    for group, entries in groups:
        first = min(group.first_seen_at, *(entry.died_at for entry in entries))
        last = max(group.last_seen_at, *(entry.died_at for entry in entries))
        if (first, last) != (group.first_seen_at, group.last_seen_at):
            seen.append({"id": group.pk, "first_seen_at": first, "last_seen_at": last})
        # One that died before the group was resolved and is only collected now does not bring it back.
        after = [e.died_at for e in entries if group.resolved_at is None or e.died_at > group.resolved_at]
        if group.state == GroupState.RESOLVED and after:
            regressed.append(
                {"id": group.pk, "state": GroupState.REGRESSED.value, "regressed_at": min(after)}
            )
    update(FailureGroup, seen)
    update(FailureGroup, regressed)


def _write_replayed(replayed: Iterable[Replayed], *, now: datetime) -> None:
    replayed = list(replayed)
    update(
        DeadLetter,
        [
            {"id": again.letter.pk, **{name: getattr(again.letter, name) for name in LETTER_COLUMNS}}
            for again in replayed
            if again.is_changed
        ],
    )
    update(
        OperationItem,
        [
            {"id": item.pk, **{name: getattr(item, name) for name in ITEM_COLUMNS}}
            for again in replayed
            for item in again.items
            if item.pk in again.changed_items
        ],
    )
    _log_deaths(replayed, now=now)
    resolved = {again.letter.group_id for again in replayed if again.letter.state == LetterState.RESOLVED}
    if resolved:
        resolve_groups(resolved, now=now)


def resolve_groups(group_ids: Iterable[int], *, now: datetime) -> None:
    """Resolve groups whose last open letter was resolved; a muted one stays muted."""
    still_open = DeadLetter.objects.filter(
        group=OuterRef("pk"), state__in=[LetterState.DEAD, LetterState.REPLAYING]
    )
    FailureGroup.objects.filter(~Exists(still_open), pk__in=list(group_ids)).exclude(
        state__in=[GroupState.RESOLVED, GroupState.MUTED]
    ).update(state=GroupState.RESOLVED, resolved_at=now, resolved_by=None)


def _log_deaths(replayed: Iterable[Replayed], *, now: datetime) -> None:
    """Write a line into the operation's log for each letter that died again, the first DIED_EVENTS."""
    died = [
        (item.operation_id, again.letter, entry)
        for again in replayed
        for entry, item in again.deaths
        if item is not None
    ]
    if not died:
        return
    logged = Counter(
        OperationEvent.objects.filter(operation__in={operation for operation, _, _ in died}, kind="died")
        .order_by()
        .values_list("operation_id", flat=True)
    )
    events = []
    for operation_id, letter, entry in died:
        logged[operation_id] += 1
        if logged[operation_id] <= DIED_EVENTS:
            text = f"{letter.short_id} {entry.task} died again: {entry.title or entry.reason}"
            events.append(
                OperationEvent(
                    operation_id=operation_id,
                    at=entry.died_at,
                    actor=entry.worker or "a worker",
                    kind="died",
                    text=text[:500],
                    letter=letter,
                )
            )
    OperationEvent.objects.bulk_create(events)
