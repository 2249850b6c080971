"""The filter of the audit: who, what, and words of the text or the reason."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from console.forms.search import address
from jobs.core.moments import MomentError, parse_moment


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What the address asks for; ``error`` says which time cannot be read."""

    actor: str
    action: str
    text: str
    since_typed: str
    since: datetime | None
    error: str

    def address(self, path: str, /, **extra: str) -> str:
        """Return the audit's address with this filter."""
        return address(
            path, "", actor=self.actor, action=self.action, text=self.text, since=self.since_typed, **extra
        )

    @property
    def is_set(self) -> bool:
        """Whether anything is left out."""
        return bool(self.actor or self.action or self.text or self.since_typed)


def read(parameters: dict[str, str], *, now: datetime) -> AuditFilter:
    """Read the filter of an address."""
    typed = parameters.get("since", "").strip()[:40]
    since, error = None, ""
    if typed:
        try:
            since = parse_moment(typed, now=now)
        except MomentError as wrong:
            error = f"“{typed}” {wrong}"
    return AuditFilter(
        actor=parameters.get("actor", "").strip()[:255],
        action=parameters.get("action", "").strip()[:32],
        text=parameters.get("text", "").strip()[:200],
        since_typed=typed,
        since=since,
        error=error,
    )
