"""What people write down about failures: notes, owners, mutes, resolutions, and who looked at masked values.

Each function makes one change in one transaction, writes one audit entry, and refuses with a
``TriageRefused`` when the row is not in the state that the caller saw.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from jobs import audit
from jobs.audit import Actor
from jobs.core.words import GroupState
from jobs.errors import JobsError
from jobs.models import AuditEntry, DeadLetter, FailureGroup, Operation, OperationEvent

# The column of a group's note; longer texts belong behind its link.
GROUP_NOTE_LIMIT = 500
# A note on a letter is kept for ever in the audit.
LETTER_NOTE_LIMIT = 4_000
# One line of an operation's log.
OPERATION_NOTE_LIMIT = 490
LINK_LIMIT = 500


class TriageRefused(JobsError):
    """A triage action cannot be done as asked; nothing was changed."""


def note_letter(*, letter: DeadLetter, text: str, actor: Actor, now: datetime) -> AuditEntry:
    """Write a note on a letter. Notes are audit entries: never changed, never deleted.

    Raises:
        TriageRefused: when the text is empty or longer than 4,000 characters.
    """
    text = _checked_note(text, limit=LETTER_NOTE_LIMIT, noun=f"letter {letter.short_id}")
    return audit.record(
        actor=actor,
        action="note",
        text=f"wrote a note on letter {letter.short_id}",
        why=text,
        letter=letter,
        group=letter.group,
        now=now,
    )


def note_operation(*, operation: Operation, text: str, actor: Actor, now: datetime) -> OperationEvent:
    """Write a note into an operation's log, also after it has ended.

    Raises:
        TriageRefused: when the text is empty or longer than 490 characters.
    """
    text = _checked_note(text, limit=OPERATION_NOTE_LIMIT, noun=f"operation {operation.pk}")
    with transaction.atomic():
        event = OperationEvent.objects.create(
            operation=operation, at=now, actor=str(actor), kind="note", text=f"Note: {text}"
        )
        audit.record(
            actor=actor,
            action="note",
            text=f"wrote a note on operation {operation.pk}",
            why=text,
            operation=operation,
            now=now,
        )
    return event


def assign_group(
    *, group: FailureGroup, owner: AbstractBaseUser | None, actor: Actor, now: datetime
) -> FailureGroup:
    """Give a group to a person, or to nobody with ``owner=None``.

    Raises:
        TriageRefused: when it already belongs to that person or to nobody.
    """
    if owner is None and group.owner_id is None:
        raise TriageRefused(f"Cannot unassign group {_name(group)}: nobody owns it. Nothing was changed.")
    if owner is not None and group.owner_id == owner.pk:
        raise TriageRefused(
            f"Cannot assign group {_name(group)}: {person(owner)} owns it already. Choose somebody else."
        )
    text = (
        f"took the owner off {_name(group)}" if owner is None else f"gave {_name(group)} to {person(owner)}"
    )
    return _change(group, action="assign", text=text, actor=actor, now=now, owner=owner)


def mute_group(
    *, group: FailureGroup, until: datetime | None, actor: Actor, now: datetime, why: str = ""
) -> FailureGroup:
    """Mute a group until a moment, or until somebody unmutes it with ``until=None``.

    Raises:
        TriageRefused: when it is muted already, or ``until`` is not in the future.
    """
    _require(group, action="mute", states=set(GroupState) - {GroupState.MUTED}, advice="Unmute it first.")
    if until is not None and until <= now:
        raise TriageRefused(
            f"Cannot mute group {_name(group)} until {until:%Y-%m-%d %H:%M} UTC: that time has passed. "
            "Choose a later one."
        )
    text = f"muted {_name(group)}" + (f" until {until:%Y-%m-%d %H:%M} UTC" if until else "")
    changes: dict[str, Any] = {"state": GroupState.MUTED, "muted_until": until}
    if why.strip():
        changes["note"] = _checked_note(why, limit=GROUP_NOTE_LIMIT, noun=f"group {_name(group)}")
    return _change(group, action="mute", text=text, actor=actor, now=now, why=why.strip(), **changes)


def unmute_group(*, group: FailureGroup, actor: Actor, now: datetime) -> FailureGroup:
    """Take the mute off a group; it becomes known.

    Raises:
        TriageRefused: when it is not muted.
    """
    _require(group, action="unmute", states={GroupState.MUTED}, advice="It needs no unmuting.")
    return _change(
        group,
        action="unmute",
        text=f"unmuted {_name(group)}",
        actor=actor,
        now=now,
        state=GroupState.KNOWN,
        muted_until=None,
    )


def resolve_group(*, group: FailureGroup, actor: Actor, now: datetime) -> FailureGroup:
    """Say that the cause is mended. The next death in the group makes it regressed.

    Raises:
        TriageRefused: when it is resolved already.
    """
    _require(
        group,
        action="resolve",
        states=set(GroupState) - {GroupState.RESOLVED},
        advice="The next death of one of its jobs opens it again.",
    )
    return _change(
        group,
        action="resolve",
        text=f"resolved {_name(group)}",
        actor=actor,
        now=now,
        state=GroupState.RESOLVED,
        resolved_at=now,
        resolved_by=actor.user,
        muted_until=None,
    )


def know_group(*, group: FailureGroup, actor: Actor, now: datetime) -> FailureGroup:
    """Mark a new, regressed or resolved group as known.

    Raises:
        TriageRefused: when it is known already, or muted.
    """
    _require(
        group,
        action="mark known",
        states={GroupState.NEW, GroupState.REGRESSED, GroupState.RESOLVED},
        advice="Unmute it instead." if group.state == GroupState.MUTED else "It needs no marking.",
    )
    return _change(
        group,
        action="know",
        text=f"marked {_name(group)} as known",
        actor=actor,
        now=now,
        state=GroupState.KNOWN,
    )


def note_group(*, group: FailureGroup, text: str, actor: Actor, now: datetime) -> FailureGroup:
    """Set the one note of a group; an empty text takes it away.

    Raises:
        TriageRefused: when the text is longer than 500 characters, or nothing would change.
    """
    text = text.strip()
    if text:
        text = _checked_note(text, limit=GROUP_NOTE_LIMIT, noun=f"group {_name(group)}")
    if text == group.note:
        raise TriageRefused(f"Cannot change the note of group {_name(group)}: it says that already.")
    line = f"wrote a note on {_name(group)}" if text else f"took the note off {_name(group)}"
    return _change(group, action="note", text=line, why=text, actor=actor, now=now, note=text)


def link_group(*, group: FailureGroup, link: str, actor: Actor, now: datetime) -> FailureGroup:
    """Set the link of a group, for instance its issue; an empty one takes it away.

    Raises:
        TriageRefused: when the link is not an http or https address, or nothing would change.
    """
    link = link.strip()
    if link:
        _check_link(link, group)
    if link == group.link:
        raise TriageRefused(f"Cannot change the link of group {_name(group)}: it is that one already.")
    line = f"linked {_name(group)} to {link[:300]}" if link else f"took the link off {_name(group)}"
    return _change(group, action="link", text=line, actor=actor, now=now, link=link)


def reveal(*, letter: DeadLetter, actor: Actor, now: datetime) -> AuditEntry:
    """Write down that somebody looks at the masked arguments of a letter. The caller then shows them once."""
    return audit.record(
        actor=actor,
        action="reveal",
        text=f"revealed the masked arguments of letter {letter.short_id}",
        letter=letter,
        now=now,
    )


def person(user: AbstractBaseUser) -> str:
    """Return the name by which pages call a user: the full name, or the login."""
    full_name: str = user.get_full_name() if hasattr(user, "get_full_name") else ""
    return full_name.strip() or user.get_username()


def _name(group: FailureGroup) -> str:
    """Return a group's title and task, short enough for an audit line."""
    title = (group.title or group.error_type or "failures")[:120]
    return f"“{title}” in {group.task[:120]}" if group.task else f"“{title}”"


def _checked_note(text: str, *, limit: int, noun: str) -> str:
    text = text.strip()
    if not text:
        raise TriageRefused(f"Cannot write a note on {noun}: it is empty. Write at least one word.")
    if len(text) > limit:
        raise TriageRefused(
            f"Cannot write a note on {noun}: it has {len(text):,} characters, the limit is {limit:,}. "
            "Shorten it."
        )
    # PostgreSQL refuses NUL in text; nobody types one on purpose.
    return text.replace("\x00", "")


def _check_link(link: str, group: FailureGroup) -> None:
    shown = link[:80]
    if len(link) > LINK_LIMIT:
        raise TriageRefused(
            f"Cannot link group {_name(group)}: the address has {len(link):,} characters, the limit is "
            f"{LINK_LIMIT}. Use a shorter one."
        )
    try:
        parts = urlsplit(link)
        # A port that is no number raises only when it is read.
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or any(character.isspace() or not character.isprintable() for character in link):
        raise TriageRefused(
            f"Cannot link group {_name(group)} to {shown!r}: it is not a web address. "
            "Write one that begins with https:// or http://."
        )


def _require(group: FailureGroup, *, action: str, states: set[GroupState], advice: str) -> None:
    if group.state not in states:
        raise TriageRefused(f"Cannot {action} group {_name(group)}: it is {group.state}. {advice}")


def _change(
    group: FailureGroup,
    *,
    action: str,
    text: str,
    actor: Actor,
    now: datetime,
    why: str = "",
    **changes: Any,
) -> FailureGroup:
    """Write the columns if the group still has the state that the caller saw, and the audit entry with them."""
    with transaction.atomic():
        # The collector may have turned it into regressed since the page was drawn.
        count = FailureGroup.objects.filter(pk=group.pk, state=group.state).update(**changes)
        if not count:
            raise TriageRefused(
                f"Cannot {'mark known' if action == 'know' else action} group {_name(group)}: it is no longer "
                f"{group.state}. Look at it again first."
            )
        group.refresh_from_db()
        audit.record(actor=actor, action=action, text=text, why=why, group=group, now=now)
    return group
