"""What is told of queues, workers, rates and lags: everything but dead letters themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from jobs.alerts import addresses, letter_stories, reading, rules, stories
from jobs.alerts.letters import whole_minute
from jobs.alerts.stories import MOST_ROWS, Link, Part, Row, Story, Table, Tone, line
from jobs.core import alert_words, lengths
from jobs.core.alerts import KINDS, Unit
from jobs.core.query import quote
from jobs.core.windows import Window
from jobs.core.words import AlertKind
from jobs.metrics import reading as metrics
from jobs.metrics.workers import LOST_AFTER, ONLINE, BootNow, boots_now
from jobs.models import Alert, AlertRule, DeadLetter
from jobs.queues.reading import now_of_all

QUEUE_KINDS = frozenset(
    {
        AlertKind.QUEUE_DEPTH,
        AlertKind.OLDEST_AGE,
        AlertKind.NO_CONSUMER,
        AlertKind.NOTHING_RECEIVED,
    }
)
# How the first sentence begins, before a time.
SINCE = {
    AlertKind.WORKER_LOST: "It was last seen at ",
    AlertKind.BEAT_SILENT: "It was last seen at ",
    AlertKind.OUTBOX_LAG: "The oldest message has been due since ",
}
# What it means for the jobs, where the headline does not say it.
CONSEQUENCES = {
    AlertKind.QUEUE_DEPTH: "More comes in than is worked off.",
    AlertKind.OLDEST_AGE: "Its jobs start late.",
    AlertKind.NOTHING_RECEIVED: (
        "Its workers live and have time: a connection of theirs may hang, or jobs that wait for their time fill"
        " what they may take."
    ),
    AlertKind.LATENCY: "Jobs wait longer for their start than they should.",
    AlertKind.FAILURE_RATE: "Their dead letters wait until somebody replays them.",
    AlertKind.RETRY_RATE: "What they need may be down. Nothing dies until their retries are used up, if ever.",
    AlertKind.WORKER_LOST: "It fell silent without a goodbye: killed, out of memory, or cut off.",
    AlertKind.BEAT_SILENT: "Schedules send nothing until it is back.",
    AlertKind.OUTBOX_LAG: "What applications sent in transactions has not gone to the broker.",
    AlertKind.COLLECTOR_LAG: "Until it has caught up, pages and other rules tell less than is true.",
}


def firing(bundle: Sequence[Alert], *, tone: Tone, now: datetime) -> Story:
    """Tell what is wrong, now or still."""
    lead, rule = bundle[0], bundle[0].rule
    kind = KINDS[AlertKind(rule.kind)]
    since = min(reading.since_of(alert) for alert in bundle)
    headline = alert_words.headline(rules.words_of(rule), value=lead.value, subjects=stories.names(bundle))
    parts: list[Part] = [
        (SINCE.get(AlertKind(rule.kind), "It has been so since "), False),
        (f"{alert_words.clock(since, now=now)} UTC", True),
        (f"{alert_words.ago((now - since).total_seconds())}.", False),
    ]
    if kind.has_threshold:
        parts.append((f" The limit is {alert_words.limit(kind.unit, rule.threshold)}.", False))
    parts.append((f" {_consequence(bundle, now=now)}", False))
    if tone is Tone.STILL:
        subject = alert_words.still_subject(headline, lasted=reading.lasted_words(bundle, now=now))
    else:
        subject = alert_words.fired_subject(AlertKind(rule.kind), headline, since=since, now=now)
    return Story(
        tone=tone,
        subject=subject,
        headline=headline,
        parts=tuple(parts),
        table=_table(bundle, now=now),
        button=_button(rule, bundle, now=now),
        note=_next(rule),
        rule_line=stories.rule_line(rule),
        links=stories.firing_links(lead),
        letters_query=_failed_query(bundle, now=now),
    )


def recovered(bundle: Sequence[Alert], *, now: datetime) -> Story:
    """Tell that it is over, how long it lasted and how bad it was."""
    lead, rule = bundle[0], bundle[0].rule
    kind = KINDS[AlertKind(rule.kind)]
    since = min(reading.since_of(alert) for alert in bundle)
    lasted = reading.lasted_words(bundle, now=now)
    headline = alert_words.recovered_headline(rules.words_of(rule), subjects=stories.names(bundle))
    first, end = alert_words.clock(since, now=now), alert_words.clock(now, now=now)
    parts: list[Part] = [
        (f"It lasted {lasted}, from ", False),
        (f"{first} to {end} UTC", True),
        (".", False),
    ]
    peaks = [alert.peak for alert in bundle if alert.peak is not None]
    if peaks and kind.unit is not Unit.WORKERS:
        parts.append((f" The most was {alert_words.said(kind.unit, max(peaks))}.", False))
    return Story(
        tone=Tone.RECOVERED,
        subject=alert_words.recovered_subject(headline, lasted=lasted),
        headline=headline,
        parts=tuple(parts),
        table=_table(bundle, now=now),
        button=Link("Open the alert", addresses.alert(lead.pk)),
        rule_line=stories.recovered_rule_line(rule),
        links=stories.ended_links(lead),
        letters_query=_failed_query(bundle, now=now),
    )


def _consequence(bundle: Sequence[Alert], *, now: datetime) -> str:
    rule = bundle[0].rule
    if rule.kind != AlertKind.NO_CONSUMER:
        return CONSEQUENCES[AlertKind(rule.kind)]
    # One that has been silent for so long is as good as lost, also before it is written down as such.
    heard = [
        boot for boot in boots_now(now=now) if boot.state == ONLINE and now - boot.last_seen_at < LOST_AFTER
    ]
    workers = (
        f"{alert_words.counted(len(heard), 'worker')} online, none on it" if heard else "no worker is online"
    )
    messages = alert_words.counted(sum(alert.value or 0 for alert in bundle), "message")
    verb = "waits" if messages.startswith("1 ") else "wait"
    where = "it" if len(bundle) == 1 else "them"
    return f"{messages} {verb}; {workers}. Nothing on {where} starts until a worker consumes {where}."


def _next(rule: AlertRule) -> str:
    if not rule.reminder_seconds:
        return "You get one more mail, when it is over."
    return f"You get one more mail when it is over, and a reminder every {lengths.written(rule.reminder_seconds)}."


def _button(rule: AlertRule, bundle: Sequence[Alert], *, now: datetime) -> Link:
    kind = AlertKind(rule.kind)
    subject = bundle[0].subject
    if kind in QUEUE_KINDS:
        if len(bundle) > 1:
            return Link("Open the queues", addresses.queues())
        return Link("Open the queue", addresses.queue(subject))
    if kind is AlertKind.WORKER_LOST:
        if len(bundle) > 1:
            return Link("Open the workers", addresses.workers())
        return Link("Open the worker", addresses.worker(subject))
    if kind is AlertKind.FAILURE_RATE:
        return Link("Open their dead letters", addresses.letters(_failed_query(bundle, now=now)))
    if kind is AlertKind.RETRY_RATE:
        return Link("Open the attempts", addresses.jobs(retried_query(rule)))
    if kind is AlertKind.LATENCY and (rule.queue or rule.task):
        address = addresses.queue(rule.queue) if rule.queue else addresses.task(rule.task)
        return Link("Open the queue" if rule.queue else "Open the task", address)
    if kind is AlertKind.LATENCY:
        return Link("Open the queues", addresses.queues())
    if kind is AlertKind.OUTBOX_LAG:
        return Link("Open the outbox", addresses.outbox())
    return Link("Open the overview", addresses.overview())


def _failed_query(bundle: Sequence[Alert], *, now: datetime) -> str:
    """Return the search for the letters of jobs that fail; of the other kinds there are none."""
    return _failed(bundle, now=now).query() if bundle[0].rule.kind == AlertKind.FAILURE_RATE else ""


def _failed(bundle: Sequence[Alert], *, now: datetime) -> letter_stories.Span:
    """Return the letters of jobs that fail, back to where the window of the first bad value began."""
    window = timedelta(minutes=bundle[0].rule.window_minutes)
    return letter_stories.span_of(bundle, before=window, now=now)


def retried_query(rule: AlertRule) -> str:
    """Return the search for the attempts that a rule counts as retried."""
    named = [
        f"{name}:{quote(value)}" for name, value in (("task", rule.task), ("queue", rule.queue)) if value
    ]
    return " ".join(["outcome:retried", *named])


def _table(bundle: Sequence[Alert], *, now: datetime) -> Table | None:
    kind = AlertKind(bundle[0].rule.kind)
    if kind in QUEUE_KINDS:
        return _queues_table(bundle, now=now)
    if kind is AlertKind.FAILURE_RATE:
        return letter_stories.firing_table(_failed(bundle, now=now), now=now)
    if kind is AlertKind.RETRY_RATE:
        return _retries_table(bundle[0].rule, now=now)
    if kind is AlertKind.LATENCY:
        return _latency_table(bundle[0].rule, now=now)
    return _workers_table(bundle, now=now) if kind is AlertKind.WORKER_LOST else None


def _window(rule: AlertRule, *, now: datetime) -> Window:
    minute = whole_minute(now)
    return Window(minute - timedelta(minutes=rule.window_minutes), minute + timedelta(minutes=1), 60)


def _retries_table(rule: AlertRule, *, now: datetime) -> Table | None:
    """Tell which tasks are retried most within the rule's window."""
    by_task = metrics.by_task(_window(rule, now=now), queue=rule.queue, now=now)
    found = [
        (name, figures) for name, figures in by_task.items() if figures.retried and rule.task in {"", name}
    ]
    found.sort(key=lambda each: (-each[1].retried, each[0]))
    rows = [(name, f"{figures.retried:,}", f"{figures.attempts:,}") for name, figures in found]
    return _named_table("Task", "Retried", "Attempts", rows=rows)


def _latency_table(rule: AlertRule, *, now: datetime) -> Table | None:
    """Tell where jobs start latest within the rule's window: by queue, or by task where it watches one queue."""
    window = _window(rule, now=now)
    if rule.queue:
        by_name = metrics.by_task(window, queue=rule.queue, now=now)
        by_name = {name: figures for name, figures in by_name.items() if rule.task in {"", name}}
    else:
        by_name = metrics.by_queue(window, task=rule.task, now=now)
    late = [
        (value, name, figures.attempts)
        for name, figures in by_name.items()
        if (value := figures.latency_percentile(rule.percentile)) is not None
    ]
    late.sort(key=lambda each: (-each[0], each[1]))
    rows = [(name, alert_words.duration(value), f"{attempts:,}") for value, name, attempts in late]
    return _named_table("Task" if rule.queue else "Queue", f"p{rule.percentile}", "Attempts", rows=rows)


def _named_table(name: str, *columns: str, rows: Sequence[Sequence[str]]) -> Table | None:
    """Return the first rows, and how many more there are; the first cell of a row is a name from messages."""
    shown = [Row(line(first) or "(no name)", cells=tuple(cells)) for first, *cells in rows[:MOST_ROWS]]
    if others := rows[MOST_ROWS:]:
        words = alert_words.counted(len(others), f"other {name.lower()}")
        shown.append(Row("", words, cells=("",) * len(columns)))
    return Table((name, *columns), tuple(shown)) if shown else None


def _queues_table(bundle: Sequence[Alert], *, now: datetime) -> Table | None:
    by_name = {queue.queue: queue for queue in now_of_all(now=now)}
    rows = []
    for alert in bundle[:MOST_ROWS]:
        queue = by_name.get(alert.subject)
        if queue is None:
            rows.append(Row(line(alert.subject), cells=("?", "?", "?")))
            continue
        oldest = "–" if queue.oldest_age_seconds is None else alert_words.duration(queue.oldest_age_seconds)
        rows.append(Row(line(queue.queue), cells=(_count(queue.ready), oldest, _count(queue.consumers))))
    if others := bundle[MOST_ROWS:]:
        rows.append(Row("", alert_words.counted(len(others), "other queue"), cells=("", "", "")))
    return Table(("Queue", "Waiting", "Oldest", "Workers"), tuple(rows))


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _workers_table(bundle: Sequence[Alert], *, now: datetime) -> Table | None:
    newest: dict[str, BootNow] = {}
    for boot in boots_now(now=now):
        newest.setdefault(boot.hostname, boot)
    rows = []
    for alert in bundle[:MOST_ROWS]:
        found = newest.get(alert.subject)
        queues = stories.listed([line(each, limit=40) for each in found.queues]) if found else ""
        seen = alert_words.clock(found.last_seen_at, now=now) if found else "?"
        lost = DeadLetter.objects.filter(worker=alert.subject, reason="worker_lost", state="dead").count()
        rows.append(Row(line(alert.subject), below=queues and f"on {queues}", cells=(seen, f"{lost:,}")))
    if others := bundle[MOST_ROWS:]:
        rows.append(Row("", alert_words.counted(len(others), "other worker"), cells=("", "")))
    return Table(("Worker", "Last seen", "Jobs lost"), tuple(rows))
