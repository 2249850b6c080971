"""The page of one alert: what is wrong, its life, who was told, and its rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from django.db.models import Q

from console import times
from console.number_charts import NumberChart
from console.presenters import alert_chart, alert_list, alert_words
from console.presenters.alert_list import AlertRow
from console.presenters.alert_place import Place, place_of
from console.presenters.letter_story import ordinal
from console.presenters.plain import visible
from jobs import conf, search
from jobs.alerts import reading, recipients, rules
from jobs.core import alert_words as words
from jobs.core import lengths
from jobs.core import query as core_query
from jobs.core.alert_kinds import Unit
from jobs.core.windows import Window
from jobs.core.words import AlertState, NotificationKind, NotificationState
from jobs.models import Alert, AlertRule, Notification, Silence

SHOWN_GROUPS = 5
_MOST_GROUPS = 200
_ERROR_LIMIT = 400
_MOST_NOTIFICATIONS = 60
_MOST_SILENCES = 20
_KIND_WORDS: dict[str, str] = {
    NotificationKind.FIRED: "Alert",
    NotificationKind.REMINDER: "Reminder",
    NotificationKind.RECOVERED: "Recovery",
    NotificationKind.TEST: "Test",
}
_STATE_LOOKS: dict[str, tuple[str, str, str]] = {
    NotificationState.SENT: ("done", "green", "sent"),
    NotificationState.WAITING: ("clock", "blue", "waits to be sent"),
    NotificationState.GAVE_UP: ("failed", "red", "not sent"),
    NotificationState.SILENCED: ("bell-off", "grey", "kept silent"),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of an alert's life."""

    at: datetime
    icon: str
    tone: str
    word: str
    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a list of facts."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure of an alert with one fact; ``at`` follows the fact as a relative time."""

    name: str
    figure: str
    unit: str
    fact: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """A way by which people are told, to whom, and why to them."""

    name: str
    to: list[str]
    why: str


@dataclass(frozen=True, slots=True)
class OneAlert:
    """What the page shows; ``row`` has headline, figures and links."""

    row: AlertRow
    headline: str
    sentence: str
    tiles: list[Tile]
    chart: NumberChart | None
    groups: list[search.GroupRow]
    letters: int
    group_count: int
    life: list[Entry]
    has_days: bool
    watches: str
    facts: list[Fact]
    ways: list[Way]
    runbook_href: str
    place: Place | None

    @property
    def more_groups(self) -> int:
        """How many groups are not shown."""
        return self.group_count - len(self.groups)

    @property
    def is_open(self) -> bool:
        """Whether it can still change."""
        return self.row.alert.state != AlertState.RESOLVED


def find(alert_id: int) -> Alert | None:
    """Return an alert with its rule, None when it was deleted or never was."""
    return Alert.objects.select_related("rule").filter(pk=alert_id).first()


def read(alert: Alert, *, window: Window | None = None, now: datetime) -> OneAlert:
    """Read the page of an alert, its chart in a range of one's own if given. A fixed number of queries."""
    # Alerts that fire together are told together, and the first of them holds that.
    holder = alert.lead_id or alert.pk
    # The newest of them: reminders of weeks would hide that it recovered. Their order is made below.
    told = list(
        Notification.objects.filter(alert=holder).order_by("-created_at", "-pk")[:_MOST_NOTIFICATIONS][::-1]
    )
    until = alert.resolved_at or now
    silences = list(
        Silence.objects.filter(
            Q(rule=None) | Q(rule=alert.rule_id), starts_at__lte=until, ends_at__gt=alert.began_at
        ).order_by("-starts_at")[:_MOST_SILENCES]
    )
    row = alert_list.row_of(alert, now=now)
    groups = _groups(row.told.letters_query, now=now)
    life = _life(alert, told, silences, now=now)
    return OneAlert(
        row=row,
        headline=_headline(alert, row),
        sentence=str(alert.details.get("ended") or row.told.sentence),
        tiles=_tiles(alert, row, now=now),
        chart=alert_chart.chart(alert, window=window, now=now),
        groups=groups[:SHOWN_GROUPS],
        letters=sum(each.letters for each in groups),
        group_count=len(groups),
        life=life,
        has_days=any(entry.at.date() != now.date() for entry in life),
        watches=alert_words.sentence(alert.rule),
        facts=rule_facts(alert.rule),
        ways=ways(alert.rule),
        runbook_href=safe_href(alert.rule.runbook_url),
        place=place_of(alert),
    )


def _headline(alert: Alert, row: AlertRow) -> str:
    """Say what is wrong; of one that is over that it is."""
    if alert.state != AlertState.RESOLVED:
        return row.told.headline
    subjects = [reading.subject_of(alert)] if alert.subject else []
    return words.recovered_headline(rules.words_of(alert.rule), subjects=subjects)


def _groups(query: str, *, now: datetime) -> list[search.GroupRow]:
    """Return the failure groups of the letters in question, the largest first."""
    if not query:
        return []
    return search.groups(core_query.parse(query, now=now), spark_buckets=0, limit=_MOST_GROUPS)


def _tiles(alert: Alert, row: AlertRow, *, now: datetime) -> list[Tile]:
    kind, told = alert_words.kind_of(alert.rule), row.told
    lasted = reading.lasted_words([alert], now=now)
    began = f"since {times.clock(told.since, now=now)} UTC"
    tiles = [Tile("Lasted" if alert.resolved_at else "Lasts", lasted, "", began)]
    if kind.unit is Unit.WORKERS:
        return tiles
    if alert.resolved_at is None:
        tiles.append(Tile("Now", told.figure or "no data", told.unit, "measured", alert.measured_at))
    figure, unit = _figure(alert.rule, alert.peak)
    tiles.append(Tile("Highest", figure, unit, "so far" if alert.resolved_at is None else "while it lasted"))
    if kind.has_threshold:
        figure, unit = words.limit_figure(kind.unit, alert.rule.threshold)
        tiles.append(Tile("Limit", figure, unit, "fires above it"))
    if alert.before is not None:
        figure, unit = _figure(alert.rule, alert.before)
        tiles.append(Tile("Before", figure, unit, "before it began"))
    return tiles


def _figure(rule: AlertRule, value: float | None) -> tuple[str, str]:
    return ("no data", "") if value is None else words.figure(alert_words.kind_of(rule).unit, value)


def ways(rule: AlertRule) -> list[Way]:
    """Say who is told when a rule fires, and why them. One query at most."""
    addresses = [visible(each[:255], keep="") for each in recipients.of(rule)]
    if rule.recipients:
        why = "as the rule says"
    elif conf.current().alert_emails:
        why = "as ALERT_EMAILS says"
    else:
        why = "the active administrators, since neither the rule nor ALERT_EMAILS names anybody"
    if not addresses:
        why = "nobody: no active administrator has an e-mail address. Set ALERT_EMAILS, or name somebody"
    found = [Way("E-mail", addresses, why)]
    if rule.webhook_url:
        found.append(
            Way("Webhook", [visible(alert_words.host(rule.webhook_url), keep="")], "as the rule says")
        )
    return found


def _life(
    alert: Alert, told: Sequence[Notification], silences: Sequence[Silence], *, now: datetime
) -> list[Entry]:
    rule = alert.rule
    hold = f"It must last for {lengths.written(rule.hold_seconds)}." if rule.hold_seconds else ""
    begun = alert_words.sentence(rule).rstrip(".")
    entries = [Entry(alert.began_at, "point", "grey", "Began", f"{begun}.", hold)]
    for silence in silences:
        scope = "" if silence.rule_id else "every rule "
        until = times.clock(silence.ends_at, now=now)
        text = f"{scope}by {visible(silence.actor, keep='')} until {until}"
        at = max(silence.starts_at, alert.began_at)
        entries.append(Entry(at, "bell-off", "grey", "Silenced", text, visible(silence.why[:_ERROR_LIMIT])))
    if alert.fired_at is not None:
        entries.append(Entry(alert.fired_at, "bell", "red", "Fired", _fired_text(alert)))
    entries += [notification_entry(each, now=now) for each in told]
    if alert.recovering_since is not None and alert.state == AlertState.FIRING:
        wait = lengths.written(rule.recovery_hold_seconds)
        text = f"below the limit; it is over when that has lasted for {wait}"
        entries.append(Entry(alert.recovering_since, "hourglass", "amber", "Recovering", text))
    if alert.resolved_at is not None:
        lasted = reading.lasted_words([alert], now=now)
        because = visible(str(alert.details.get("ended_because") or ""), keep="")
        because = f": {because}" if because else ""
        entries.append(
            Entry(
                alert.resolved_at,
                "done",
                "green",
                "Ended" if because else "Recovered",
                f"after {lasted}{because}",
            )
        )
    # The order in which they are written here decides between two of the same moment.
    return sorted(entries, key=lambda entry: entry.at)


def _fired_text(alert: Alert) -> str:
    peak = alert_words.with_unit(alert.rule, alert.peak)
    before = alert_words.with_unit(alert.rule, alert.before)
    parts = (
        [f"highest {peak} so far" if alert.state == AlertState.FIRING else f"highest {peak}"] if peak else []
    )
    if before:
        parts.append(f"{before} before")
    return ", ".join(parts)


def notification_entry(each: Notification, *, now: datetime) -> Entry:
    """Write what became of one mail or call as a line."""
    icon, tone, became = _STATE_LOOKS[each.state]
    word = f"{_KIND_WORDS.get(each.kind, 'Notice')} {became}"
    error = visible(each.last_error[:_ERROR_LIMIT], keep="")
    if each.state == NotificationState.SENT:
        error = f"At the {ordinal(each.attempts)} try." if each.attempts > 1 else ""
    elif each.state == NotificationState.WAITING and each.attempts:
        when = times.ago(each.due_at, now=now) if each.due_at > now else "now"
        error = f"{error} The {ordinal(each.attempts + 1)} try comes {when}.".strip()
    way = alert_words.recipients(each) if each.recipients else ""
    return Entry(each.sent_at or each.created_at, icon, tone, word, f"{way[:1].lower()}{way[1:]}", error)


def rule_facts(rule: AlertRule) -> list[Fact]:
    """List the fields of a rule that mean something to its kind."""
    uses = alert_words.kind_of(rule).uses
    facts: list[Fact] = []
    if "threshold" in uses:
        facts.append(Fact("Fires above", alert_words.limit(rule, rule.threshold)))
        recovery = rule.threshold if rule.recovery_threshold is None else rule.recovery_threshold
        facts.append(Fact("Recovers at", f"{alert_words.limit(rule, recovery)} or less"))
    facts += [
        Fact("Must last", lengths.written(rule.hold_seconds) if rule.hold_seconds else "fires at once"),
        Fact(
            "Is over after",
            lengths.written(rule.recovery_hold_seconds) if rule.recovery_hold_seconds else "at once",
        ),
        Fact(
            "Not again for", lengths.written(rule.cool_down_seconds) if rule.cool_down_seconds else "no pause"
        ),
        Fact("Reminds each", lengths.written(rule.reminder_seconds) if rule.reminder_seconds else "never"),
    ]
    return facts


def safe_href(url: str) -> str:
    """Return an address that may be a link, "" for anything but http and https."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return url if parts.scheme in {"http", "https"} and parts.netloc else ""
