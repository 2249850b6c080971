"""Reads the audit: newest first, by keyset, filtered by who, what, when and words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from jobs.models import AuditEntry

PAGE_SIZE = 50
# The names in the choice of actors; a person who acted longer ago can still be typed in the address.
_SHOWN_ACTORS = 100


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page of entries; ``older_than`` is the id to ask for the next with, None on the last."""

    entries: list[AuditEntry]
    older_than: int | None


def page(
    *,
    actor: str = "",
    action: str = "",
    text: str = "",
    since: datetime | None = None,
    older_than: int | None = None,
) -> AuditPage:
    """Return the entries that match, with their user, letter, group and operation."""
    found: QuerySet[AuditEntry] = AuditEntry.objects.select_related("user", "letter", "group", "operation")
    found = found.defer("letter__arguments_text")
    if actor:
        found = found.filter(actor=actor)
    if action:
        found = found.filter(action=action)
    if text:
        found = found.filter(Q(text__icontains=text) | Q(why__icontains=text))
    if since is not None:
        found = found.filter(at__gte=since)
    if older_than is not None:
        found = found.filter(pk__lt=older_than)
    entries = list(found.order_by("-pk")[: PAGE_SIZE + 1])
    more = len(entries) > PAGE_SIZE
    entries = entries[:PAGE_SIZE]
    return AuditPage(entries=entries, older_than=entries[-1].pk if more else None)


def actors() -> list[str]:
    """Return who has acted, by name."""
    return list(
        AuditEntry.objects.order_by("actor").values_list("actor", flat=True).distinct()[:_SHOWN_ACTORS]
    )


def actions() -> list[str]:
    """Return what has been done, by name."""
    return list(AuditEntry.objects.order_by("action").values_list("action", flat=True).distinct())
