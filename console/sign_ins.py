"""Writes logins, logouts and refused logins to the audit."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.utils import timezone

from jobs import audit
from jobs.audit import Actor
from jobs.core.cleaning import clean_name

_NAME_LIMIT = 150


def connect() -> None:
    """Listen to Django's signals, once."""
    user_logged_in.connect(_logged_in, dispatch_uid="console.sign_ins.in")
    user_logged_out.connect(_logged_out, dispatch_uid="console.sign_ins.out")
    user_login_failed.connect(_failed, dispatch_uid="console.sign_ins.failed")


def _logged_in(sender: Any, *, user: AbstractBaseUser, **_: Any) -> None:
    audit.record(actor=Actor(user=user), action="login", text="logged in", now=timezone.now())


def _logged_out(sender: Any, *, user: AbstractBaseUser | None, **_: Any) -> None:
    if user is not None:
        audit.record(actor=Actor(user=user), action="logout", text="logged out", now=timezone.now())


def _failed(sender: Any, *, credentials: dict[str, Any], **_: Any) -> None:
    name = clean_name(str(credentials.get("username", ""))[:_NAME_LIMIT])
    audit.record(
        actor=Actor(name="somebody unknown"),
        action="login_failed",
        text=f"tried to log in as {name or 'nobody'} and was refused",
        now=timezone.now(),
    )
