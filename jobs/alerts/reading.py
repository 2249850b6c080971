"""Alerts as pages show them. Every function is a fixed number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from jobs.alerts import rules, silences
from jobs.core import alert_words, lengths
from jobs.core.alerts import KINDS, Unit
from jobs.core.spans import span
from jobs.core.words import AlertKind, AlertState, Severity
from jobs.models import Alert, AlertRule

_URGENCY = [Severity.CRITICAL, Severity.WARNING, Severity.INFO]


@dataclass(frozen=True, slots=True)
class OpenAlert:
    """An alert that is firing or pending, in words.

    ``figure`` and ``unit`` are its newest value ("125" "a minute"; a duration has no unit), "" when it is
    not known; ``limit`` is the threshold with its unit, "" for kinds without one. ``letters_query`` is the
    search for the dead letters in question, "" where there are none. Headline and sentence hold names from
    messages.
    """

    alert: Alert
    rule: AlertRule
    headline: str
    sentence: str
    since: datetime
    figure: str
    unit: str
    limit: str
    severity: Severity
    silenced_until: datetime | None
    letters_query: str

    @property
    def is_firing(self) -> bool:
        """Whether it fires, and does not only hold."""
        return self.alert.state == AlertState.FIRING

    @property
    def is_recovering(self) -> bool:
        """Whether it is below its recovery threshold and waits for the recovery hold."""
        return self.alert.recovering_since is not None


def open_alerts(*, now: datetime, with_pending: bool = False) -> list[OpenAlert]:
    """Return the alerts that fire, the most severe and the longest first; the pending ones after them."""
    states = [AlertState.FIRING, *([AlertState.PENDING] if with_pending else [])]
    found = list(Alert.objects.filter(state__in=states).select_related("rule"))
    by_rule = silences.until_by_rule(now=now) if found else {}
    shown = [
        described(alert, silenced_until=silences.silenced_until(alert.rule_id, by_rule)) for alert in found
    ]
    return sorted(
        shown,
        key=lambda each: (not each.is_firing, _URGENCY.index(each.severity), each.since, each.alert.pk),
    )


def firing_count() -> int:
    """Return how many alerts fire. One query on an index."""
    return Alert.objects.filter(state=AlertState.FIRING).count()


def described(alert: Alert, *, silenced_until: datetime | None = None) -> OpenAlert:
    """Put an alert into words, from its row and its rule's alone; one that is resolved as it was at its peak."""
    rule, kind = alert.rule, KINDS[AlertKind(alert.rule.kind)]
    value = _value_of(alert)
    figure, unit = (
        ("", "") if value is None or kind.unit is Unit.WORKERS else alert_words.figure(kind.unit, value)
    )
    since = since_of(alert)
    return OpenAlert(
        alert=alert,
        rule=rule,
        headline=headline_of(alert, value=value),
        sentence=_sentence(alert),
        since=since,
        figure=figure,
        unit=unit,
        limit=alert_words.limit(kind.unit, rule.threshold) if kind.has_threshold else "",
        severity=Severity(rule.severity),
        silenced_until=silenced_until,
        letters_query=letters_query_of(alert),
    )


def _value_of(alert: Alert) -> float | None:
    if alert.state == AlertState.RESOLVED:
        return alert.peak
    if alert.recovering_since is not None:
        # The one that is judged: another beside its limit would say that it is not recovering.
        return alert.value
    shown: float | None = alert.details.get("shown", alert.value)
    return shown


def headline_of(alert: Alert, *, value: float | None) -> str:
    """Say what is or was wrong, of one alert."""
    words = rules.words_of(alert.rule)
    return alert_words.headline(words, value=value, subjects=[subject_of(alert)] if alert.subject else [])


def subject_of(alert: Alert) -> str:
    """Return what people call the queue, group or worker that an alert is about; "" where it is about all."""
    return str(alert.details.get("subject") or alert.subject)


def since_of(alert: Alert) -> datetime:
    """Return since when it is wrong: of letters when the first of them died, else when it was first seen."""
    try:
        return datetime.fromisoformat(alert.details["since"])
    except (KeyError, ValueError, TypeError):
        return alert.began_at


def lasted_words(alerts: Sequence[Alert], *, now: datetime) -> str:
    """Say how long alerts that fired together lasted, from the first's beginning to the last's end, or last by now."""
    ends = [now if alert.resolved_at is None else alert.resolved_at for alert in alerts]
    return span(max(0.0, (max(ends) - min(map(since_of, alerts))).total_seconds()))


def letters_query_of(alert: Alert) -> str:
    """Return the search for the letters in question: of an alert that fires up to now, else of its time."""
    query = str(alert.details.get("letters", ""))
    return query.partition(" until:")[0] if alert.state == AlertState.FIRING else query


def _sentence(alert: Alert) -> str:
    kind = KINDS[AlertKind(alert.rule.kind)]
    if alert.state == AlertState.PENDING:
        held = lengths.written(alert.rule.hold_seconds)
        return (
            f"It fires when it has lasted for {held}." if alert.rule.hold_seconds else "It is about to fire."
        )
    told = str(alert.details.get("sentence", ""))
    # It was written for the mail: its figures and times are those of that moment.
    parts = [f"When it fired: {told}" if told else ""]
    if alert.peak is not None and kind.unit is not Unit.WORKERS:
        parts.append(f"The highest was {alert_words.said(kind.unit, alert.peak)}.")
    return " ".join(part for part in parts if part)
