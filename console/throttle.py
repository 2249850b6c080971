"""Slows down who guesses passwords: each wrong one for a name from an address makes the next try wait longer.

It counts what the audit holds, so it is the same in every web process and after a restart. It is an
authentication backend, because Django's admin has a login page of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.utils import timezone

from jobs.core.cleaning import clean_name
from jobs.models import AuditEntry

# So many may be wrong before anybody waits: people mistype.
FREE_TRIES = 5
# From one address under whatever names, so that a list of names is not tried instead.
FREE_TRIES_OF_ADDRESS = 50
# After that 1 s, 2 s, 4 s and so on, up to this: nobody is locked out for long by somebody else.
LONGEST_WAIT = timedelta(seconds=60)
REMEMBERED = timedelta(minutes=15)
_NAME_LENGTH = 150
# More failures than this do not make the wait longer.
_ENTRIES_READ = 500


class LoginThrottle:
    """Stops a login that has to wait, before its password is looked at.

    It knows no users, so that nobody can be logged in by it.
    """

    def authenticate(self, request: HttpRequest | None, username: Any = None, **_: Any) -> None:
        """Let the next backend decide, or refuse.

        Raises:
            PermissionDenied: when this name and address have to wait.
        """
        if request is not None and seconds_to_wait(request, username, now=timezone.now()) > 0:
            raise PermissionDenied


def seconds_to_wait(request: HttpRequest, username: Any, *, now: datetime) -> float:
    """Return how long a login under this name from this address has to wait, 0 when it need not."""
    facts = attempt(request, username)
    # None from the future: a clock that was set back must lock nobody out.
    entries = AuditEntry.objects.filter(
        action__in=("login", "login_failed"),
        at__gt=now - REMEMBERED,
        at__lte=now,
        details__address=facts["address"],
    )
    # Newest first.
    found = list(entries.values_list("action", "at", "details__name")[:_ENTRIES_READ])
    of_name = _failures_since_login((action, at) for action, at, name in found if name == facts["name"])
    of_address = [at for action, at, _ in found if action == "login_failed"]
    return max(
        _wait(of_name, free=FREE_TRIES, now=now), _wait(of_address, free=FREE_TRIES_OF_ADDRESS, now=now)
    )


def attempt(request: HttpRequest | None, username: Any) -> dict[str, str]:
    """Return what the audit keeps of a try to log in, to count it."""
    address = "" if request is None else str(request.META.get("REMOTE_ADDR") or "")
    return {"name": clean_name(str(username or "")[:_NAME_LENGTH]), "address": clean_name(address, limit=64)}


def _failures_since_login(entries: Iterable[tuple[str, datetime]]) -> list[datetime]:
    failures = []
    for action, at in entries:
        if action == "login":
            break
        failures.append(at)
    return failures


def _wait(failures: list[datetime], *, free: int, now: datetime) -> float:
    """Return the seconds left; ``failures`` are newest first."""
    excess = len(failures) - free
    if excess < 0:
        return 0.0
    wait = min(timedelta(seconds=2 ** min(excess, 10)), LONGEST_WAIT)
    return max((failures[0] + wait - now).total_seconds(), 0.0)
