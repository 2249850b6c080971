"""Who acts on a page."""

from __future__ import annotations

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from jobs.audit import Actor


def actor_of(request: HttpRequest) -> Actor:
    """Return the person who is logged in.

    Raises:
        PermissionDenied: when nobody is; the middleware never lets such a request come here.
    """
    if isinstance(request.user, AnonymousUser):
        raise PermissionDenied("Log in first: what is done is recorded with a name.")
    return Actor(user=request.user)
