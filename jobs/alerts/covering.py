"""Which alerts need no mail of their own: while dead letters grow, that alert tells the same people of the same jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jobs.alerts import recipients, sending, telling
from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState
from jobs.models import Alert, AlertRule, Notification

# What these fire for while dead letters grow is told by that alert already: one outage, one mail.
COVERED = frozenset({AlertKind.GROUP_FAILING, AlertKind.FAILURE_RATE, AlertKind.RETRY_RATE})
# The key in the details of a covered alert: the id of the alert that tells of it.
COVERED_BY = "covered_by"
_TOLD = (NotificationState.SENT, NotificationState.WAITING)


def find(rule: AlertRule, growing: Sequence[Alert]) -> Alert | None:
    """Return an alert of growing letters that tells of what ``rule`` fires for to all that ``rule`` tells.

    ``growing`` fire and are not silenced. At most two queries, and none for a kind that is never covered.
    """
    if rule.kind not in COVERED:
        return None
    here = [each for each in growing if _watches_all(each.rule, rule)]
    if not here:
        return None
    wanted = {telling.EMAIL: _without_case(recipients.of(rule))}
    if rule.webhook_url:
        wanted[telling.WEBHOOK] = {rule.webhook_url}
    # Who is told by nobody gets a row that says so.
    if not all(wanted.values()):
        return None
    reached = _reached(here)
    return next(
        (
            each
            for each in here
            if all(people <= reached.get((each.pk, channel), set()) for channel, people in wanted.items())
        ),
        None,
    )


def lapsed(alerts: Iterable[Alert]) -> set[int]:
    """Return the ids of covered alerts that fire and of which nobody was told in the end, on one of their ways.

    The mail that was to tell of them was given up, or its alert was deleted. One query, or none.
    """
    covered = [
        alert for alert in alerts if alert.state == AlertState.FIRING and alert.details.get(COVERED_BY)
    ]
    if not covered:
        return set()
    told = set(
        Notification.objects.filter(
            alert__in={alert.details[COVERED_BY] for alert in covered}, state__in=_TOLD
        ).values_list("alert_id", "channel")
    )
    return {
        alert.pk
        for alert in covered
        if not all((alert.details[COVERED_BY], channel) in told for channel in telling.channels(alert.rule))
    }


def _watches_all(growing: AlertRule, rule: AlertRule) -> bool:
    return growing.task in {"", rule.task} and growing.queue in {"", rule.queue}


def _reached(alerts: Sequence[Alert]) -> dict[tuple[int | None, str], set[str]]:
    """Return to whom it was or will be said that alerts fire, by alert and channel."""
    found: dict[tuple[int | None, str], set[str]] = {}
    rows = Notification.objects.filter(
        alert__in=[alert.pk for alert in alerts],
        kind__in=[NotificationKind.FIRED, NotificationKind.REMINDER],
        state__in=_TOLD,
    ).only("alert", "channel", "state", "recipients", "body")
    has_server = sending.mail_is_set()
    for row in rows:
        people = found.setdefault((row.alert_id, row.channel), set())
        if row.channel != telling.EMAIL:
            people.update(map(str, row.recipients))
        elif row.state == NotificationState.SENT:
            # Of several some may have been refused for good.
            people |= _without_case(row.body.get("accepted") or row.recipients)
        elif has_server:
            people |= _without_case(row.recipients)
    return found


def _without_case(addresses: Iterable[object]) -> set[str]:
    return {str(address).lower() for address in addresses}
