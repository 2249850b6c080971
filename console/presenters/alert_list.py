"""The lists of alerts: what fires and is pending now, what recovered, and what is silenced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db.models import Q
from django.urls import reverse

from console import times
from console.forms.search import address
from console.presenters import alert_words
from console.presenters.plain import count_of, visible
from jobs.alerts import reading, silences
from jobs.alerts.reading import OpenAlert
from jobs.core import cursors
from jobs.core.cursors import Key
from jobs.core.words import AlertKind, AlertState, NotificationKind, NotificationState
from jobs.models import Alert, AlertRule, Notification, Silence

RECENT_SIZE = 8
# Of what fires, and of what is pending: a fleet that dies is an alert for each worker.
OPEN_SIZE = 100
HISTORY_SIZE = 50
_ERROR_LIMIT = 200
# The list of silences keeps those that are over for so long.
SILENCES_KEPT = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Tab:
    """One part of the pages of alerts."""

    word: str
    href: str
    count: int | None
    is_current: bool


@dataclass(frozen=True, slots=True)
class AlertRow:
    """One alert in a list, in the words of ``jobs.alerts.reading``, with what pages add."""

    told: OpenAlert
    told_words: str
    letters_href: str
    silence_href: str

    @property
    def alert(self) -> Alert:
        """The alert's row."""
        return self.told.alert

    @property
    def headline(self) -> str:
        """What is wrong."""
        return headline(self.told)

    @property
    def limit_words(self) -> str:
        """Above what it fires: "Limit 20 a minute."; "" for a kind without a limit."""
        return f"Limit {self.told.limit}." if self.told.limit else ""

    @property
    def lasted_words(self) -> str:
        """How long it lasted."""
        if self.alert.resolved_at is None:
            return ""
        return reading.lasted_words([self.alert], now=self.alert.resolved_at)

    @property
    def figure_words(self) -> str:
        """The figure with its unit on one line."""
        return f"{self.told.figure} {self.told.unit}".strip()


@dataclass(frozen=True, slots=True)
class AlertPage:
    """What the page of alerts shows."""

    sentence: str
    firing: list[AlertRow] = field(default_factory=list)
    firing_count: int = 0
    pending: list[AlertRow] = field(default_factory=list)
    pending_count: int = 0
    recent: list[AlertRow] = field(default_factory=list)
    quiet_words: str = ""
    next_cursor: str = ""
    is_older: bool = False

    @property
    def is_quiet(self) -> bool:
        """Whether nothing fires and nothing is about to."""
        return not self.firing and not self.pending

    @property
    def firing_words(self) -> str:
        """How many fire, in which order they stand, and how many of them are listed."""
        return _listed_words(self.firing_count, len(self.firing))

    @property
    def pending_words(self) -> str:
        """What pending means; how many of them are listed when not all are."""
        meaning = "above the limit, but not yet for long enough; nobody is told yet"
        if len(self.pending) == self.pending_count:
            return meaning
        return f"{_listed_words(self.pending_count, len(self.pending))}, {meaning}"


def read_now(*, now: datetime) -> AlertPage:
    """Read what fires and what is pending, and what recovered last. A fixed number of queries."""
    told = reading.open_alerts(now=now, with_pending=True)
    recent = list(
        Alert.objects.filter(state=AlertState.RESOLVED)
        .select_related("rule")
        .order_by("-resolved_at", "-pk")[:RECENT_SIZE]
    )
    firing = [each for each in told if each.is_firing]
    pending = [each for each in told if not each.is_firing]
    watching = AlertRule.objects.filter(is_enabled=True).count()
    return AlertPage(
        sentence=_sentence(firing, pending, watching, now=now),
        firing=rows_of(firing[:OPEN_SIZE], now=now),
        firing_count=len(firing),
        pending=rows_of(pending[:OPEN_SIZE], now=now),
        pending_count=len(pending),
        recent=rows_of([reading.described(alert) for alert in recent], now=now),
        quiet_words=_quiet_words(watching),
    )


def read_history(*, after: Key | None, now: datetime) -> AlertPage:
    """Read the alerts that are over, those that recovered last first; ``after`` is where the page before ended.

    Not by their ids: one that began first may be over last, and is what somebody looks for then.
    """
    over = Alert.objects.filter(state=AlertState.RESOLVED, resolved_at__isnull=False)
    if after is not None:
        moment, pk = after
        over = over.filter(Q(resolved_at__lt=moment) | Q(resolved_at=moment, pk__lt=pk))
    found = list(over.select_related("rule").order_by("-resolved_at", "-pk")[: HISTORY_SIZE + 1])
    shown = found[:HISTORY_SIZE]
    return AlertPage(
        sentence="What fired and is over: how long it lasted, how high it went, and its letters.",
        recent=rows_of([reading.described(alert) for alert in shown], now=now),
        next_cursor=_cursor_after(shown[-1]) if len(found) > HISTORY_SIZE else "",
        is_older=after is not None,
    )


def _cursor_after(alert: Alert) -> str:
    return cursors.write("after", (alert.resolved_at, alert.pk)) if alert.resolved_at else ""


def row_of(alert: Alert, *, now: datetime) -> AlertRow:
    """Make the row of one alert."""
    until = silences.silenced_until(alert.rule_id, silences.until_by_rule(now=now))
    (row,) = rows_of([reading.described(alert, silenced_until=until)], now=now)
    return row


def rows_of(told: Sequence[OpenAlert], *, now: datetime) -> list[AlertRow]:
    """Add links and who was told; one query."""
    words = told_by_alert([each.alert for each in told], now=now)
    return [
        AlertRow(
            told=each,
            told_words=words[each.alert.pk],
            letters_href=letters_href(each.letters_query),
            silence_href=silence_href(each.rule),
        )
        for each in told
    ]


def told_by_alert(alerts: Sequence[Alert], *, now: datetime) -> dict[int, str]:
    """Say of each alert, by its id, who was told that it fires and when, or why nobody was. One query."""
    # Alerts that fire together are told together, and the first of them holds that.
    leads = {alert.pk: alert.lead_id or alert.pk for alert in alerts}
    found: dict[int, list[Notification]] = {}
    told = Notification.objects.filter(alert__in=set(leads.values()), kind=NotificationKind.FIRED)
    for each in told.only("alert", "channel", "state", "recipients", "sent_at", "last_error").order_by("pk"):
        found.setdefault(each.alert_id or 0, []).append(each)
    return {alert.pk: told_words(alert, found.get(leads[alert.pk], []), now=now) for alert in alerts}


def headline(told: OpenAlert) -> str:
    """Say what is wrong; of dead letters without the number, which stands beside it."""
    if told.rule.kind == AlertKind.LETTERS_GROWING:
        return reading.headline_of(told.alert, value=None)
    return told.headline


def tabs(current: str, *, now: datetime) -> list[Tab]:
    """Return the parts of the pages of alerts, with the numbers of rules and silences."""
    counts = {
        "alert-rules": AlertRule.objects.count(),
        "alert-silences": Silence.objects.filter(starts_at__lte=now, ends_at__gt=now).count(),
    }
    words = {
        "alerts": "Now",
        "alert-history": "History",
        "alert-rules": "Rules",
        "alert-silences": "Silences",
    }
    return [
        Tab(word, reverse(f"console:{name}"), counts.get(name), name == current)
        for name, word in words.items()
    ]


@dataclass(frozen=True, slots=True)
class SilencePage:
    """The silences that last, then those that are over."""

    sentence: str
    rows: list[Silence]


def read_silences(*, now: datetime) -> SilencePage:
    """Read the silences of the last days, those that end last first."""
    rows = list(
        Silence.objects.filter(ends_at__gt=now - SILENCES_KEPT)
        .select_related("rule")
        .order_by("-ends_at", "-pk")[:HISTORY_SIZE]
    )
    lasting = sum(1 for row in rows if row.ends_at > now)
    sentence = f"{count_of(lasting, 'silence')} {'lasts' if lasting == 1 else 'last'} now."
    return SilencePage(sentence if lasting else "Nothing is silenced.", rows)


def letters_href(query: str) -> str:
    """Return the address of exactly the letters of an alert, "" when it is not about letters."""
    return address(reverse("console:letters"), query) if query else ""


def silence_href(rule: AlertRule) -> str:
    """Return the address that asks how long a rule shall be silent."""
    return f"{reverse('console:alert-silence')}?rule={rule.pk}"


def told_words(alert: Alert, told: Sequence[Notification], *, now: datetime) -> str:
    """Say who was told that it fires, and when, or why not."""
    if alert.state == AlertState.PENDING:
        hold = alert.rule.hold_seconds
        if not hold:
            return "It is about to fire."
        due_at = alert.began_at + timedelta(seconds=hold)
        if due_at <= now:
            return (
                "It has lasted long enough, and is told with what else begins: its rule fired or recovered"
                " a moment ago."
            )
        return f"It fires at {times.clock(due_at, now=now)} if that lasts."
    if not told:
        return "Nobody was told."
    return " ".join(_told_one(each, now=now) for each in told)


def _told_one(each: Notification, *, now: datetime) -> str:
    who = alert_words.recipients(each)
    # The first sentence says why; the alert's page has the rest.
    error = visible(each.last_error[:_ERROR_LIMIT], keep="").partition(". ")[0].rstrip(".")
    if each.state == NotificationState.SENT:
        return f"{who} sent {times.clock(each.sent_at, now=now)}." if each.sent_at else f"{who} sent."
    if each.state == NotificationState.WAITING:
        return f"{who} waits to be sent{f': {error}' if error else ''}."
    why = error.removeprefix("Not sent: ") or "given up"
    if not each.recipients:
        return f"Nobody was told: {why.removeprefix('Nobody is to be told: ')}."
    return f"{who} not sent: {why}."


def _listed_words(count: int, listed: int) -> str:
    if listed < count:
        return f"the {listed:,} most urgent of {count:,}"
    return f"{count:,}, the most urgent first" if count > 1 else f"{count:,}"


def _sentence(
    firing: Sequence[OpenAlert], pending: Sequence[OpenAlert], watching: int, *, now: datetime
) -> str:
    rules = f"{count_of(watching, 'rule')} {'watches' if watching == 1 else 'watch'}."
    more = "more " if firing else ""
    waiting = f" {len(pending):,} {more}{'is' if len(pending) == 1 else 'are'} pending." if pending else ""
    if not firing:
        return f"Nothing is firing.{waiting} {rules}"
    since = times.clock(min(each.since for each in firing), now=now)
    are = "is" if len(firing) == 1 else "are"
    begun = f"since {since} UTC" if len(firing) == 1 else f"the first since {since} UTC"
    return f"{count_of(len(firing), 'alert')} {are} firing, {begun}.{waiting} {rules}"


def _quiet_words(watching: int) -> str:
    if not watching:
        return "No rule is enabled, so nothing is watched and nobody will be told. Enable one, or make one."
    rules = "1 rule watches" if watching == 1 else f"{watching:,} rules watch"
    return f"{rules}. When the condition of one lasts, its alert appears here and its recipients are told."
