"""Duties that one process at a time carries out, however many run.

Expiry is decided by the database's clock alone, so clocks of machines may differ. Every change is a
conditional UPDATE: of two that reach for an expired lease, one changes the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import DateTimeField, ExpressionWrapper, F, Q, QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Now

from jobs.core.cleaning import clean_line
from jobs.errors import LeaseLost
from jobs.models import Lease

# As many characters as the columns hold, of a trouble and of a remark.
WORDS_LENGTH = 500


class HeldLease:
    """A duty that this process holds until ``seconds`` after its last renewal.

    ``token`` grows with each holder. Threads may share the object; each uses its own connection.
    """

    def __init__(self, *, duty: str, holder: str, token: int, seconds: float) -> None:
        self.duty = duty
        self.holder = holder
        self.token = token
        self.seconds = seconds
        self.is_lost = False
        # What keeps the duty from being done although its rounds succeed; its thread tells it as a trouble.
        self.hindrance = ""
        # The remark that its row has, as far as this process wrote it.
        self._remark = ""

    def check(self) -> None:
        """Check in the database that the duty is still held; call it before each change.

        Raises:
            LeaseLost: when it expired or somebody else holds it.
        """
        if self.is_lost or not self._mine().filter(expires_at__gt=Now()).exists():
            self.is_lost = True
            raise LeaseLost(
                f"{self.holder} no longer holds the duty {self.duty} (token {self.token})."
                " Whoever holds it now goes on; nothing is to be undone."
            )

    def renew(self) -> bool:
        """Move the expiry forward; return False when the duty is somebody else's now."""
        renewed = self._mine().update(renewed_at=Now(), expires_at=_from_now(self.seconds))
        self.is_lost = not renewed
        return bool(renewed)

    def release(self) -> None:
        """Give the duty up at once, so that a standby need not wait for the expiry."""
        self._mine().update(holder="", expires_at=Now(), trouble="", trouble_since=None, remark="")
        self.is_lost = True

    def tell_trouble(self, trouble: str) -> None:
        """Write down for the pages what keeps the duty from being done; "" when it works again."""
        text = clean_line(trouble, limit=WORDS_LENGTH)
        self._mine().update(trouble=text, trouble_since=Now() if text else None)

    def tell_remark(self, remark: str) -> None:
        """Write down for the pages what should be known of the duty although it is done; "" when nothing is.

        Asks nothing of the database when the row says so already. A trouble of the duty stands beside it.
        """
        text = clean_line(remark, limit=WORDS_LENGTH)
        if text != self._remark:
            self._mine().update(remark=text)
            self._remark = text

    def _mine(self) -> QuerySet[Lease]:
        return Lease.objects.filter(duty=self.duty, holder=self.holder, token=self.token)


def acquire(*, duty: str, holder: str, seconds: float) -> HeldLease | None:
    """Take a duty that is free or has expired; return None while somebody else holds it.

    Its own holder's name does not help a process that lost it: the token grows for everyone.
    """
    if not Lease.objects.filter(duty=duty).exists():
        Lease.objects.bulk_create([Lease(duty=duty)], ignore_conflicts=True)
    is_free = Q(expires_at=None) | Q(holder="") | Q(expires_at__lte=Now())
    with transaction.atomic():
        taken = Lease.objects.filter(is_free, duty=duty).update(
            holder=holder,
            token=F("token") + 1,
            acquired_at=Now(),
            renewed_at=Now(),
            expires_at=_from_now(seconds),
            trouble="",
            trouble_since=None,
            remark="",
        )
        if not taken:
            return None
        token = Lease.objects.values_list("token", flat=True).get(duty=duty)
    return HeldLease(duty=duty, holder=holder, token=token, seconds=seconds)


@dataclass(frozen=True, slots=True)
class Undone:
    """A duty that is not done, since when: ``trouble`` keeps its holder from it, or it has none."""

    duty: str
    trouble: str
    since: datetime | None

    @property
    def reason(self) -> str:
        """What people should read of the trouble."""
        return reason_of(self.trouble)


def reason_of(trouble: str) -> str:
    """Return a trouble without the kind that it begins with, mostly the name of an error's class."""
    return trouble.partition(": ")[2] or trouble


def undone(duties: Sequence[str]) -> list[Undone]:
    """Return which of the duties are not done now, in their order; the database's clock decides."""
    rows = {lease.duty: lease for lease in Lease.objects.filter(duty__in=duties)}
    held = set(
        Lease.objects.filter(duty__in=duties, expires_at__gt=Now())
        .exclude(holder="")
        .values_list("duty", flat=True)
    )
    found = []
    for duty in duties:
        row = rows.get(duty)
        if duty not in held:
            found.append(Undone(duty, "", row.renewed_at if row is not None else None))
        elif row is not None and row.trouble:
            found.append(Undone(duty, row.trouble, row.trouble_since))
    return found


def remark_of(duty: str) -> str:
    """Return what should be known of a duty although it is done, "" when nothing is. One query."""
    told = Lease.objects.filter(duty=duty, expires_at__gt=Now()).values_list("remark", flat=True)
    return told.first() or ""


def _from_now(seconds: float) -> Combinable:
    return ExpressionWrapper(Now() + timedelta(seconds=seconds), output_field=DateTimeField())
