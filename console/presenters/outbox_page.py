"""The outbox in words: is anything stuck, how old is the oldest, why, and what happens next."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models.functions import Now

from console import times
from console.presenters import figures
from console.presenters.letter_story import Notice
from console.presenters.plain import count_of, duration, either, short_task, visible
from jobs import conf, leases
from jobs.core.words import OutboxState
from jobs.models import Lease, OutboxMessage
from jobs.outbox import service
from jobs.outbox.service import OutboxOverview, OutboxView

# Only these lists hold what somebody can send now.
RETRIED_VIEWS = frozenset({OutboxView.WAITING, OutboxView.STUCK})
SEGMENTS: dict[OutboxView, str] = {
    OutboxView.WAITING: "Waiting",
    OutboxView.STUCK: "Stuck",
    OutboxView.HELD: "Held for later",
    OutboxView.GAVE_UP: "Given up",
    OutboxView.PUBLISHED: "Sent",
}
_FILTER_WORDS: dict[OutboxView, str] = {
    OutboxView.WAITING: "Messages to be sent as soon as the broker takes them, the longest waiting first.",
    OutboxView.STUCK: "Due for more than a minute, or refused by the broker. They are tried again by themselves.",
    OutboxView.HELD: "Their job starts so late that a broker would hand it out twice; sent when it is due.",
    OutboxView.GAVE_UP: "Refused too often, or expired before they could be sent. Each became a dead letter.",
    OutboxView.PUBLISHED: "Handed to the broker, newest first; kept for a while so that a lost job can be found.",
}
_WHEN_HEADS: dict[OutboxView, str] = {
    OutboxView.HELD: "Due",
    OutboxView.GAVE_UP: "Given up",
    OutboxView.PUBLISHED: "Sent",
}
_KEY_LIMIT = 80
_ERROR_LIMIT = 300
# The refusal that the page names is looked for among so many of what is stuck.
_LOOKED_AT = 20
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its unit, and one fact."""

    name: str
    figure: str
    unit: str
    fact: str
    href: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """One list of the outbox; ``count`` is None where nobody counts."""

    name: str
    word: str
    count: int | None
    href: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One message in a list. ``kind`` is a name in ``states.OUTBOX_MARKS``."""

    message: OutboxMessage
    kind: str
    key: str
    when_at: datetime
    about: str
    next_at: datetime | None
    next_words: str
    can_retry: bool
    is_dimmed: bool

    @property
    def short_id(self) -> str:
        """The first eight characters of the id."""
        return self.message.uuid.hex[:8]

    @property
    def version(self) -> str:
        """What a poll compares: the row is drawn anew when it changes."""
        message = self.message
        return f"{self.kind}.{message.attempts}.{int(message.available_at.timestamp())}"


@dataclass(frozen=True, slots=True)
class Relay:
    """The relays of all databases with an outbox; ``idle`` are those that nobody carries out.

    ``last_holder`` carried the first of those out until ``last_seen_at``. ``trouble`` keeps one that is
    carried out from sending, since ``trouble_since``.
    """

    idle: tuple[str, ...] = ()
    last_holder: str = ""
    last_seen_at: datetime | None = None
    trouble: str = ""
    trouble_since: datetime | None = None

    @property
    def is_running(self) -> bool:
        """Whether every one of them is carried out."""
        return not self.idle


@dataclass(frozen=True, slots=True)
class Status:
    """What stands above the list, and changes with each poll."""

    overview: OutboxOverview
    relay: Relay
    sentence: str
    notes: list[Notice]
    tiles: list[Tile]

    @property
    def retry_words(self) -> str:
        """The words of the button that asks for all that is stuck."""
        return f"Retry {self.overview.stuck:,} stuck…"


def relay() -> Relay:
    """Read from the leases whether a runops carries the relay out; the database's clock decides."""
    databases = {service.relay_duty_name(using): using for using in conf.current().outbox_databases}
    leases = {lease.duty: lease for lease in Lease.objects.filter(duty__in=databases)}
    held = Lease.objects.filter(duty__in=databases, expires_at__gt=Now()).exclude(holder="")
    running = set(held.values_list("duty", flat=True))
    idle = [duty for duty in databases if duty not in running]
    last = next((leases[duty] for duty in idle if duty in leases), None)
    troubled = next((leases[duty] for duty in databases if duty in running and leases[duty].trouble), None)
    return Relay(
        idle=tuple(databases[duty] for duty in idle),
        last_holder=last.holder if last is not None else "",
        last_seen_at=last.renewed_at if last is not None else None,
        trouble=troubled.trouble if troubled is not None else "",
        trouble_since=troubled.trouble_since if troubled is not None else None,
    )


def status(*, letters_href: str, addresses: dict[OutboxView, str], now: datetime) -> Status:
    """Read what stands above the list; ``addresses`` are those of the lists."""
    found, running = service.overview(now=now), relay()
    stuck = service.page(view=OutboxView.STUCK, limit=_LOOKED_AT, now=now).messages if found.stuck else []
    return Status(
        overview=found,
        relay=running,
        sentence=sentence(found, is_relay_sending=running.is_running and not running.trouble, now=now),
        notes=_notes(found, running, next((each for each in stuck if each.attempts), None), now=now),
        tiles=_tiles(found, letters_href=letters_href, addresses=addresses, now=now),
    )


def sentence(overview: OutboxOverview, *, is_relay_sending: bool, now: datetime) -> str:
    """Say what a tired person has to know first."""
    if not overview.pending:
        given_up = ""
        if overview.gave_up:
            was = "was" if overview.gave_up == 1 else "were"
            given_up = (
                f" {count_of(overview.gave_up, 'message')} {was} given up and {_given_up(overview.gave_up)}."
            )
        if overview.held:
            return (
                f"Nothing waits to be sent; {count_of(overview.held, 'message')} {_is(overview.held)} held "
                f"until {'its job is' if overview.held == 1 else 'their jobs are'} due.{given_up}"
            )
        if given_up:
            return f"Nothing waits to be sent.{given_up}"
        return "Nothing waits: every message of a committed transaction has been sent."
    wait = f"{count_of(overview.pending, 'message')} {'waits' if overview.pending == 1 else 'wait'}"
    if not overview.stuck:
        by = ". The relay sends what is due within a second" if is_relay_sending else ""
        return f"{wait} to be sent{by}."
    stuck = f"{wait}; {overview.stuck:,} of them {_is(overview.stuck)} stuck"
    if overview.stuck == overview.pending:
        stuck = f"{wait} and {_is(overview.stuck)} stuck"
    if overview.oldest_written_at is None:
        return f"{stuck}."
    the_oldest = "It" if overview.pending == 1 else "The oldest"
    return f"{stuck}. {the_oldest} was written {times.ago(overview.oldest_written_at, now=now)}."


def segments(
    overview: OutboxOverview, *, chosen: OutboxView, addresses: dict[OutboxView, str]
) -> list[Segment]:
    """Return the lists with their counts; what was sent is not counted."""
    counts = {
        OutboxView.WAITING: overview.pending,
        OutboxView.STUCK: overview.stuck,
        OutboxView.HELD: overview.held,
        OutboxView.GAVE_UP: overview.gave_up,
    }
    return [
        Segment(view.value, word, counts.get(view), addresses[view], view == chosen)
        for view, word in SEGMENTS.items()
    ]


def filter_words(view: OutboxView) -> str:
    """Say what a list holds."""
    return _FILTER_WORDS[view]


def when_head(view: OutboxView) -> str:
    """Return the head of the column of times."""
    return _WHEN_HEADS.get(view, "Written")


def about_head(view: OutboxView) -> str:
    """Return the head of the column that explains."""
    return {OutboxView.HELD: "Job starts", OutboxView.PUBLISHED: "How"}.get(view, "Last error")


def row(message: OutboxMessage, *, view: OutboxView, is_relay_running: bool, now: datetime) -> Row:
    """Put one message of the list ``view`` into words; dimmed when it has left that list."""
    kind = service.view_of(message, now=now)
    next_at, next_words = _next(message, kind, is_relay_running=is_relay_running, now=now)
    return Row(
        message=message,
        kind=kind.value,
        key=_second_line(message),
        when_at=_when(message, kind),
        about=about(message, kind, now=now),
        next_at=next_at,
        next_words=next_words,
        can_retry=kind in RETRIED_VIEWS,
        is_dimmed=kind != view and kind not in RETRIED_VIEWS,
    )


def about(message: OutboxMessage, kind: OutboxView, *, now: datetime) -> str:
    """Return why it waits, when its job starts, or how it was sent."""
    if kind == OutboxView.PUBLISHED:
        return how_sent(message)
    if kind == OutboxView.HELD and message.eta is not None:
        return f"{times.clock(message.eta, now=now, seconds=True)} UTC"
    return error_of(message)


def error_of(message: OutboxMessage) -> str:
    """Return the broker's last words, safe to read; empty when it has not answered with any."""
    return visible(" ".join(message.last_error[:_ERROR_LIMIT].split()), keep="")


def how_sent(message: OutboxMessage) -> str:
    """Say who sent it and how long after it was written."""
    by = "by the relay" if message.published_by == "relay" else "right after its commit"
    if message.published_at is None or message.published_at < message.created_at:
        return by
    waited = (message.published_at - message.created_at).total_seconds()
    return f"{by}, {duration(waited)} after it was written"


def _notes(
    overview: OutboxOverview, running: Relay, refused: OutboxMessage | None, *, now: datetime
) -> list[Notice]:
    notes = []
    if not running.is_running:
        notes.append(_relay_away(overview, running, now=now))
    if running.trouble:
        notes.append(trouble_of(running, now=now))
    elif refused is not None:
        notes.append(_why(refused))
    return notes


def trouble_of(running: Relay, *, now: datetime) -> Notice:
    """Say what keeps the relay from sending; it tries again by itself."""
    lasting = ""
    if running.trouble_since is not None:
        lasting = f" for {times.span(max(0.0, (now - running.trouble_since).total_seconds()))}"
    words = visible(leases.reason_of(running.trouble), keep="")
    return Notice(
        "amber",
        "warning",
        f"The relay has been unable to send{lasting}.",
        f"{words} What waits here is sent by itself once it can.",
    )


def _why(refused: OutboxMessage) -> Notice:
    """Say what the broker said of the first of what it refused."""
    task = visible(short_task(refused.task)[:_KEY_LIMIT], keep="") or "a message"
    often = "once" if refused.attempts == 1 else count_of(refused.attempts, "time")
    said = error_of(refused) or "It did not say why."
    return Notice("amber", "warning", f"The broker refused {task} {often}.", said)


def _relay_away(overview: OutboxOverview, running: Relay, *, now: datetime) -> Notice:
    last = ""
    if running.last_holder and running.last_seen_at is not None:
        holder = visible(running.last_holder[:120], keep="")
        last = f" {holder} did, and was last seen {times.ago(running.last_seen_at, now=now)}."
    of = ""
    if len(conf.current().outbox_databases) > 1:
        of = f" of the database {either(list(running.idle))}"
    headline, start = f"The relay{of} does not run.", " Start one: manage.py runops."
    if overview.pending or overview.held:
        return Notice(
            "red",
            "stopped",
            headline,
            f"No runops carries it out, so what waits here stays.{last}{start}",
        )
    return Notice(
        "amber",
        "warning",
        headline,
        "Messages still leave right after their commit, but what a crash or an outage of the broker leaves "
        f"behind would stay.{last}{start}",
    )


def _tiles(
    overview: OutboxOverview, *, letters_href: str, addresses: dict[OutboxView, str], now: datetime
) -> list[Tile]:
    figure, unit = figures.split(figures.seconds(overview.lag_seconds))
    since = overview.oldest_due_at
    return [
        Tile(
            "Waiting",
            f"{overview.pending:,}",
            "",
            "nothing is to be sent" if not overview.pending else "to be sent",
            addresses[OutboxView.WAITING],
        ),
        Tile(
            "Held for later",
            f"{overview.held:,}",
            "",
            "no job starts much later"
            if overview.next_held_at is None
            else f"next due {times.ago(overview.next_held_at, now=now)}",
            addresses[OutboxView.HELD],
        ),
        Tile(
            "Stuck",
            f"{overview.stuck:,}",
            "",
            "of those waiting" if overview.stuck else "nothing is refused or late",
            addresses[OutboxView.STUCK],
            "worse" if overview.stuck else "",
        ),
        Tile(
            "Lag",
            figure,
            unit,
            "nothing is late"
            if since is None
            else f"due since {times.clock(since, now=now, seconds=True)} UTC",
            tone="worse" if overview.lag_seconds >= _MINUTE.total_seconds() else "",
        ),
        Tile(
            "Given up",
            f"{overview.gave_up:,}",
            "",
            _given_up(overview.gave_up),
            addresses[OutboxView.GAVE_UP],
        ),
    ]


def _next(
    message: OutboxMessage, kind: OutboxView, *, is_relay_running: bool, now: datetime
) -> tuple[datetime | None, str]:
    if kind == OutboxView.PUBLISHED:
        return None, "–"
    if kind == OutboxView.GAVE_UP:
        return None, "none"
    if message.available_at > now:
        return message.available_at, ""
    return None, "now" if is_relay_running else "when the relay runs"


def _when(message: OutboxMessage, kind: OutboxView) -> datetime:
    if kind == OutboxView.PUBLISHED and message.published_at is not None:
        return message.published_at
    if kind in {OutboxView.HELD, OutboxView.GAVE_UP}:
        return message.available_at
    return message.created_at


@dataclass(frozen=True, slots=True)
class Foot:
    """How many are shown of how many, and how many there are now; None where nobody counts."""

    number: int
    total: int | None
    total_now: int | None
    href: str = ""

    @property
    def words(self) -> str:
        """Say what the table holds."""
        if self.total is None:
            return f"{count_of(self.number, 'message')} on this page"
        return f"{self.number:,} of {self.total:,}"

    @property
    def has_changed(self) -> bool:
        """Whether the list is longer or shorter than when the page was drawn."""
        return self.total_now is not None and self.total_now != self.total


@dataclass(frozen=True, slots=True)
class Empty:
    """What would be in an empty list, why it is not, and the step that helps."""

    icon: str
    headline: str
    text: str
    href: str = ""
    link: str = ""


def empty(view: OutboxView, found: Status, *, text: str, path: str) -> Empty:
    """Say why a list is empty."""
    if text:
        shown = visible(text[:_KEY_LIMIT], keep="")
        return Empty(
            "search",
            "No message here is of that name",
            f"No task, queue, job id or idempotency key in this list is {shown}, as a whole. "
            "A message that was sent is in the list Sent for a while; a job that died is a dead letter.",
            path,
            "Show all that wait",
        )
    headline, why = {
        OutboxView.WAITING: (
            "Nothing waits",
            "A job that is enqueued inside a transaction is written here with it, and leaves within a second of "
            "its commit. It stays only while the broker does not take it.",
        ),
        OutboxView.STUCK: (
            "Nothing is stuck",
            "A message that is due for more than a minute, or that the broker has refused, appears here with "
            "the reason.",
        ),
        OutboxView.HELD: (
            "Nothing is held",
            "A job that starts further ahead than half the broker's visibility timeout waits here until then, "
            "because the broker would hand it out twice. None does.",
        ),
        OutboxView.GAVE_UP: (
            "Nothing was given up",
            f"A message that the broker refuses {max_attempts()} times appears here, and becomes a dead letter "
            "with the reason publish failed.",
        ),
        OutboxView.PUBLISHED: (
            "Nothing was sent lately",
            "What leaves the outbox is kept here for a while. No job was enqueued inside a transaction in that "
            "time: those enqueued outside of one go to the broker directly.",
        ),
    }[view]
    return Empty("done" if view in RETRIED_VIEWS else "upload", headline, why)


def rows_of(ids: Sequence[uuid.UUID]) -> list[OutboxMessage]:
    """Return the messages with these ids, without what no list shows."""
    return [
        message
        for using in conf.current().outbox_databases
        for message in OutboxMessage.objects.using(using).filter(uuid__in=ids).defer(*service.HEAVY_COLUMNS)
    ]


def retry_sentences(overview: OutboxOverview, *, is_relay_running: bool) -> list[str]:
    """Say what a retry of all that is stuck does."""
    who = "The relay" if is_relay_running else "The relay, which does not run now,"
    return [
        f"{who} sends {'it' if overview.stuck == 1 else 'them'} with its next batch, not after the pause of each.",
        f"A message that the broker refuses once more counts one more try; after {max_attempts()} it is given up "
        "and becomes a dead letter. An outage of the broker counts no try.",
    ]


def _second_line(message: OutboxMessage) -> str:
    text = message.idempotency_key or message.task_id
    shown = visible(text[:_KEY_LIMIT], keep="")
    return f"{shown}…" if len(text) > _KEY_LIMIT else shown


def _given_up(number: int) -> str:
    if not number:
        return "no message was refused too often"
    return "became a dead letter" if number == 1 else "became dead letters"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def max_attempts() -> int:
    """Return after how many refusals a message is given up."""
    return conf.current().outbox_max_attempts


def is_over(message: OutboxMessage) -> bool:
    """Whether nothing more happens to it here."""
    return message.state != OutboxState.PENDING
