"""One message of the outbox: what becomes of it, what it went through, what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.utils.safestring import SafeString

from console import times
from console.presenters import arguments_view, letter_page, message_view, outbox_page
from console.presenters.arguments_view import ArgumentsView
from console.presenters.letter_life import Entry, published_by
from console.presenters.letter_story import Notice, when
from console.presenters.message_view import Fact
from console.presenters.plain import count_of, visible
from jobs.core.words import LetterState
from jobs.models import DeadLetter, OutboxMessage
from jobs.outbox import service
from jobs.outbox.service import OutboxView

_MASKED = SafeString('<span class="masked">masked</span>')


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Everything on the page of one message."""

    kind: str
    notes: list[Notice]
    history: list[Entry]
    has_days: bool
    can_retry: bool
    why_not_retry: str
    arguments: ArgumentsView
    facts: list[Fact]
    headers: list[tuple[str, str]]
    short_id: str


def read(message: OutboxMessage, *, now: datetime) -> MessagePage:
    """Read the page of one message."""
    kind = service.view_of(message, now=now)
    relay = outbox_page.relay()
    letter = service.letter_of(message)
    content = arguments_view.read(message)
    knowledge = letter_page.task_knowledge(message.task, now=now)
    history = _history(message, kind, now=now)
    return MessagePage(
        kind=kind.value,
        notes=_notes(message, kind, relay, letter, now=now),
        history=history,
        has_days=any(entry.at.date() != now.date() for entry in history),
        can_retry=kind in outbox_page.RETRIED_VIEWS,
        why_not_retry=_why_not(kind, letter),
        arguments=arguments_view.present(
            message, content, parameters=knowledge.parameters, masked_html=_MASKED
        ),
        facts=message_view.facts(message, None if content.error else content.embed),
        headers=message_view.header_rows(message.headers),
        short_id=message.uuid.hex[:8],
    )


def _notes(
    message: OutboxMessage,
    kind: OutboxView,
    relay: outbox_page.Relay,
    letter: DeadLetter | None,
    *,
    now: datetime,
) -> list[Notice]:
    notes = [_note(message, kind, letter, is_relay_running=relay.is_running, now=now)]
    if outbox_page.is_over(message):
        return notes
    if not relay.is_running:
        text = "No runops carries it out, so this message stays here. Start one: manage.py runops."
        notes.insert(0, Notice("red", "stopped", "The relay does not run.", text))
    if relay.trouble and kind != OutboxView.HELD:
        notes.append(outbox_page.trouble_of(relay, now=now))
    return notes


def _note(
    message: OutboxMessage,
    kind: OutboxView,
    letter: DeadLetter | None,
    *,
    is_relay_running: bool,
    now: datetime,
) -> Notice:
    # A full stop follows it.
    error = outbox_page.error_of(message).rstrip(".")
    match kind:
        case OutboxView.PUBLISHED:
            at = f" {when(message.published_at, now)}" if message.published_at else ""
            return Notice("green", "done", f"Sent{at}.", f"It left {outbox_page.how_sent(message)}.")
        case OutboxView.GAVE_UP:
            return _gave_up(message, letter, error, now=now)
        case OutboxView.HELD:
            return Notice(
                "blue",
                "hourglass",
                f"Held until {times.clock(message.available_at, now=now, seconds=True)} UTC.",
                "Its job starts so late that the broker would hand it out more than once. It waits here and is "
                "sent when it is due.",
            )
        case OutboxView.WAITING:
            next_words = f"It is sent {_next_words(message, is_relay_running=is_relay_running, now=now)}."
            return Notice("blue", "clock", "It waits to be sent.", next_words)
        case OutboxView.STUCK:
            return _stuck(message, error, is_relay_running=is_relay_running, now=now)


def _stuck(message: OutboxMessage, error: str, *, is_relay_running: bool, now: datetime) -> Notice:
    next_words = f"It is tried again {_next_words(message, is_relay_running=is_relay_running, now=now)}"
    if not message.attempts:
        due = times.ago(message.available_at, now=now).removesuffix(" ago")
        return Notice("amber", "warning", f"Due for {due} and not sent yet.", f"{next_words}.")
    times_words = "once" if message.attempts == 1 else count_of(message.attempts, "time")
    return Notice(
        "amber",
        "warning",
        f"The broker refused it {times_words}.",
        f"{error or 'It did not say why'}. {next_words}. After {outbox_page.max_attempts()} refusals it is given "
        "up and becomes a dead letter.",
    )


def _gave_up(message: OutboxMessage, letter: DeadLetter | None, error: str, *, now: datetime) -> Notice:
    headline = f"Given up after {count_of(message.attempts, 'refusal')}."
    why = f"{error or 'The broker did not say why'}."
    if has_expired(message) and message.expires_at is not None:
        headline = f"It expired {when(message.expires_at, now)}, before it could be sent."
        why = f"The broker's last words: {error}." if error else ""
    if letter is None:
        return Notice("red", "stopped", headline, f"{why} Its dead letter is not here any more.".strip())
    what = "It is a dead letter now: replay that once the cause is gone."
    if letter.state != LetterState.DEAD:
        what = f"It became a dead letter, which is {letter.state} now."
    return Notice(
        "green" if letter.state == LetterState.RESOLVED else "red",
        "done" if letter.state == LetterState.RESOLVED else "stopped",
        headline,
        f"{why} {what}".strip(),
        href=f"letter:{letter.uuid}",
        link_text=f"Open letter {letter.short_id}",
    )


def has_expired(message: OutboxMessage) -> bool:
    """Whether it was given up because its time had passed."""
    return message.expires_at is not None and message.expires_at <= message.available_at


def _next_words(message: OutboxMessage, *, is_relay_running: bool, now: datetime) -> str:
    if message.available_at > now:
        return times.ago(message.available_at, now=now)
    return "with the relay's next batch" if is_relay_running else "when a relay runs"


def _why_not(kind: OutboxView, letter: DeadLetter | None) -> str:
    """Say why there is nothing to retry; empty when there is, or when nobody would ask."""
    if kind == OutboxView.HELD:
        return "Its job would not start earlier: the broker would only hold it instead of the outbox."
    if kind != OutboxView.GAVE_UP:
        return ""
    return "It was given up: replay its dead letter instead." if letter else "It was given up."


def _history(message: OutboxMessage, kind: OutboxView, *, now: datetime) -> list[Entry]:
    headers = message.headers if isinstance(message.headers, dict) else {}
    to = f"to queue {visible(message.queue[:120], keep='')}" if message.queue else ""
    in_one = "" if kind == OutboxView.HELD else "in a transaction"
    entries = [
        Entry(
            message.created_at,
            "pencil",
            "plain",
            "Written",
            # What is held was written with a transaction or without one; the row does not tell.
            ", ".join(part for part in (in_one, published_by(headers.get("origin"))) if part),
            detail=to,
        )
    ]
    error = outbox_page.error_of(message)
    refused = f"after {count_of(message.attempts, 'refusal')}" if message.attempts else ""
    if kind == OutboxView.PUBLISHED and message.published_at is not None:
        entries.append(
            Entry(
                message.published_at,
                "done",
                "green",
                "Sent",
                " ".join(part for part in (outbox_page.how_sent(message), refused) if part),
            )
        )
    elif kind == OutboxView.GAVE_UP:
        why = "because it had expired" if has_expired(message) else refused
        entries.append(Entry(message.available_at, "stopped", "red", "Given up", why, detail=error))
    elif kind == OutboxView.HELD:
        entries.append(Entry(message.available_at, "hourglass", "plain", "Due", "then the relay sends it"))
    elif message.available_at > now:
        entries.append(
            Entry(
                message.available_at, "replay", "accent", "Next try", refused, detail=error if refused else ""
            )
        )
    return entries
