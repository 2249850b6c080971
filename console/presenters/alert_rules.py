"""The rules in a list, and the page of one: what it watches, how it stands, and what it told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from console import times
from console.presenters import alert_list, alert_words
from console.presenters.alert_list import AlertRow
from console.presenters.alert_notes import JUDGED_WITHIN
from console.presenters.alert_page import Entry, Fact, Way, notification_entry, rule_facts, safe_href, ways
from console.presenters.plain import count_of, visible
from jobs.alerts import reading, silences
from jobs.alerts.measuring import has_little_to_judge
from jobs.core.words import AlertState
from jobs.models import Alert, AlertRule, Notification

SHOWN_ALERTS = 10
SHOWN_NOTIFICATIONS = 10


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A rule and how it stands; ``state`` is a name in ``states.RULE_MARKS``, ``why`` says more where it must."""

    rule: AlertRule
    watches: str
    kind: str
    state: str
    why: str
    open_alerts: int
    silenced_until: datetime | None


@dataclass(frozen=True, slots=True)
class RulePage:
    """The list of rules."""

    sentence: str
    rows: list[RuleRow]


@dataclass(frozen=True, slots=True)
class OneRule:
    """The page of a rule."""

    row: RuleRow
    facts: list[Fact]
    ways: list[Way]
    alerts: list[AlertRow]
    notifications: list[Entry]
    has_waiting: bool
    runbook_href: str
    has_days: bool


def names() -> list[AlertRule]:
    """Return all rules by name, for a choice."""
    return list(AlertRule.objects.only("pk", "name").order_by("name", "pk"))


def find(rule_id: int) -> AlertRule | None:
    """Return a rule, None when there is none."""
    return AlertRule.objects.filter(pk=rule_id).first()


def read_list(*, now: datetime) -> RulePage:
    """Read all rules and how they stand. A fixed number of queries."""
    rules = list(AlertRule.objects.order_by("name", "pk"))
    rows = _rows(rules, now=now)
    enabled = [row for row in rows if row.rule.is_enabled]
    unknown = sum(1 for row in enabled if row.state == "unknown")
    firing = sum(1 for row in enabled if row.state == "firing")
    parts = [f"{count_of(len(enabled), 'rule')} {'watches' if len(enabled) == 1 else 'watch'}"]
    parts.append(f"{firing:,} {'fires' if firing == 1 else 'fire'}" if firing else "none fires")
    if unknown:
        parts.append(f"{unknown:,} cannot be judged now")
    if len(rows) > len(enabled):
        parts.append(f"{len(rows) - len(enabled):,} {'is' if len(rows) - len(enabled) == 1 else 'are'} off")
    return RulePage(f"{', '.join(parts)}.", rows)


def read(rule: AlertRule, *, now: datetime) -> OneRule:
    """Read the page of a rule. A fixed number of queries."""
    (row,) = _rows([rule], now=now)
    alerts = list(rule.alerts.select_related("rule").order_by("-began_at", "-pk")[:SHOWN_ALERTS])
    told = list(Notification.objects.filter(rule=rule).order_by("-created_at", "-pk")[:SHOWN_NOTIFICATIONS])
    notifications = [notification_entry(each, now=now) for each in told]
    return OneRule(
        row=row,
        facts=rule_facts(rule),
        ways=ways(rule),
        alerts=alert_list.rows_of([reading.described(alert) for alert in alerts], now=now),
        notifications=notifications,
        has_waiting=any(each.state == "waiting" for each in told),
        runbook_href=safe_href(rule.runbook_url),
        has_days=any(entry.at.date() != now.date() for entry in notifications),
    )


def counts(rule: AlertRule) -> tuple[int, int]:
    """Count the alerts of a rule and what was told of them."""
    return rule.alerts.count(), rule.notifications.count()


def _rows(rules: Iterable[AlertRule], *, now: datetime) -> list[RuleRow]:
    rules = list(rules)
    open_states: dict[int, list[str]] = {}
    found = Alert.objects.filter(rule__in=rules, state__in=(AlertState.FIRING, AlertState.PENDING))
    for rule_id, state in found.values_list("rule_id", "state"):
        open_states.setdefault(rule_id, []).append(state)
    by_rule = silences.until_by_rule(now=now)
    return [
        _row(rule, open_states.get(rule.pk, []), silences.silenced_until(rule.pk, by_rule), now=now)
        for rule in rules
    ]


def _row(rule: AlertRule, open_states: list[str], until: datetime | None, *, now: datetime) -> RuleRow:
    state, why = _state(rule, open_states, now=now)
    return RuleRow(
        rule=rule,
        watches=alert_words.sentence(rule),
        kind=alert_words.kind_of(rule).title,
        state=state,
        why=why,
        open_alerts=len(open_states),
        silenced_until=until,
    )


def _state(rule: AlertRule, open_states: list[str], *, now: datetime) -> tuple[str, str]:
    if not rule.is_enabled:
        return "off", ""
    trouble = visible(rule.trouble, keep="")
    if AlertState.FIRING in open_states:
        return "firing", trouble
    if trouble and not has_little_to_judge(rule.trouble):
        return "unknown", trouble
    # Why no rule is judged stands above them all, once.
    if rule.evaluated_at is None:
        return "unknown", "It was not judged yet."
    if now - rule.evaluated_at > JUDGED_WITHIN:
        return "unknown", f"It was last judged {times.ago(rule.evaluated_at, now=now)}."
    return ("pending", "") if open_states else ("quiet", trouble)
