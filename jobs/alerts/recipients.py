"""Who is told."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db.models import Q

from jobs import conf
from jobs.models import AlertRule
from jobs.roles import ADMIN

MOST = 50


def of(rule: AlertRule) -> list[str]:
    """Return the addresses of a rule: its own, else ALERT_EMAILS, else those of the active administrators.

    Administrators are superusers and members of the group Admin. One query, or none.
    """
    return _distinct(rule.recipients) or _distinct(conf.current().alert_emails) or administrators()


def administrators() -> list[str]:
    """Return the addresses of the active administrators that have one, the longest known first."""
    found = (
        get_user_model()
        .objects.filter(Q(is_superuser=True) | Q(groups__name=ADMIN), is_active=True)
        .order_by("pk")
        .values_list("email", flat=True)
    )
    return _distinct(found)


def _distinct(addresses: Iterable[str]) -> list[str]:
    """Leave out what is no address, and what is there already in other letters."""
    kept: dict[str, str] = {}
    for each in addresses:
        address = str(each).strip()
        try:
            validate_email(address)
        except ValidationError:
            continue
        kept.setdefault(address.lower(), address)
    return list(kept.values())[:MOST]
