"""For a time nobody is told; alerts still fire and are seen."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet

from jobs import audit
from jobs.audit import Actor
from jobs.errors import AlertRefused
from jobs.models import AlertRule, Silence

LONGEST = timedelta(days=30)
WHY_LENGTH = 2_000


def silence(
    *, rule: AlertRule | None, until: datetime, actor: Actor, why: str = "", now: datetime
) -> Silence:
    """Tell nobody of a rule, or of any with ``rule=None``, from now until a moment.

    Raises:
        AlertRefused: when the moment is not ahead or too far ahead, or the reason is too long.
    """
    if until <= now:
        raise AlertRefused(
            f"A silence until {until:%Y-%m-%d %H:%M} UTC is over already. Choose a later time."
        )
    if until - now > LONGEST:
        raise AlertRefused(
            f"A silence lasts {LONGEST.days} days at most: what is quiet for longer is forgotten."
            " Disable the rule instead."
        )
    if len(why) > WHY_LENGTH:
        raise AlertRefused(f"The reason has {len(why):,} characters. Write at most {WHY_LENGTH:,}.")
    with transaction.atomic():
        made = Silence.objects.create(
            rule=rule,
            starts_at=now,
            ends_at=until,
            user_id=None if actor.user is None else actor.user.pk,
            actor=str(actor),
            why=why.strip(),
        )
        audit.record(
            actor=actor,
            action="silence",
            text=f"silenced {_name(rule)} until {until:%Y-%m-%d %H:%M} UTC",
            why=made.why,
            details={"silence": made.pk, "rule": None if rule is None else rule.pk},
            now=now,
        )
    return made


def end(*, silence: Silence, actor: Actor, now: datetime) -> Silence:
    """Tell people again from now on. What still fires is told at once.

    Raises:
        AlertRefused: when it is over already.
    """
    with transaction.atomic():
        changed = Silence.objects.filter(pk=silence.pk, ends_at__gt=now).update(ends_at=now)
        if not changed:
            raise AlertRefused("This silence is over already. Load the page again.")
        silence.ends_at = now
        audit.record(
            actor=actor,
            action="silence",
            text=f"ended the silence of {_name(silence.rule)}",
            details={"silence": silence.pk, "rule": silence.rule_id},
            now=now,
        )
    return silence


def current(*, now: datetime) -> QuerySet[Silence]:
    """Return the silences that count now, the one that ends last first; with their rules."""
    return (
        Silence.objects.filter(starts_at__lte=now, ends_at__gt=now)
        .select_related("rule")
        .order_by("-ends_at", "-id")
    )


def until_by_rule(*, now: datetime) -> dict[int | None, datetime]:
    """Return until when each rule is silenced; under None until when all are. One query."""
    found: dict[int | None, datetime] = {}
    counting = Q(starts_at__lte=now, ends_at__gt=now)
    for rule, until in Silence.objects.filter(counting).values_list("rule_id", "ends_at"):
        found[rule] = max(until, found.get(rule, until))
    return found


def silenced_until(rule_id: int, by_rule: dict[int | None, datetime]) -> datetime | None:
    """Return until when a rule is silenced, by its own silence or that of all."""
    moments = [by_rule[key] for key in (rule_id, None) if key in by_rule]
    return max(moments) if moments else None


def _name(rule: AlertRule | None) -> str:
    return "all alert rules" if rule is None else f"the alert rule “{rule.name}”"
