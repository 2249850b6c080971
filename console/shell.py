"""What every page needs: the environment, the theme, the count in the side bar."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest
from django.utils import timezone

from console import console_health, windows
from jobs.alerts.reading import firing_count
from jobs.core.words import LetterState
from jobs.models import DeadLetter

THEMES = ("light", "dark")
# Which link of the side bar a page belongs to, by how its URL's name begins.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "overview": ("overview",),
    "audit": ("audit",),
    "operations": ("operation",),
    "outbox": ("outbox",),
    "queues": ("queue",),
    "jobs": ("job", "task"),
    "workers": ("worker",),
    "alerts": ("alert",),
    "letters": ("letter", "group", "replay", "purge", "restore", "export"),
}
_COUNT_KEY = "console.dead-count"
# Counting a million rows takes a tenth of a second; nobody sees whether such a number is 5 s old.
_COUNT_CACHED_ABOVE = 50_000
_COUNT_CACHED_SECONDS = 5


def dead_count() -> int:
    """Count the letters that are dead now."""
    known: int | None = cache.get(_COUNT_KEY)
    if known is not None:
        return known
    count = DeadLetter.objects.filter(state=LetterState.DEAD).count()
    if count > _COUNT_CACHED_ABOVE:
        cache.set(_COUNT_KEY, count, _COUNT_CACHED_SECONDS)
    return count


def context(request: HttpRequest) -> dict[str, Any]:
    """Add the shell's values to every template; the count is taken only where it is shown."""
    theme = request.COOKIES.get("theme", "")
    match = request.resolver_match
    name = match.url_name if match is not None and match.app_name == "console" else ""
    return {
        "environment": getattr(settings, "ENVIRONMENT_NAME", ""),
        "theme": theme if theme in THEMES else "",
        "dead_count": dead_count,
        "firing_count": firing_count,
        "console_health": console_health.health,
        "section": _section(name or ""),
        # What links add to keep the time window.
        "window_query": windows.of(request).query,
        "now": timezone.now(),
    }


def _section(name: str) -> str:
    """Return which link of the side bar is the current one."""
    for section, beginnings in _SECTIONS.items():
        if name.startswith(beginnings):
            return section
    return ""
