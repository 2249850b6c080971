"""Judges the rules: measures them, and writes what follows in one transaction with what is to be told.

What is judged is read again under a lock of the rules, so two that evaluate at once, or one after a
crash, continue from the same state: nobody fires twice.
"""

from __future__ import annotations

import heapq
import logging
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Max, Q

from jobs.alerts import covering, measuring, silences, telling
from jobs.alerts.measuring import Measured, Measurement
from jobs.core.alerts import KINDS, Limits, Standing, Subject, Transition, judge
from jobs.core.cleaning import clean_line
from jobs.core.words import AlertKind, AlertState, NotificationKind
from jobs.models import Alert, AlertRule

logger = logging.getLogger(__name__)

# A rule that has an alert for each queue, group or worker collects for so long what begins after it has
# told of one: an outage of ten queues is two mails, not ten.
COLLECT = timedelta(minutes=5)
TROUBLE_LENGTH = 500
# By so much the clocks of two machines may differ.
CLOCK_TOLERANCE = timedelta(minutes=5)
# Of one rule at a time.
MOST_SUBJECTS = 100
JUDGED_NOT = "It could not be judged: "
_FIELDS = (
    *("state", "lead", "began_at", "fired_at", "recovering_since", "resolved_at", "value", "peak", "before"),
    *("measured_at", "details", "reminders", "told_at"),
)


@dataclass(slots=True)
class Evaluated:
    """What one evaluation came to."""

    rules: int = 0
    began: int = 0
    fired: int = 0
    reminded: int = 0
    resolved: int = 0
    forgotten: int = 0


@dataclass(slots=True)
class _Changes:
    """What became of the alerts of one rule."""

    changed: list[Alert] = field(default_factory=list)
    began: int = 0
    fired: list[Alert] = field(default_factory=list)
    reminded: list[Alert] = field(default_factory=list)
    resolved: list[Alert] = field(default_factory=list)
    forgotten: list[Alert] = field(default_factory=list)
    # Subjects that are not watched, since there are too many.
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _KeptBack:
    """What keeps people from being told: a silence, or that another alert tells them."""

    silenced_until: datetime | None = None
    # Alerts that fire and are not silenced, which may tell of the same jobs.
    growing: Sequence[Alert] = ()
    # Ids of what was covered and told to nobody after all.
    lapsed: Container[int] = frozenset()

    @property
    def by_silence(self) -> str:
        if self.silenced_until is None:
            return ""
        return f"Not sent: silenced until {self.silenced_until:%Y-%m-%d %H:%M} UTC."

    def covered_by(self, rule: AlertRule, *, is_reminder: bool) -> Alert | None:
        """Return the alert that tells of what a rule fires for; of a reminder one that reminds of it too."""
        if self.silenced_until is not None:
            return None
        reminding = [
            each for each in self.growing if each.rule.reminder_seconds and each.recovering_since is None
        ]
        return covering.find(rule, reminding if is_reminder else self.growing)


@dataclass(frozen=True, slots=True)
class _Ended:
    """When the newest alert of a subject was resolved, and when the newest one that recovered had fired."""

    resolved_at: datetime
    fired_at: datetime | None


def evaluate(*, now: datetime) -> Evaluated:
    """Judge all enabled rules once. Opens one transaction, after everything was measured."""
    measured_rules = list(AlertRule.objects.filter(is_enabled=True).order_by("pk"))
    measured = measuring.measure(measured_rules, now=now)
    told_at = {rule.pk: rule.changed_at for rule in measured_rules}
    with transaction.atomic():
        rules = [
            rule
            for rule in AlertRule.objects.select_for_update().filter(is_enabled=True).order_by("pk")
            # Not one that was changed since it was measured, nor one that was judged later than that.
            if told_at.get(rule.pk) == rule.changed_at and not _was_judged_since(rule, now=now)
        ]
        return _judge_all(rules, measured, now=now)


def _was_judged_since(rule: AlertRule, *, now: datetime) -> bool:
    """Say whether somebody judged it later than that; not by a clock that was hours ahead, which nobody waits for."""
    return rule.evaluated_at is not None and now < rule.evaluated_at <= now + CLOCK_TOLERANCE


def _judge_all(rules: Sequence[AlertRule], measured: Mapping[int, Measured], *, now: datetime) -> Evaluated:
    by_rule: dict[int, list[Alert]] = defaultdict(list)
    named = {rule.pk: rule for rule in rules}
    for alert in Alert.objects.filter(rule__in=named, state__in=[AlertState.PENDING, AlertState.FIRING]):
        # Its rule is the locked row: words and limits are those that were judged.
        alert.rule = named[alert.rule_id]
        by_rule[alert.rule_id].append(alert)
    ended = _ended(rules, now=now)
    silenced = silences.until_by_rule(now=now)
    total = Evaluated(rules=len(rules))
    troubles = {rule.pk: measured[rule.pk].trouble for rule in rules}
    growing: list[Alert] = []
    lapsed = covering.lapsed(alert for alerts in by_rule.values() for alert in alerts)
    # Growth first, since it covers what others fire for.
    for rule in sorted(rules, key=lambda each: (each.kind != AlertKind.LETTERS_GROWING, each.pk)):
        silenced_until = silences.silenced_until(rule.pk, silenced)
        try:
            changes = _judge_rule(rule, by_rule[rule.pk], measured[rule.pk], ended[rule.pk], now=now)
            if changes.changed or changes.forgotten:
                kept_back = _KeptBack(silenced_until, growing, lapsed)
                with transaction.atomic():
                    _write(changes, by_rule[rule.pk], kept_back, now=now)
        except (OperationalError, InterfaceError):
            raise
        except Exception as error:
            # One rule that cannot be judged or told of must not keep the others from firing.
            troubles[rule.pk] = f"{JUDGED_NOT}{type(error).__name__}: {error}"
            if not rule.trouble.startswith(JUDGED_NOT):
                logger.exception("alert rule %s (%s) cannot be judged", rule.pk, rule.kind)
            continue
        if changes.left_out:
            troubles[rule.pk] = (
                f"{changes.left_out:,} more are not watched: {MOST_SUBJECTS} of it are open at most."
            )
        # One that is silenced tells nobody, so it tells for no other.
        if rule.kind == AlertKind.LETTERS_GROWING and silenced_until is None:
            growing += [alert for alert in changes.changed if alert.state == AlertState.FIRING]
        total.began += changes.began
        total.fired += len(changes.fired)
        total.reminded += len(changes.reminded)
        total.resolved += len(changes.resolved)
        total.forgotten += len(changes.forgotten)
    _note_evaluation(rules, troubles, now=now)
    return total


def _ended(rules: Sequence[AlertRule], *, now: datetime) -> dict[int, dict[str, _Ended]]:
    """Return of each rule the subjects that may still cool down. One query."""
    longest = max((rule.cool_down_seconds for rule in rules), default=0)
    found = (
        Alert.objects.filter(
            rule__in=[rule.pk for rule in rules],
            state=AlertState.RESOLVED,
            resolved_at__gt=now - timedelta(seconds=longest),
            resolved_at__lte=now + CLOCK_TOLERANCE,
        )
        .order_by()
        .values_list("rule_id", "subject")
        # Where people changed or disabled the rule nothing recovered, and what comes now is another matter.
        .annotate(
            resolved=Max("resolved_at"), fired=Max("fired_at", filter=Q(recovering_since__isnull=False))
        )
    )
    ended: dict[int, dict[str, _Ended]] = defaultdict(dict)
    for rule, subject, resolved_at, fired_at in found:
        ended[rule][subject] = _Ended(resolved_at, fired_at)
    return ended


def limits_of(rule: AlertRule) -> Limits:
    """Return what the judge needs of a rule; a kind without a threshold fires above none."""
    has_threshold = KINDS[AlertKind(rule.kind)].has_threshold
    return Limits(
        threshold=rule.threshold if has_threshold else 0.0,
        recovery_threshold=rule.recovery_threshold if has_threshold else None,
        hold=timedelta(seconds=rule.hold_seconds),
        recovery_hold=timedelta(seconds=rule.recovery_hold_seconds),
        cool_down=timedelta(seconds=rule.cool_down_seconds),
        reminder=timedelta(seconds=rule.reminder_seconds) if rule.reminder_seconds else None,
    )


def standing_of(alert: Alert | None, *, resolved_at: datetime | None) -> Standing:
    """Return what the judge needs of an open alert, or of a subject that has none."""
    if alert is None:
        return Standing(resolved_at=resolved_at)
    return Standing(
        state=AlertState(alert.state),
        began_at=alert.began_at,
        fired_at=alert.fired_at,
        recovering_since=alert.recovering_since,
        resolved_at=resolved_at,
        measured_at=alert.measured_at,
        told_at=alert.told_at,
        value=alert.value,
        peak=alert.peak,
        reminders=alert.reminders,
    )


def _judge_rule(
    rule: AlertRule,
    open_alerts: Iterable[Alert],
    measured: Measured,
    ended: Mapping[str, _Ended],
    *,
    now: datetime,
) -> _Changes:
    limits, changes = limits_of(rule), _Changes()
    by_subject = {alert.subject: alert for alert in open_alerts}
    quiet_until = _quiet_until(rule, [*by_subject.values(), *ended.values()], now=now)
    begun, changes.left_out = _worst(measured, by_subject, limits, room=MOST_SUBJECTS - len(by_subject))
    for subject in sorted({*begun, *by_subject}):
        alert, measurement = by_subject.get(subject), measured.of(subject)
        before = ended.get(subject)
        standing = standing_of(alert, resolved_at=None if before is None else before.resolved_at)
        verdict = judge(limits, standing, measurement.value, now=now, quiet_until=quiet_until)
        if alert is None:
            if verdict.standing.state is None:
                continue
            alert = Alert(rule=rule, subject=subject)
        if Transition.FORGOTTEN in verdict.transitions:
            changes.forgotten.append(alert)
            continue
        _take_over(alert, verdict.standing, measurement)
        changes.changed.append(alert)
        changes.began += Transition.BEGAN in verdict.transitions
        for transition, changed in (
            (Transition.FIRED, changes.fired),
            (Transition.REMINDED, changes.reminded),
            (Transition.RESOLVED, changes.resolved),
        ):
            if transition in verdict.transitions:
                changed.append(alert)
    return changes


def _worst(measured: Measured, known: Container[str], limits: Limits, *, room: int) -> tuple[list[str], int]:
    """Return the subjects that may begin, the highest first, and how many there is no room for.

    Anybody can name queues, workers and failures: each would be an alert, and one mail would name them all.
    """
    found = [
        (-value, subject)
        for subject, measurement in measured.by_subject.items()
        if subject not in known and (value := measurement.value) is not None and value > limits.threshold
    ]
    room = max(room, 0)
    return [subject for _, subject in heapq.nsmallest(room, found)], max(0, len(found) - room)


def _quiet_until(rule: AlertRule, alerts: Iterable[Alert | _Ended], *, now: datetime) -> datetime | None:
    """Return until when a rule with many subjects collects; None when it has not told of one lately.

    One that is over counts too: of workers that crash and come back in turn each would be a mail otherwise.
    """
    if KINDS[AlertKind(rule.kind)].subject is Subject.ALL:
        return None
    fired = [alert.fired_at for alert in alerts if alert.fired_at is not None]
    return min(now, max(fired)) + min(COLLECT, timedelta(seconds=rule.cool_down_seconds)) if fired else None


def _take_over(alert: Alert, standing: Standing, measurement: Measurement) -> None:
    """Write a judged state into the row."""
    assert standing.state is not None  # noqa: S101 - a subject without one has no row
    assert standing.began_at is not None  # noqa: S101 - it is set with the state
    is_new = alert.pk is None
    alert.state = standing.state
    alert.began_at = standing.began_at
    alert.fired_at = standing.fired_at
    alert.recovering_since = standing.recovering_since
    if standing.state is AlertState.RESOLVED:
        alert.resolved_at = standing.resolved_at
    alert.value, alert.peak = standing.value, standing.peak
    alert.measured_at, alert.told_at = standing.measured_at, standing.told_at
    alert.reminders = standing.reminders
    details = dict(alert.details)
    if measurement.name:
        details["subject"] = measurement.name
    if measurement.value is not None:
        # A growth says how fast it is, once its window holds more than it.
        details.pop("shown", None)
        if measurement.shown is not None:
            details["shown"] = measurement.shown
    if is_new and measurement.since is not None:
        details["since"] = measurement.since.isoformat()
    alert.details = details


def _write(changes: _Changes, open_alerts: Sequence[Alert], kept_back: _KeptBack, *, now: datetime) -> None:
    """Write the alerts of a rule and what is to be told of them."""
    for alert in changes.forgotten:
        alert.delete()
    made = [alert for alert in changes.changed if alert.pk is None]
    for alert in made:
        alert.save()
    if changes.fired:
        _tell_fired(changes.fired, kept_back, now=now)
    firing = [alert for alert in open_alerts if alert.state == AlertState.FIRING and alert.pk is not None]
    _tell_reminders(changes, firing, kept_back, now=now)
    if changes.resolved:
        _tell_recovered(changes.resolved, firing, kept_back, now=now)
    # One that has just been made and only waits is as it was saved.
    if rows := [alert for alert in changes.changed if alert not in made or alert in changes.fired]:
        Alert.objects.bulk_update(rows, _FIELDS, batch_size=100)


def _tell_fired(fired: list[Alert], kept_back: _KeptBack, *, now: datetime) -> None:
    """Tell of those that fire together; the one with the highest value leads."""
    fired.sort(key=lambda alert: (-(alert.value or 0), alert.subject))
    lead = fired[0]
    covered_by = kept_back.covered_by(lead.rule, is_reminder=False)
    why = kept_back.by_silence or _told_by(covered_by)
    story = telling.tell(NotificationKind.FIRED, fired, kept_back=why, now=now)
    for alert in fired:
        alert.lead = None if alert is lead else lead
        alert.before = story.before
        alert.details = {
            **alert.details,
            "headline": story.headline,
            "sentence": story.sentences,
            "letters": story.letters_query,
            "silenced": bool(kept_back.by_silence),
        }
        if covered_by is not None:
            alert.details[covering.COVERED_BY] = covered_by.pk
        logger.warning("alert %s fires: %s", alert.pk, story.headline, extra={"rule": alert.rule_id})


def _tell_reminders(
    changes: _Changes, firing: Sequence[Alert], kept_back: _KeptBack, *, now: datetime
) -> None:
    """Remind of what still fires, once for those that were told together; and tell what was kept back until now."""
    due = {_lead_id(alert) for alert in changes.reminded}
    for alert in firing:
        if kept_back.by_silence:
            # Told of when the silence ends, whenever it fired.
            alert.details = {**alert.details, "silenced": True}
        elif (
            (alert.details.get("silenced") or alert.pk in kept_back.lapsed)
            and alert.recovering_since is None
            and alert not in changes.fired
        ):
            due.add(_lead_id(alert))
    if not due:
        return
    covered_by = kept_back.covered_by(firing[0].rule, is_reminder=True)
    why = kept_back.by_silence or _told_by(covered_by)
    for lead_id in sorted(due):
        bundle = [alert for alert in firing if _lead_id(alert) == lead_id]
        if not bundle:
            continue
        lead = next((alert for alert in bundle if alert.pk == lead_id), bundle[0])
        number = max(alert.reminders for alert in bundle)
        if lead not in changes.reminded or not number:
            number += 1
        bundle.sort(key=lambda alert: alert is not lead)
        telling.tell(NotificationKind.REMINDER, bundle, number=number, kept_back=why, now=now)
        for alert in bundle:
            alert.reminders, alert.told_at = number, now
            if not kept_back.by_silence:
                alert.details = {**alert.details, "silenced": False}
                alert.details.pop(covering.COVERED_BY, None)
                if covered_by is not None:
                    alert.details[covering.COVERED_BY] = covered_by.pk
            if alert not in changes.changed:
                changes.changed.append(alert)


def _tell_recovered(
    resolved: Sequence[Alert], firing: Sequence[Alert], kept_back: _KeptBack, *, now: datetime
) -> None:
    """Tell that it is over once all that were told together are."""
    still = {_lead_id(alert) for alert in firing}
    for lead_id in sorted({_lead_id(alert) for alert in resolved} - still):
        told = Alert.objects.filter(Q(pk=lead_id) | Q(lead=lead_id)).select_related("rule")
        here = {alert.pk: alert for alert in resolved}
        # What was judged just now is newer than its row.
        bundle = [here.get(alert.pk, alert) for alert in told]
        bundle.sort(key=lambda alert: (alert.pk != lead_id, alert.subject))
        story = telling.tell(NotificationKind.RECOVERED, bundle, kept_back=kept_back.by_silence, now=now)
        for alert in bundle:
            if alert.pk in here:
                alert.details = {**alert.details, "letters": story.letters_query, "ended": story.sentences}
        logger.warning("alert %s is over: %s", lead_id, story.headline)


def _told_by(covering_alert: Alert | None) -> str:
    return "" if covering_alert is None else f"Not sent: “{covering_alert.rule.name}” tells of the same jobs."


def _lead_id(alert: Alert) -> int:
    return alert.lead_id or alert.pk


def _note_evaluation(rules: Sequence[AlertRule], troubles: Mapping[int, str], *, now: datetime) -> None:
    """Write when the rules were judged, in one statement, and of each its trouble when that has changed."""
    AlertRule.objects.filter(pk__in=[rule.pk for rule in rules]).update(evaluated_at=now)
    for rule in rules:
        trouble = clean_line(troubles[rule.pk], limit=TROUBLE_LENGTH)
        if trouble != rule.trouble:
            AlertRule.objects.filter(pk=rule.pk).update(trouble=trouble)
