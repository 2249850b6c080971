"""The login that ``make run`` makes, once."""

from __future__ import annotations

import secrets

from django.contrib.auth.models import Group, User
from django.db import transaction

USERNAME = "operator"
ROLE = "Admin"


def create_first_login() -> str | None:
    """Create the first user, with the role Admin and access to the schedules, and return its password.

    Return None when any user exists. Not a superuser: what it may do is what the role Admin may.
    """
    with transaction.atomic():
        if User.objects.exists():
            return None
        password = secrets.token_urlsafe(12)
        user = User.objects.create_user(USERNAME, password=password, is_staff=True)
        user.groups.add(Group.objects.get(name=ROLE))
    return password
