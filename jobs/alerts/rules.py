"""The rules: made, changed, switched and deleted by people, each time with an audit entry."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from jobs import audit
from jobs.alerts import endings
from jobs.audit import Actor
from jobs.core import alert_words, lengths
from jobs.core.alert_words import RuleWords
from jobs.core.alerts import KINDS, Unit
from jobs.core.words import AlertKind, Severity
from jobs.errors import AlertRefused
from jobs.models import AlertRule

NAME_LENGTH = 120
URL_LENGTH = 500
MOST_RECIPIENTS = 20
DAY_SECONDS = 86_400
# What an operator may set, besides the kind, which never changes.
FIELDS: Final = (
    *("name", "severity", "task", "queue", "threshold", "recovery_threshold", "window_minutes"),
    *("minimum_attempts", "percentile", "hold_seconds", "recovery_hold_seconds", "cool_down_seconds"),
    *("reminder_seconds", "recipients", "webhook_url", "runbook_url"),
)
# Of whole numbers: from, to, and the unit in the words of a refusal.
BOUNDS: Final[Mapping[str, tuple[int, int, str]]] = {
    "window_minutes": (1, 1440, "minutes"),
    "minimum_attempts": (0, 1_000_000, "attempts"),
    "percentile": (1, 99, ""),
    "hold_seconds": (0, DAY_SECONDS, "seconds"),
    "recovery_hold_seconds": (0, DAY_SECONDS, "seconds"),
    "cool_down_seconds": (0, 7 * DAY_SECONDS, "seconds"),
    "reminder_seconds": (0, 30 * DAY_SECONDS, "seconds"),
}
# A reminder more often than this is noise; 0 is none.
LEAST_REMINDER_SECONDS = 300


def words_of(rule: AlertRule) -> RuleWords:
    """Return what ``core.alert_words`` needs of a rule."""
    return RuleWords(
        kind=AlertKind(rule.kind),
        threshold=rule.threshold,
        task=rule.task,
        queue=rule.queue,
        window_minutes=rule.window_minutes,
        percentile=rule.percentile,
        minimum_attempts=rule.minimum_attempts,
        hold_seconds=rule.hold_seconds,
    )


def in_words(rule: AlertRule) -> str:
    """Say when a rule fires: "more than 20 a minute over 5 minutes, all queues"."""
    return alert_words.in_words(words_of(rule))


def draft(kind: AlertKind) -> AlertRule:
    """Return a rule of a kind with its usual values, not saved: what an empty form shows."""
    return AlertRule(kind=kind.value, name=KINDS[kind].title, **KINDS[kind].defaults)


def problems(kind: AlertKind, values: Mapping[str, Any]) -> dict[str, str]:
    """Say of each field that is wrong why; of a right rule nothing. Fields that are missing are not looked at."""
    found: dict[str, str] = {}
    for name in values:
        if name not in FIELDS:
            found[name] = f"A rule has no {name!r}. It has {', '.join(FIELDS)}."
    found |= _number_problems(kind, values)
    if "name" in values:
        name = str(values["name"]).strip()
        if not name:
            found["name"] = "A rule needs a name: it stands in mails. Write for instance “Dead letters grow”."
        elif len(name) > NAME_LENGTH or not name.isprintable():
            found["name"] = f"The name is one line of at most {NAME_LENGTH} characters."
    if "severity" in values and values["severity"] not in {each.value for each in Severity}:
        known = ", ".join(each.value for each in Severity)
        found["severity"] = f"The severity {str(values['severity'])[:40]!r} is not known. Use one of {known}."
    for name in ("task", "queue"):
        if len(str(values.get(name, ""))) > 255:
            found[name] = f"A name of a {name} has at most 255 characters."
    if problem := _recipients_problem(values.get("recipients", [])):
        found["recipients"] = problem
    for name in ("webhook_url", "runbook_url"):
        if problem := url_problem(str(values.get(name, ""))):
            found[name] = problem
    return found


def _number_problems(kind: AlertKind, values: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name, (least, most, unit) in BOUNDS.items():
        if name not in values:
            continue
        value = values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            found[name] = _out_of_bounds(value, least, most, unit)
    reminder = values.get("reminder_seconds", 0)
    if "reminder_seconds" not in found and 0 < reminder < LEAST_REMINDER_SECONDS:
        found["reminder_seconds"] = (
            f"A reminder every {lengths.written(reminder)} is too often."
            f" Write {lengths.written(LEAST_REMINDER_SECONDS)} or more, or 0 for none."
        )
    for name in ("threshold", "recovery_threshold"):
        value = values.get(name)
        if value is not None and not _is_amount(value):
            found[name] = f"{str(value)[:40]} is no limit. Write a number from 0 on."
    threshold, recovery = values.get("threshold"), values.get("recovery_threshold")
    if not found.keys() & {"threshold", "recovery_threshold"}:
        if KINDS[kind].unit is Unit.PER_CENT and threshold is not None and threshold >= 100:
            found["threshold"] = (
                f"More than {alert_words.exact(threshold)} % is never reached. Write less than 100."
            )
        if threshold is not None and recovery is not None and recovery > threshold:
            write = lengths.written if KINDS[kind].unit is Unit.SECONDS else alert_words.exact
            found["recovery_threshold"] = (
                f"It would recover at {write(recovery)} while it still fires above {write(threshold)}."
                f" Write at most {write(threshold)}."
            )
    return found


def _out_of_bounds(value: object, least: int, most: int, unit: str) -> str:
    if unit != "seconds" or isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{str(value)[:40]} is not a whole number from {least:,} to {most:,} {unit}".strip() + "."
    words = lengths.written(value) if value >= 0 else f"{value} s"
    return (
        f"{words} is not a whole number of seconds from {lengths.written(least)} to {lengths.written(most)}."
    )


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _recipients_problem(recipients: object) -> str:
    if not isinstance(recipients, list):
        return "Recipients are a list of e-mail addresses."
    if len(recipients) > MOST_RECIPIENTS:
        return f"{len(recipients)} recipients are too many. Use at most {MOST_RECIPIENTS}, or a mailing list."
    for each in recipients:
        try:
            validate_email(each)
        except ValidationError:
            return f"{str(each)[:80]!r} is not an e-mail address. Write for instance oncall@shop.example."
    return ""


def url_problem(url: str) -> str:
    """Say why a link or a webhook's address is refused, "" when it is none or right."""
    if not url:
        return ""
    if len(url) > URL_LENGTH:
        return f"The address has {len(url)} characters. At most {URL_LENGTH} are kept."
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if is_right and "@" in parts.netloc:
        return "The address holds a name or a password, which is not sent. Write it without."
    if not is_right or not url.isprintable() or " " in url:
        return f"{url[:80]!r} is no address of a page. Write one that begins with https:// or http://."
    return ""


def create(*, kind: AlertKind, values: Mapping[str, Any], actor: Actor, now: datetime) -> AlertRule:
    """Make a rule; what ``values`` leave out has the kind's usual value.

    Raises:
        AlertRefused: when a value is wrong; says which.
    """
    rule = draft(kind)
    _set(rule, values)
    with transaction.atomic():
        rule.save()
        audit.record(
            actor=actor,
            action="alert_rule",
            text=f"made the alert rule “{rule.name}”: {in_words(rule)}",
            details={"rule": rule.pk, "values": _audited(snapshot(rule))},
            now=now,
        )
    return rule


def change(*, rule: AlertRule, values: Mapping[str, Any], actor: Actor, now: datetime) -> AlertRule:
    """Change a rule. An alert that is open stays and is judged by the new values.

    Where it watches another task or queue than before, its open alerts end: they are about something else.

    Raises:
        AlertRefused: when a value is wrong, says which; or when the rule is gone.
    """
    with transaction.atomic():
        kept = _locked(rule)
        before = snapshot(kept)
        _set(kept, values)
        after = snapshot(kept)
        told = _audited(before), _audited(after)
        changed = {name: [each[name] for each in told] for name in FIELDS if before[name] != after[name]}
        if not changed:
            return kept
        kept.save()
        if changed.keys() & {"task", "queue"}:
            endings.end_open(kept, because="the rule watches something else now", now=now)
        audit.record(
            actor=actor,
            action="alert_rule",
            text=f"changed the alert rule “{kept.name}”: {in_words(kept)}",
            details={"rule": kept.pk, "changed": changed},
            now=now,
        )
    return kept


def enable(*, rule: AlertRule, actor: Actor, now: datetime) -> AlertRule:
    """Judge a rule again from now on.

    Raises:
        AlertRefused: when it is gone or enabled already.
    """
    return _switch(rule, is_enabled=True, actor=actor, now=now)


def disable(*, rule: AlertRule, actor: Actor, now: datetime) -> AlertRule:
    """Stop judging a rule; its open alerts end, and nobody is told of that.

    Raises:
        AlertRefused: when it is gone or disabled already.
    """
    return _switch(rule, is_enabled=False, actor=actor, now=now)


def delete(*, rule: AlertRule, actor: Actor, now: datetime) -> None:
    """Delete a rule with its alerts and what was told of them.

    Raises:
        AlertRefused: when it is gone.
    """
    with transaction.atomic():
        kept = _locked(rule)
        audit.record(
            actor=actor,
            action="alert_rule",
            text=f"deleted the alert rule “{kept.name}”: {in_words(kept)}",
            details={"rule": kept.pk, "kind": kept.kind, "values": _audited(snapshot(kept))},
            now=now,
        )
        kept.delete()


def snapshot(rule: AlertRule) -> dict[str, Any]:
    """Return the fields of a rule as JSON can hold them."""
    return {name: getattr(rule, name) for name in FIELDS}


def host_of(url: str) -> str:
    """Return the host of a webhook: all of its address that many may read, since who knows the rest may post there."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    return host or ("an address that cannot be read" if url else "")


def _audited(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "webhook_url": host_of(values["webhook_url"])}


def _switch(rule: AlertRule, *, is_enabled: bool, actor: Actor, now: datetime) -> AlertRule:
    with transaction.atomic():
        kept = _locked(rule)
        if kept.is_enabled is is_enabled:
            word = "enabled" if is_enabled else "disabled"
            raise AlertRefused(f"The rule “{kept.name}” is {word} already. Load the page again.")
        kept.is_enabled = is_enabled
        kept.trouble = ""
        kept.save(update_fields=["is_enabled", "trouble", "changed_at"])
        if not is_enabled:
            endings.end_open(kept, because="the rule was disabled", now=now)
        audit.record(
            actor=actor,
            action="alert_rule",
            text=f"{'enabled' if is_enabled else 'disabled'} the alert rule “{kept.name}”",
            details={"rule": kept.pk},
            now=now,
        )
    return kept


def _locked(rule: AlertRule) -> AlertRule:
    kept = AlertRule.objects.select_for_update().filter(pk=rule.pk).first()
    if kept is None:
        raise AlertRefused(f"The rule “{rule.name}” was deleted by somebody else. Nothing was changed.")
    return kept


def _set(rule: AlertRule, values: Mapping[str, Any]) -> None:
    """Set and check the whole rule, since a limit may be right by itself and wrong beside another."""
    for name, value in values.items():
        if name in FIELDS:
            setattr(rule, name, value.strip() if isinstance(value, str) else value)
    kind = AlertKind(rule.kind)
    wrong = {name: text for name, text in problems(kind, dict(values)).items() if name not in FIELDS}
    wrong |= problems(kind, snapshot(rule))
    if wrong:
        first = next(iter(wrong.values()))
        raise AlertRefused(f"The rule “{rule.name[:80]}” cannot be saved: {first}", wrong)
