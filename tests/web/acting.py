"""People with roles, and pages as a person without JavaScript reads them."""

from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.auth.models import Group, Permission, User
from django.db.models import QuerySet
from django.test import Client

from jobs.models import AuditEntry
from jobs.roles import ADMIN


def person(login: str = "mara", *, role: str | None = ADMIN, lacking: str = "") -> User:
    """Make a user with a role of the product; ``lacking`` takes one permission's codename away."""
    user = User.objects.create_user(login, first_name=login.title(), last_name="Lindqvist")
    if role is not None:
        permissions = Group.objects.get(name=role).permissions.exclude(codename=lacking)
        user.user_permissions.set(permissions)
    return user


def grant(user: User, codename: str) -> None:
    """Give a user one more permission."""
    user.user_permissions.add(Permission.objects.get(codename=codename, content_type__app_label="jobs"))


def client_of(user: User, **options: Any) -> Client:
    """Return a browser without JavaScript in which the user is logged in."""
    client = Client(**options)
    client.force_login(user)
    return client


def text_of(response: Any) -> str:
    """Return what is read on a page: without tags, entities resolved, blanks collapsed."""
    body = response.content.decode()
    body = re.sub(r"<(style|title|svg|script)\b.*?</\1>", " ", body, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def field_of(response: Any, name: str) -> str:
    """Return the value of a hidden field."""
    found = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', response.content.decode())
    assert found is not None, f"the page has no field {name}"
    return html.unescape(found[1])


def form_actions(response: Any) -> list[str]:
    """Return the addresses that the page's forms post to."""
    return re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', response.content.decode())


def audited() -> QuerySet[AuditEntry]:
    """Return what was audited since people logged in."""
    return AuditEntry.objects.exclude(action="login")
