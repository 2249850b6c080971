"""Writes logins, logouts and refused logins to the audit."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.http import HttpRequest
from django.utils import timezone

from console import throttle
from jobs import audit
from jobs.audit import Actor


def connect() -> None:
    """Listen to Django's signals, once."""
    user_logged_in.connect(_logged_in, dispatch_uid="console.sign_ins.in")
    user_logged_out.connect(_logged_out, dispatch_uid="console.sign_ins.out")
    user_login_failed.connect(_failed, dispatch_uid="console.sign_ins.failed")


def _logged_in(sender: Any, *, user: AbstractBaseUser, request: HttpRequest | None = None, **_: Any) -> None:
    audit.record(
        actor=Actor(user=user),
        action="login",
        text="logged in",
        details=throttle.attempt(request, user.get_username()),
        now=timezone.now(),
    )


def _logged_out(sender: Any, *, user: AbstractBaseUser | None, **_: Any) -> None:
    if user is not None:
        audit.record(actor=Actor(user=user), action="logout", text="logged out", now=timezone.now())


def _failed(
    sender: Any, *, credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any
) -> None:
    now = timezone.now()
    attempt = throttle.attempt(request, credentials.get("username"))
    # One that had to wait was no try, and must not fill the audit.
    if request is not None and throttle.seconds_to_wait(request, attempt["name"], now=now) > 0:
        return
    name = attempt["name"]
    audit.record(
        actor=Actor(name="somebody unknown"),
        action="login_failed",
        text=f"tried to log in as {name or 'nobody'} and was refused",
        details=attempt,
        now=now,
    )
