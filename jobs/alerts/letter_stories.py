"""What is told of dead letters that grow and of groups that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import QuerySet

from jobs import search
from jobs.alerts import addresses, letters, reading, rules, stories
from jobs.alerts.stories import MOST_ROWS, Link, Part, Row, Story, Table, Tone, line
from jobs.core import alert_words, lengths
from jobs.core import query as core_query
from jobs.core.moments import FIRST_MOMENT
from jobs.core.words import AlertKind, GroupState, LetterState, OperationKind, RollupLevel, RollupScope
from jobs.models import Alert, AlertRule, DeadLetter, Operation, Rollup

HOUR = timedelta(hours=1)
# Around the beginning of an hour: a worker that was just restarted leaves a minute out.
RECORDED_WITHIN = timedelta(minutes=5)
# Each is read for the table, which shows few of them.
_MOST_GROUPS = 200
GROUP_WORDS = {state: state.value.capitalize() for state in GroupState}


@dataclass(frozen=True, slots=True)
class Span:
    """The letters in question: those that died in [since, until), of a rule's task and queue, or of groups."""

    since: datetime
    until: datetime
    died: QuerySet[DeadLetter]
    filters: str

    def query(self, state: str = "dead") -> str:
        """Return the search that finds them."""
        terms = [f"state:{state}", self.filters]
        return " ".join([*filter(None, terms), f"since:{short(self.since)}", f"until:{short(self.until)}"])


def short(moment: datetime) -> str:
    """Write a moment as ``since:`` reads it, without what is zero."""
    text = core_query.iso(moment)
    return text.removesuffix(":00Z") + "Z" if text.endswith(":00Z") else text


def span_of(bundle: Sequence[Alert], *, now: datetime, before: timedelta = timedelta(0)) -> Span:
    """Return the letters of alerts that fired together, back to ``before`` they began."""
    rule = bundle[0].rule
    since = letters.whole_minute(min(reading.since_of(alert) for alert in bundle) - before)
    found = letters.died(since=since, until=now + timedelta(microseconds=1), task=rule.task, queue=rule.queue)
    terms = [
        f"{name}:{core_query.quote(value)}"
        for name, value in (("task", rule.task), ("queue", rule.queue))
        if value
    ]
    if rule.kind == AlertKind.GROUP_FAILING:
        ids = [int(alert.subject) for alert in bundle]
        found = found.filter(group__in=ids)
        terms.insert(0, letters.names_of(ids))
    until = letters.end_after(found, now=now)
    return Span(since, until, found.filter(died_at__lt=until), " ".join(terms))


def firing(bundle: Sequence[Alert], *, tone: Tone, now: datetime) -> Story:
    """Tell that letters grow or groups fail, now or still."""
    lead, rule = bundle[0], bundle[0].rule
    span = span_of(bundle, now=now)
    died = span.died.count()
    waiting = search.count(core_query.parse(span.query(), now=now))
    in_all = DeadLetter.objects.filter(state=LetterState.DEAD).count()
    before = _before(rule, span)
    since = alert_words.clock(span.since, now=now)
    ago = alert_words.ago((now - span.since).total_seconds())
    parts: list[Part] = [
        (f"{alert_words.counted(died, 'job')} died since ", False),
        (f"{since} UTC", True),
        (f"{ago}, and {_waiting(in_all)}.", False),
    ]
    if rule.kind == AlertKind.LETTERS_GROWING:
        limit = alert_words.exact(rule.threshold)
        was = "" if before is None else f"; in the hour before it was {alert_words.number(before)} a minute"
        parts.append((f" The limit is {limit} a minute{was}.", False))
    headline = _headline(bundle)
    if tone is Tone.STILL:
        subject = alert_words.still_subject(headline, lasted=reading.lasted_words(bundle, now=now))
    else:
        subject = alert_words.fired_subject(AlertKind(rule.kind), headline, since=span.since, now=now)
    return Story(
        tone=tone,
        subject=subject,
        headline=headline,
        parts=tuple(parts),
        table=firing_table(span, now=now),
        button=Link(_open_words(waiting), addresses.letters(span.query())),
        note=f"Nothing is replayed by itself. {_next(rule)}",
        rule_line=stories.rule_line(rule),
        links=stories.firing_links(lead),
        letters_query=span.query(),
        before=before,
    )


def recovered(bundle: Sequence[Alert], *, now: datetime) -> Story:
    """Tell that letters no longer grow, how many died and what still waits, and who works on it."""
    lead, rule = bundle[0], bundle[0].rule
    span = span_of(bundle, now=now)
    died = span.died.count()
    last = letters.newest_death(span.died)
    lasted = reading.lasted_words(bundle, now=now)
    waiting = span.died.filter(state=LetterState.DEAD).count()
    in_all = DeadLetter.objects.filter(state=LetterState.DEAD).count()
    first, end = alert_words.clock(span.since, now=now), alert_words.clock(now, now=now)
    parts: list[Part] = []
    if last is not None:
        parts += [
            ("The last one died at ", False),
            (f"{alert_words.clock(last, now=now)} UTC", True),
            (". ", False),
        ]
    parts.append(
        (
            f"It lasted {lasted}, from {first} to {end}, and"
            f" {alert_words.counted(died, 'job')} died. {_still_waiting(waiting, in_all, died)}",
            False,
        )
    )
    headline = alert_words.recovered_headline(rules.words_of(rule), subjects=stories.names(bundle))
    query = f"state:dead {span.filters}".strip()
    return Story(
        tone=Tone.RECOVERED,
        subject=alert_words.recovered_subject(headline, lasted=lasted),
        headline=headline,
        parts=tuple(parts),
        table=_recovered_table(span, now=now),
        button=Link("Open the letters that wait", addresses.letters(query))
        if waiting
        else Link("Open the alert", addresses.alert(lead.pk)),
        note=_who_works(span, now=now),
        rule_line=stories.recovered_rule_line(rule),
        links=stories.ended_links(lead),
        letters_query=span.query("any"),
    )


def _headline(bundle: Sequence[Alert]) -> str:
    alert = bundle[0]
    shown = alert.details.get("shown", alert.value)
    return alert_words.headline(rules.words_of(alert.rule), value=shown, subjects=stories.names(bundle))


def _before(rule: AlertRule, span: Span) -> float | None:
    """Return how many died a minute in the hour before; None of other kinds, and where that hour is not known."""
    if rule.kind != AlertKind.LETTERS_GROWING:
        return None
    start = span.since - HOUR
    count = letters.died(since=start, until=span.since, task=rule.task, queue=rule.queue).count()
    return count / 60 if _was_recorded(start, has_letters=count > 0) else None


def _was_recorded(start: datetime, *, has_letters: bool) -> bool:
    """Say whether what died was recorded already when an hour began: what nobody recorded is not zero.

    Workers that report say so each minute. Without their numbers letters of that hour and older ones do.
    """
    minutes = Rollup.objects.filter(
        level=RollupLevel.MINUTE,
        scope=RollupScope.ALL,
        starts_at__gte=start - RECORDED_WITHIN,
        starts_at__lte=start + RECORDED_WITHIN,
    )
    if minutes.exists():
        return True
    return has_letters and letters.died(since=FIRST_MOMENT, until=start).exists()


def _waiting(in_all: int) -> str:
    verb = "waits" if in_all == 1 else "wait"
    return f"{alert_words.counted(in_all, 'dead letter')} {verb} in all"


def _still_waiting(waiting: int, in_all: int, died: int) -> str:
    if not in_all:
        return "No dead letter waits any more." if died else ""
    verb = "waits" if in_all == 1 else "wait"
    words = f"{alert_words.counted(in_all, 'dead letter')} still {verb} for someone."
    return words if waiting or not died else f"None of them waits any more; {alert_words.lower_first(words)}"


def _open_words(waiting: int) -> str:
    return "Open this letter" if waiting == 1 else f"Open these {waiting:,} letters"


def _next(rule: AlertRule) -> str:
    end = "when they stop growing" if rule.kind == AlertKind.LETTERS_GROWING else "when it is over"
    if not rule.reminder_seconds:
        return f"You get one more mail, {end}."
    return f"You get one more mail {end}, and a reminder every {lengths.written(rule.reminder_seconds)} until then."


def _rows(span: Span, *, now: datetime) -> list[search.GroupRow]:
    states = ",".join(letters.DIED)
    found = core_query.parse(span.query(states), now=now)
    return search.groups(found, spark_buckets=0, limit=_MOST_GROUPS)


def _name(row: search.GroupRow) -> tuple[str, str, str]:
    """Return a group's error, the rest of its title, and what and where it is."""
    error = row.group.error_type.rpartition(".")[2]
    rest = row.group.title.removeprefix(error).removeprefix(":").strip()
    where = f"{row.group.task or 'a task without a name'} on {row.queue or 'a queue that is not known'}"
    return line(error or "Failure", limit=60), line(rest), line(where, limit=160)


def firing_table(span: Span, *, now: datetime) -> Table | None:
    """Return the groups of the letters with their state and how many of each died."""
    rows = _rows(span, now=now)
    if not rows:
        return None
    shown = []
    for row in rows[:MOST_ROWS]:
        error, rest, where = _name(row)
        shown.append(Row(error, rest, where, (GROUP_WORDS[GroupState(row.group.state)], f"{row.letters:,}")))
    if others := rows[MOST_ROWS:]:
        shown.append(Row("", _others(others), "", ("", f"{_died_of_others(rows, span):,}")))
    return Table(("Group", "State", "Died"), tuple(shown), words=(1,), strong=2)


def _recovered_table(span: Span, *, now: datetime) -> Table | None:
    rows = _rows(span, now=now)
    if not rows:
        return None
    shown = []
    for row in rows[:MOST_ROWS]:
        error, rest, where = _name(row)
        last = alert_words.clock(row.last_died_at, now=now)
        shown.append(Row(error, rest, where, (f"{row.letters:,}", last)))
    if others := rows[MOST_ROWS:]:
        last = alert_words.clock(max(row.last_died_at for row in others), now=now)
        shown.append(Row("", _others(others), "", (f"{_died_of_others(rows, span):,}", last)))
    return Table(("Group", "Died", "Last"), tuple(shown))


def _others(others: list[search.GroupRow]) -> str:
    words = alert_words.counted(len(others), "other group")
    return words if len(others) + MOST_ROWS < _MOST_GROUPS else f"at least {words}"


def _died_of_others(rows: list[search.GroupRow], span: Span) -> int:
    """Count what died of the groups that are not shown; those that were not read are among them."""
    if len(rows) < _MOST_GROUPS:
        return sum(row.letters for row in rows[MOST_ROWS:])
    return max(0, span.died.count() - sum(row.letters for row in rows[:MOST_ROWS]))


def _who_works(span: Span, *, now: datetime) -> str:
    """Say of the newest replay since it began who started it."""
    operation = (
        Operation.objects.filter(kind=OperationKind.REPLAY, created_at__gte=span.since)
        .order_by("-id")
        .first()
    )
    if operation is None:
        return "Nobody has started a replay yet."
    at = alert_words.clock(operation.created_at, now=now)
    count = alert_words.counted(operation.selected_count, "letter")
    return f"{line(operation.actor)} started to replay {count} at {at}, as operation {operation.pk}."
