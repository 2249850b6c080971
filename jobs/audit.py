"""The audit: what operators did, written in the transaction that does it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobs.core.cleaning import clean_name
from jobs.models import AuditEntry, DeadLetter, FailureGroup, Operation

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser

TEXT_LENGTH = 500


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a user of the pages, or a script by the name it runs under.

    ``name`` is kept as text wherever the actor is recorded, so that it survives the user.
    """

    user: AbstractBaseUser | None = None
    name: str = ""

    def __str__(self) -> str:
        """Return the name, or the user's full name or login."""
        if self.name:
            # A command line may have bytes that are no text.
            return clean_name(self.name)
        if self.user is None:
            return "somebody unknown"
        full_name = getattr(self.user, "get_full_name", str)()
        return (full_name or self.user.get_username())[:255]


def record(
    *,
    actor: Actor,
    action: str,
    text: str,
    why: str = "",
    letter: DeadLetter | None = None,
    group: FailureGroup | None = None,
    operation: Operation | None = None,
    details: dict[str, Any] | None = None,
    now: datetime,
) -> AuditEntry:
    """Write one entry; call it inside the transaction of what it records.

    ``text`` reads after the actor's name: "replayed 4,295 dead letters". It is cut to 500 characters.
    """
    return AuditEntry.objects.create(
        at=now,
        user_id=None if actor.user is None else actor.user.pk,
        actor=str(actor),
        action=action,
        text=text[:TEXT_LENGTH],
        why=why,
        letter=letter,
        group=group,
        operation=operation,
        details=details or {},
    )
