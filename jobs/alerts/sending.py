"""Sends what is to be told. A row is claimed, sent, and marked; each of these is a statement of its own.

At least once: where a process dies or stands still between the whole of a mail and its mark, it is sent again
when the claim has run out, with the same Message-ID, by which most readers of mail show it once. A process that
goes on after that sends nothing more of it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import format_datetime
from smtplib import SMTPException, SMTPRecipientsRefused

from django.conf import settings
from django.core.mail import EmailMultiAlternatives
from django.core.mail.backends.base import BaseEmailBackend
from django.db import transaction
from django.db.models import F, Q

from jobs.alerts import mails, smtp, webhooks
from jobs.alerts.cutoffs import Cutoff
from jobs.alerts.telling import EMAIL
from jobs.alerts.webhooks import WebhookFailed
from jobs.core import alert_words, backoff
from jobs.core.cleaning import clean_line
from jobs.core.words import NotificationState
from jobs.models import Notification

logger = logging.getLogger(__name__)

# Longer than one sending can take: MAILING_SECONDS, and the last recipient and the goodbye after it.
CLAIM = timedelta(seconds=120)
# For connecting and logging in to a mail server, and again for each recipient: who answers a byte each nine
# seconds must not keep everybody else from being told.
MAIL_SECONDS = 30.0
GOODBYE_SECONDS = 5.0
# A server that is slow gets the rest of a mail's recipients later: the claim must not run out meanwhile.
MAILING_SECONDS = 50.0
# After so long a round is over, though more is due: it shows that it lives before it counts as stuck.
ROUND_SECONDS = 30.0
BASE_SECONDS = 5.0
CAP_SECONDS = 300.0
GIVE_UP_AFTER = timedelta(hours=24)
# A mail that is later than this says so.
LATE_AFTER = timedelta(minutes=1)
MOST_AT_ONCE = 20
# By so much the clocks of two machines may differ.
CLOCK_TOLERANCE = timedelta(minutes=5)
ERROR_LENGTH = 2_000
NO_MAIL_SERVER = "No mail server is set, so nobody was mailed. Set EMAIL_URL."
_DUMMY = "django.core.mail.backends.dummy.EmailBackend"


class _TookTooLong(Exception):
    """A mail server was cut off, or the claim ran out; whoever has not got the mail gets it at the next try."""

    def __str__(self) -> str:
        return f"The mail server had not taken it after {MAIL_SECONDS:g} s."


@dataclass(frozen=True, slots=True)
class Sent:
    """What one round came to."""

    sent: int = 0
    failed: int = 0
    gave_up: int = 0


def mail_is_set() -> bool:
    """Say whether there is a mail server, as far as the settings tell."""
    return bool(settings.EMAIL_BACKEND) and settings.EMAIL_BACKEND != _DUMMY


def send_due(
    *, uniform: Callable[[float, float], float], clock: Callable[[], datetime], check: Callable[[], None]
) -> Sent:
    """Send what is due, at most MOST_AT_ONCE; ``check`` raises when somebody else does it now.

    Each time the one that was tried least, the oldest of these: what has just been written waits for one call of
    a webhook that hangs, and not for all of them.
    """
    sent = failed = gave_up = 0
    began = time.monotonic()
    for number in range(MOST_AT_ONCE):
        if number and time.monotonic() - began > ROUND_SECONDS:
            break
        now = clock()
        due = Notification.objects.filter(_free(now), _due(now), state=NotificationState.WAITING)
        pk = due.order_by("attempts", "due_at", "pk").values_list("pk", flat=True).first()
        if pk is None:
            break
        check()
        until = time.monotonic() + CLAIM.total_seconds()
        row = claim(pk, now=clock())
        if row is None:
            continue
        error = _send(row, until=until, now=clock())
        if not error:
            sent += 1
            continue
        failed += 1
        gave_up += _put_off(row, error, uniform=uniform, now=clock())
    return Sent(sent, failed, gave_up)


def _free(now: datetime) -> Q:
    """Whose claim ran out, or was made by a clock that was ahead."""
    return (
        Q(claimed_until=None) | Q(claimed_until__lte=now) | Q(claimed_until__gt=now + CLAIM + CLOCK_TOLERANCE)
    )


def _due(now: datetime) -> Q:
    """What is due, or is to wait longer than anything does: a clock that was ahead must hold nothing back."""
    longest = timedelta(seconds=CAP_SECONDS) + CLOCK_TOLERANCE
    return Q(due_at__lte=now) | Q(due_at__gt=now + longest)


def claim(pk: int, *, now: datetime) -> Notification | None:
    """Take a row for CLAIM; None when somebody else has it, or it was sent or given up meanwhile."""
    taken = Notification.objects.filter(_free(now), pk=pk, state=NotificationState.WAITING).update(
        claimed_until=now + CLAIM, attempts=F("attempts") + 1
    )
    # Its rule may be deleted at any moment, and it with it; and who stands still here may lose the claim.
    return Notification.objects.filter(pk=pk, claimed_until=now + CLAIM).first() if taken else None


def _send(row: Notification, *, until: float, now: datetime) -> str:
    """Send a claimed row and mark it; return why it was not sent, "" when it was.

    Nothing of it is sent after ``until`` by ``time.monotonic``: somebody else may do it then.
    """
    try:
        if row.channel == EMAIL:
            error, note = _mail(row, until=until, now=now)
        else:
            webhooks.call(str(row.recipients[0]), _late_body(row, now=now), until=until)
            error = note = ""
    except (WebhookFailed, _TookTooLong) as failure:
        return str(failure)
    except (OSError, SMTPException) as failure:
        return f"The mail server did not take it: {_said(failure)}"
    except Exception as failure:
        # A backend of the project's own may raise anything; one mail that cannot be made must not stop the others.
        logger.exception("notification %s cannot be sent", row.pk)
        return f"It could not be sent: {_said(failure)}"
    if error:
        return error
    # Whoever has claimed it meanwhile: it is sent.
    Notification.objects.filter(pk=row.pk, state=NotificationState.WAITING).update(
        state=NotificationState.SENT, sent_at=now, claimed_until=None, last_error=note[:ERROR_LENGTH]
    )
    # The address of a webhook is a secret.
    to = ", ".join(map(str, row.recipients)) if row.channel == EMAIL else "its webhook"
    logger.info("sent %s to %s: %s", row.kind, to, row.subject)
    return ""


def _mail(row: Notification, *, until: float, now: datetime) -> tuple[str, str]:
    """Mail each recipient that has not got it; return why it is to be tried again, and what else to tell.

    The server says yes or no of each by itself, so that one wrong address keeps nobody else from being told
    and nobody gets it twice. An address that is refused for good is not tried again once others have it.
    """
    if not mail_is_set():
        return NO_MAIL_SERVER, ""
    accepted = set(row.body.get("accepted", []))
    # Each try begins with the next one: a server that hangs over one address must keep nobody else from being told.
    first = (row.attempts - 1) % len(row.recipients)
    left = [each for each in row.recipients[first:] + row.recipients[:first] if each not in accepted]
    refused, for_good = [], True
    began = time.monotonic()
    with _connected(until) as (connection, cutoff):
        for number, recipient in enumerate(left):
            if number and time.monotonic() - began > MAILING_SECONDS:
                words = f"The mail server is slow: {len(left) - number:,} of {len(row.recipients):,} have yet to get it."
                return words, ""
            cutoff.allow(MAIL_SECONDS)
            if cutoff.is_over:
                raise _TookTooLong
            try:
                _message(row, recipient, connection, now=now).send()
            except SMTPException as error:
                if cutoff.is_over:
                    raise _TookTooLong from None
                refused.append(f"{recipient}: {_said(error)}")
                for_good = for_good and _is_for_good(error)
                continue
            accepted.add(recipient)
            if len(row.recipients) > 1:
                _keep_accepted(row, recipient)
    words = f"The mail server refused {'; '.join(refused)}" if refused else ""
    return ("", words) if accepted and for_good else (words, "")


@contextlib.contextmanager
def _connected(until: float) -> Iterator[tuple[BaseEmailBackend, Cutoff]]:
    """Connect to the mail server; what bounds that bounds the rest too, and is over at ``until``."""
    with contextlib.closing(Cutoff(seconds=MAIL_SECONDS, until=until)) as cutoff:
        connection = smtp.backend(cutoff)
        try:
            try:
                connection.open()
            except OSError:
                if cutoff.has_ended_connection:
                    raise _TookTooLong from None
                raise
            yield connection, cutoff
        finally:
            cutoff.allow(GOODBYE_SECONDS)
            # What it has taken is taken, however it says goodbye.
            with contextlib.suppress(SMTPException):
                connection.close()


def _keep_accepted(row: Notification, recipient: str) -> None:
    """Write down who has got it, beside what somebody wrote who sent it while this process stood still."""
    with transaction.atomic():
        kept = Notification.objects.select_for_update().filter(pk=row.pk).first()
        if kept is not None:
            kept.body = {**kept.body, "accepted": sorted({*kept.body.get("accepted", []), recipient})}
            kept.save(update_fields=["body"])


def _is_for_good(error: SMTPException) -> bool:
    """Say whether a server refused an address and will do so again: its code begins with 5."""
    if not isinstance(error, SMTPRecipientsRefused):
        return False
    return all(code >= 500 for code, _ in error.recipients.values())


class _Message(EmailMultiAlternatives):
    """A mail that names all who get it, and goes to one of them."""

    envelope: str = ""

    def recipients(self) -> list[str]:
        """Return to whom this copy goes."""
        return [self.envelope]


def _message(
    row: Notification, recipient: str, connection: BaseEmailBackend, *, now: datetime
) -> EmailMultiAlternatives:
    text, html = row.text, row.html
    if note := _lateness(row, now=now):
        text, html = mails.with_lateness(text, html, note=note)
    headers = {
        "Message-ID": row.message_id,
        "Date": format_datetime(now),
        # Asks for no holiday reply: RFC 3834.
        "Auto-Submitted": "auto-generated",
        "X-Auto-Response-Suppress": "All",
    }
    if references := row.body.get("references"):
        headers["References"] = headers["In-Reply-To"] = references
    message = _Message(
        subject=row.subject, body=text, to=list(row.recipients), connection=connection, headers=headers
    )
    message.envelope = recipient
    message.attach_alternative(html, "text/html")
    return message


def _lateness(row: Notification, *, now: datetime) -> str:
    late = now - row.created_at
    if late < LATE_AFTER:
        return ""
    at = alert_words.clock(row.created_at, now=now)
    words = alert_words.duration(late.total_seconds())
    return f"This comes {words} late: it could not be sent before. Its figures are those of {at} UTC."


def _late_body(row: Notification, *, now: datetime) -> dict[str, object]:
    note = _lateness(row, now=now)
    return {**row.body, "text": f"{row.body['text']}\n{note}"} if note else dict(row.body)


def _put_off(
    row: Notification, error: str, *, uniform: Callable[[float, float], float], now: datetime
) -> bool:
    """Give a row back to be tried later, or give it up; return which."""
    is_over = now - row.created_at >= GIVE_UP_AFTER or error == NO_MAIL_SERVER
    wait = backoff.delay(
        row.attempts, base=BASE_SECONDS, factor=2.0, cap=CAP_SECONDS, uniform=uniform, at_least=1.0
    )
    values: dict[str, object] = {"last_error": error[:ERROR_LENGTH], "claimed_until": None}
    if is_over:
        values["state"] = NotificationState.GAVE_UP
    else:
        values["due_at"] = now + timedelta(seconds=wait)
    # Not the claim of somebody who took it while this process stood still.
    mine = Notification.objects.filter(pk=row.pk, state=NotificationState.WAITING, attempts=row.attempts)
    if not mine.update(**values):
        logger.warning("notification %s is sent by somebody else; here it failed: %s", row.pk, error)
        return False
    logger.error(
        "notification %s (%s) was not sent%s: %s",
        row.pk,
        row.subject,
        ", and is given up" if is_over else "",
        error,
    )
    return is_over


def _said(error: Exception) -> str:
    """Say an error in one line. smtplib raises tuples of codes and bytes."""
    text = str(error) or type(error).__name__
    return clean_line(text, limit=500)
