"""What pages and commands read of the outbox and do with it. Over all of JOBS_OUTBOX_DATABASES at once."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import Count, Min, Q, QuerySet

from jobs import audit, conf
from jobs.audit import Actor
from jobs.core.words import OutboxState
from jobs.errors import OutboxRefused
from jobs.models import DeadLetter, OutboxMessage

# A row that is due for longer is stuck: the relay comes by every half second.
STUCK_AFTER = timedelta(seconds=60)
# Columns that no list shows and that make a row ten times as big.
HEAVY_COLUMNS = ("body", "headers", "properties", "declare")


class OutboxView(StrEnum):
    """A list of the page. ``STUCK`` is a part of ``WAITING``."""

    WAITING = "waiting"
    STUCK = "stuck"
    HELD = "held"
    GAVE_UP = "gave_up"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class OutboxOverview:
    """The outbox in numbers.

    ``pending`` waits to be published, ``stuck`` is that part of it which is due for more than a minute or
    was refused by the broker, ``held`` waits for its ETA and is not in ``pending``. ``lag_seconds`` is the
    age of the oldest row that is due, 0 when none is; ``oldest_due_at`` since when that is.
    ``next_held_at`` is when the first held row is published, ``oldest_written_at`` when the oldest that is
    not held was written: a refused row is due anew after each try, but no younger.
    """

    pending: int = 0
    stuck: int = 0
    held: int = 0
    gave_up: int = 0
    lag_seconds: float = 0.0
    oldest_due_at: datetime | None = None
    next_held_at: datetime | None = None
    oldest_written_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """One page of a list, without HEAVY_COLUMNS; ``total`` counts the list, None for the published."""

    messages: list[OutboxMessage]
    next_cursor: str | None
    total: int | None


@dataclass(frozen=True, slots=True)
class Retried:
    """What a retry did: how many rows the relay sends now, and why the others are not sent."""

    count: int
    refused: tuple[str, ...] = ()


def relay_duty_name(using: str) -> str:
    """Return the duty of runops under which the outbox of a database is relayed."""
    return "relay" if using == DEFAULT_DB_ALIAS else f"relay-{using}"[:64]


def overview(*, now: datetime) -> OutboxOverview:
    """Count; two queries a database, which read what waits and what was given up, never what was published."""
    counted = [_overview_of(using, now) for using in conf.current().outbox_databases]
    due = [each.oldest_due_at for each in counted if each.oldest_due_at is not None]
    held = [each.next_held_at for each in counted if each.next_held_at is not None]
    written = [each.oldest_written_at for each in counted if each.oldest_written_at is not None]
    oldest = min(due, default=None)
    return OutboxOverview(
        pending=sum(each.pending for each in counted),
        stuck=sum(each.stuck for each in counted),
        held=sum(each.held for each in counted),
        gave_up=sum(each.gave_up for each in counted),
        lag_seconds=0.0 if oldest is None else (now - oldest).total_seconds(),
        oldest_due_at=oldest,
        next_held_at=min(held, default=None),
        oldest_written_at=min(written, default=None),
    )


def view_of(message: OutboxMessage, *, now: datetime) -> OutboxView:
    """Return the list that shows a row: STUCK before WAITING."""
    if message.state == OutboxState.PUBLISHED:
        return OutboxView.PUBLISHED
    if message.state == OutboxState.GAVE_UP:
        return OutboxView.GAVE_UP
    if message.attempts or message.available_at <= now - STUCK_AFTER:
        return OutboxView.STUCK
    is_held = message.claim is None and message.eta is not None and message.available_at > now
    return OutboxView.HELD if is_held else OutboxView.WAITING


def page(
    *,
    view: OutboxView | str = OutboxView.WAITING,
    text: str = "",
    cursor: str | None = None,
    limit: int = 50,
    now: datetime,
) -> OutboxPage:
    """Return one page by keyset: what waits longest first, what was given up or published newest first.

    ``text`` is a task, a queue, a job's id or an idempotency key, whole.

    Raises:
        OutboxRefused: when the view or the cursor is not known.
    """
    view = _view(view)
    key = None if cursor is None else _read_cursor(cursor)
    column, newest_first = _order(view)
    found: list[tuple[tuple[datetime, int, int], OutboxMessage]] = []
    total = 0
    for number, using in enumerate(conf.current().outbox_databases):
        rows = OutboxMessage.objects.using(using).filter(_condition(view, now))
        if text:
            rows = rows.filter(Q(task=text) | Q(queue=text) | Q(task_id=text) | Q(idempotency_key=text))
        if view != OutboxView.PUBLISHED:
            total += rows.count()
        if key is not None:
            rows = rows.filter(_beyond(key, number, column, newest_first=newest_first))
        ordering = (f"-{column}", "-id") if newest_first else (column, "id")
        found += [
            ((getattr(row, column), number, row.pk), row)
            for row in rows.order_by(*ordering).defer(*HEAVY_COLUMNS)[: limit + 1]
        ]
    found.sort(key=lambda pair: pair[0], reverse=newest_first)
    shown = found[:limit]
    return OutboxPage(
        messages=[row for _, row in shown],
        next_cursor=_write_cursor(shown[-1][0]) if len(found) > limit else None,
        total=None if view == OutboxView.PUBLISHED else total,
    )


def find(message_id: uuid.UUID) -> OutboxMessage | None:
    """Return the row with this id, whole, from whichever database has it."""
    for using in conf.current().outbox_databases:
        if found := OutboxMessage.objects.using(using).filter(uuid=message_id).first():
            return found
    return None


def letter_of(message: OutboxMessage) -> DeadLetter | None:
    """Return the dead letter that a given-up row became; None when it was deleted since."""
    if message.state != OutboxState.GAVE_UP or not message.task_id:
        return None
    return DeadLetter.objects.filter(task_id=message.task_id).order_by("-died_at", "-id").first()


def retry_now(*, ids: Sequence[uuid.UUID], actor: Actor, now: datetime) -> Retried:
    """Let the relay take these rows with its next batch instead of after their backoff; audited.

    Raises:
        OutboxRefused: when none of them waits for that; says why of the first.
    """
    if not ids:
        raise OutboxRefused("Cannot retry: no outbox message was named. Tick at least one.")
    refused: list[str] = []
    named: dict[str, list[int]] = {}
    for message_id in ids:
        message = find(message_id)
        if message is None:
            refused.append(
                f"Cannot retry outbox message {str(message_id)[:8]}: it is not here any more."
                " It was published, and deleted since."
            )
        elif why := _why_not_now(message, now):
            refused.append(why)
        else:
            named.setdefault(str(message._state.db), []).append(message.pk)
    count = _make_due(named, actor=actor, now=now) if named else 0
    if not count:
        raise OutboxRefused(
            refused[0] if refused else "Nothing was retried: all of them were published meanwhile."
        )
    return Retried(count=count, refused=tuple(refused))


def retry_all_now(*, actor: Actor, now: datetime) -> Retried:
    """Let the relay take every stuck row with its next batch; audited.

    Raises:
        OutboxRefused: when nothing is stuck.
    """
    count = _make_due(dict.fromkeys(conf.current().outbox_databases), actor=actor, now=now)
    if not count:
        raise OutboxRefused("Nothing was retried: no outbox message is stuck. There is nothing to do.")
    return Retried(count=count)


def _overview_of(using: str, now: datetime) -> OutboxOverview:
    is_held = _condition(OutboxView.HELD, now)
    rows = OutboxMessage.objects.using(using)
    counts = rows.filter(state=OutboxState.PENDING).aggregate(
        all=Count("id"),
        held=Count("id", filter=is_held),
        stuck=Count("id", filter=_condition(OutboxView.STUCK, now)),
        oldest=Min("available_at", filter=Q(available_at__lte=now)),
        next_held=Min("available_at", filter=is_held),
        written=Min("created_at", filter=~is_held),
    )
    return OutboxOverview(
        pending=counts["all"] - counts["held"],
        stuck=counts["stuck"],
        held=counts["held"],
        gave_up=rows.filter(state=OutboxState.GAVE_UP).count(),
        oldest_due_at=counts["oldest"],
        next_held_at=counts["next_held"],
        oldest_written_at=counts["written"],
    )


def _condition(view: OutboxView, now: datetime) -> Q:
    pending = Q(state=OutboxState.PENDING)
    # A claim means that the transaction which wrote the row, or a relay, is about to send it.
    is_held = Q(claim=None, attempts=0, eta__isnull=False, available_at__gt=now)
    match view:
        case OutboxView.WAITING:
            return pending & ~is_held
        case OutboxView.STUCK:
            return pending & (Q(available_at__lte=now - STUCK_AFTER) | Q(attempts__gt=0))
        case OutboxView.HELD:
            return pending & is_held
        case OutboxView.GAVE_UP:
            return Q(state=OutboxState.GAVE_UP)
        case OutboxView.PUBLISHED:
            return Q(state=OutboxState.PUBLISHED, published_at__isnull=False)


def _view(name: OutboxView | str) -> OutboxView:
    try:
        return OutboxView(name)
    except ValueError:
        raise OutboxRefused(
            f"{str(name)[:80]!r} is no list of the outbox. Use one of {', '.join(OutboxView)}."
        ) from None


def _order(view: OutboxView) -> tuple[str, bool]:
    """Return the column that orders a list, one with an index for it, and whether the newest comes first."""
    if view == OutboxView.PUBLISHED:
        return "published_at", True
    return "available_at", view == OutboxView.GAVE_UP


Key = tuple[datetime, int, int]


def _beyond(key: Key, number: int, column: str, *, newest_first: bool) -> Q:
    """Match what comes after ``key`` in (moment, number of the database, id)."""
    moment, key_number, pk = key
    beyond, from_there = ("lt", "lte") if newest_first else ("gt", "gte")
    later = Q(**{f"{column}__{beyond}": moment})
    if number == key_number:
        return Q(**{f"{column}__{from_there}": moment}) & (later | Q(**{f"pk__{beyond}": pk}))
    is_after = number < key_number if newest_first else number > key_number
    return Q(**{f"{column}__{from_there}": moment}) if is_after else later


def _write_cursor(key: Key) -> str:
    moment, number, pk = key
    return f"{moment.astimezone(UTC):%Y%m%dT%H%M%S%f}.{number}.{pk}"


def _read_cursor(cursor: str) -> Key:
    try:
        moment, number, pk = cursor.split(".")
        at = datetime.strptime(moment, "%Y%m%dT%H%M%S%f").replace(tzinfo=UTC)
        key = at, int(number), int(pk)
        if not (0 <= key[1] < 1_000 and 0 < key[2] < 2**63):
            raise ValueError(cursor)
    except ValueError:
        raise OutboxRefused(
            f"{cursor[:80]!r} is not a place in this list. Start again from its first page."
        ) from None
    return key


def _why_not_now(message: OutboxMessage, now: datetime) -> str:
    """Say why a row cannot be sent at once; empty when it can."""
    name = f"outbox message {message.uuid.hex[:8]}"
    if message.state == OutboxState.PUBLISHED:
        return f"Cannot retry {name}: it is published as job {message.task_id}. Nothing is to be done."
    if message.state == OutboxState.GAVE_UP:
        letter = letter_of(message)
        if letter is None:
            return f"Cannot retry {name}: it was given up, and its dead letter is not here any more."
        return (
            f"Cannot retry {name}: it was given up and is dead letter {letter.short_id} now."
            " Replay that letter instead."
        )
    if view_of(message, now=now) == OutboxView.HELD:
        return (
            f"Cannot send {name} now: its job starts at {message.eta:%Y-%m-%d %H:%M:%S} UTC, and a broker"
            " hands a job that waits so long out more than once. Leave it to the relay."
        )
    if message.claim is not None and message.available_at > now:
        return f"Cannot retry {name}: it is being sent at this moment. Look again in a few seconds."
    return ""


def _make_due(named: dict[str, list[int]] | dict[str, None], *, actor: Actor, now: datetime) -> int:
    """Make rows due that nobody is sending; all that are stuck where no ids are named."""
    free = Q(state=OutboxState.PENDING) & (Q(claim=None) | Q(available_at__lte=now))
    count = 0
    with transaction.atomic():
        for using, ids in named.items():
            rows: QuerySet[OutboxMessage] = OutboxMessage.objects.using(using).filter(free)
            if ids is None:
                rows = rows.filter(_condition(OutboxView.STUCK, now))
            else:
                rows = rows.filter(pk__in=ids).exclude(_condition(OutboxView.HELD, now))
            count += rows.update(available_at=now)
        if count:
            noun = "outbox message" if count == 1 else "outbox messages"
            text = f"asked for {count:,} {noun} to be sent at once"
            audit.record(actor=actor, action="retry", text=text, now=now)
    return count
