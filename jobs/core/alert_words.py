"""What is said of rules and alerts: figures with their unit, a rule in one sentence, headlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jobs.core import lengths
from jobs.core.alert_kinds import KINDS, Unit
from jobs.core.spans import duration as duration
from jobs.core.spans import span
from jobs.core.words import AlertKind


@dataclass(frozen=True, slots=True)
class RuleWords:
    """The fields of a rule that its words need."""

    kind: AlertKind
    threshold: float = 0
    task: str = ""
    queue: str = ""
    window_minutes: int = 5
    percentile: int = 95
    minimum_attempts: int = 0
    hold_seconds: int = 0


def number(value: float) -> str:
    """Write a number with one decimal below 10: "4", "3.3", "97", "1,040"."""
    if abs(value) >= 10 or value == int(value):
        return f"{round(value):,}"
    return f"{value:.1f}".removesuffix(".0")


def exact(value: float) -> str:
    """Write a number as it is: "20", "0.05", "1,000.5"."""
    return f"{int(value):,}" if value == int(value) else f"{value:,.10g}"


def ago(seconds: float) -> str:
    """Say after a time of day how long ago that was: " (5 min ago)", "" when it is now."""
    return f" ({span(seconds)} ago)" if seconds >= 1 else ""


def counted(count: float, noun: str) -> str:
    """Write a count with its noun: "1 job", "533 jobs"."""
    return f"{number(count)} {noun if count == 1 else noun + 's'}"


def figure(unit: Unit, value: float) -> tuple[str, str]:
    """Return a measured value as its figure and the unit after it; a duration has its units within."""
    return duration(value) if unit is Unit.SECONDS else number(value), _unit_after(unit, value)


def limit_figure(unit: Unit, value: float) -> tuple[str, str]:
    """Return a limit as ``figure`` does, but not rounded: it is what somebody typed."""
    return lengths.written(value) if unit is Unit.SECONDS else exact(value), _unit_after(unit, value)


def _unit_after(unit: Unit, value: float) -> str:
    if unit is Unit.SECONDS:
        return ""
    is_one = value == 1 and unit in {Unit.MESSAGES, Unit.JOBS, Unit.WORKERS}
    return unit.value.removesuffix("s") if is_one else unit.value


def said(unit: Unit, value: float) -> str:
    """Return a measured value with its unit: "125 a minute", "1 message", "31 min", "9.1 %"."""
    return " ".join(part for part in figure(unit, value) if part)


def limit(unit: Unit, value: float) -> str:
    """Return a limit with its unit: "20.5 a minute", "10,000 messages", "1 h 30 min", "5 %"."""
    return " ".join(part for part in limit_figure(unit, value) if part)


def in_words(rule: RuleWords) -> str:
    """Say when a rule fires: "more than 20 a minute over 5 minutes, all queues"."""
    kind = KINDS[rule.kind]
    above = limit(kind.unit, rule.threshold)
    window = "the last minute" if rule.window_minutes == 1 else f"{rule.window_minutes} minutes"
    over = "over a minute" if rule.window_minutes == 1 else f"over {window}"
    within = f"in {window}"
    begin = {
        AlertKind.LETTERS_GROWING: f"more than {above} {over}",
        AlertKind.GROUP_FAILING: f"more than {above} of a new or regressed group died {within}",
        AlertKind.QUEUE_DEPTH: f"more than {above} wait",
        AlertKind.OLDEST_AGE: f"the oldest message has waited for more than {above}",
        AlertKind.LATENCY: f"p{rule.percentile} of latency above {above} {over}",
        AlertKind.FAILURE_RATE: f"more than {above} of jobs fail {over}",
        AlertKind.RETRY_RATE: f"more than {above} of attempts are to be tried again {over}",
        AlertKind.NO_CONSUMER: "messages wait and no worker consumes them",
        AlertKind.NOTHING_RECEIVED: f"messages wait and workers that have time took none {within}",
        AlertKind.WORKER_LOST: "a worker fell silent without a goodbye",
        AlertKind.BEAT_SILENT: f"beat was not seen for more than {above}",
        AlertKind.OUTBOX_LAG: f"a message has been due for more than {above}",
        AlertKind.COLLECTOR_LAG: f"records have waited for more than {above}",
    }[rule.kind]
    parts = [begin]
    if "minimum_attempts" in kind.uses and rule.minimum_attempts:
        of = "attempt" if rule.kind == AlertKind.RETRY_RATE else "job"
        parts.append(f"of at least {counted(rule.minimum_attempts, of)}")
    if rule.hold_seconds:
        parts.append(f"for {lengths.written(rule.hold_seconds)} on end")
    return f"{', '.join(parts)}{_where(rule)}"


def _where(rule: RuleWords) -> str:
    uses = KINDS[rule.kind].uses
    parts = []
    if "task" in uses and rule.task:
        parts.append(f"task {rule.task}")
    if "queue" in uses:
        parts.append(f"queue {rule.queue}" if rule.queue else "all queues")
    return "".join(f", {part}" for part in parts)


def headline(rule: RuleWords, *, value: float | None, subjects: Sequence[str] = ()) -> str:
    """Say what is wrong as the title of a page or a mail does, without a full stop.

    ``subjects`` are the queues, groups or workers in question, as people call them.
    """
    kind = KINDS[rule.kind]
    many = len(subjects)
    subject = subjects[0] if subjects else ""
    amount = "" if value is None else said(kind.unit, value)
    match rule.kind:
        case AlertKind.LETTERS_GROWING:
            words = "Dead letters are growing"
            return f"{words} by {amount}{_of(rule)}" if amount else f"{words}{_of(rule)}"
        case AlertKind.GROUP_FAILING:
            return f"{many} new failures" if many > 1 else f"New failure: {subject}"
        case AlertKind.FAILURE_RATE:
            return f"{amount or 'Too many'} of jobs fail{_of(rule)}"
        case AlertKind.RETRY_RATE:
            return f"{amount or 'Too many'} of attempts fail and are retried{_of(rule)}"
        case AlertKind.LATENCY:
            return f"Jobs start {amount or 'too'} late{_of(rule)}"
        case AlertKind.BEAT_SILENT:
            return f"Beat has been silent for {amount}" if amount else "Beat is silent"
        case AlertKind.OUTBOX_LAG:
            return f"The outbox lags by {amount}" if amount else "The outbox lags"
        case AlertKind.COLLECTOR_LAG:
            return f"The collector lags by {amount}" if amount else "The collector lags behind"
        case AlertKind.WORKER_LOST:
            return f"{many} workers were lost" if many > 1 else f"Worker {subject} was lost"
        case _:
            return _queue_headline(rule, amount=amount, subjects=subjects)


def _queue_headline(rule: RuleWords, *, amount: str, subjects: Sequence[str]) -> str:
    many = len(subjects)
    queue = subjects[0] if subjects else rule.queue
    one, several = {
        AlertKind.QUEUE_DEPTH: (f"{amount or 'Many messages'} wait on {queue}", f"{many} queues are long"),
        AlertKind.OLDEST_AGE: (
            f"A message on {queue} has waited for {amount or 'long'}",
            f"Messages on {many} queues wait long",
        ),
        AlertKind.NO_CONSUMER: (f"Nobody works on queue {queue}", f"Nobody works on {many} queues"),
        AlertKind.NOTHING_RECEIVED: (
            f"Workers take nothing from {queue}",
            f"Workers take nothing from {many} queues",
        ),
    }[rule.kind]
    return several if many > 1 else one


def recovered_headline(rule: RuleWords, *, subjects: Sequence[str] = ()) -> str:
    """Say that it is over, as the title of a mail does."""
    many = len(subjects)
    subject = subjects[0] if subjects else rule.queue
    one, several = {
        AlertKind.LETTERS_GROWING: (f"Dead letters no longer grow{_of(rule)}", ""),
        AlertKind.GROUP_FAILING: (f"No longer failing: {subject}", f"{many} failures ended"),
        AlertKind.QUEUE_DEPTH: (f"Queue {subject} is short again", f"{many} queues are short again"),
        AlertKind.OLDEST_AGE: (
            f"Messages on {subject} wait no longer",
            f"Messages on {many} queues wait no longer",
        ),
        AlertKind.LATENCY: (f"Jobs start in time again{_of(rule)}", ""),
        AlertKind.FAILURE_RATE: (f"Jobs no longer fail{_of(rule)}", ""),
        AlertKind.RETRY_RATE: (f"Jobs are no longer retried{_of(rule)}", ""),
        AlertKind.NO_CONSUMER: (f"Queue {subject} is worked on again", f"{many} queues are worked on again"),
        AlertKind.NOTHING_RECEIVED: (
            f"Workers take from {subject} again",
            f"Workers take from {many} queues again",
        ),
        AlertKind.WORKER_LOST: (
            f"Worker {subject} is no longer missing",
            f"{many} workers are no longer missing",
        ),
        AlertKind.BEAT_SILENT: ("Beat is back", ""),
        AlertKind.OUTBOX_LAG: ("The outbox no longer lags", ""),
        AlertKind.COLLECTOR_LAG: ("The collector has caught up", ""),
    }[rule.kind]
    return several if many > 1 and several else one


def _of(rule: RuleWords) -> str:
    """Say of which jobs, where a rule watches not all of them."""
    if rule.task and rule.queue:
        return f" in {rule.task} on {rule.queue}"
    if rule.task:
        return f" in {rule.task}"
    return f" on {rule.queue}" if rule.queue else ""


# Of these the headline is no span of time, so that "since 02:41 UTC" can follow it.
_WITH_SINCE = frozenset(
    {
        AlertKind.LETTERS_GROWING,
        AlertKind.GROUP_FAILING,
        AlertKind.QUEUE_DEPTH,
        AlertKind.LATENCY,
        AlertKind.FAILURE_RATE,
        AlertKind.RETRY_RATE,
        AlertKind.NO_CONSUMER,
        AlertKind.NOTHING_RECEIVED,
    }
)


def fired_subject(kind: AlertKind, words: str, *, since: datetime, now: datetime) -> str:
    """Return the subject of the mail that says it fires, made of its headline."""
    short = words.replace("Dead letters are growing", "Dead letters grow", 1)
    return f"{short} since {clock(since, now=now)} UTC" if kind in _WITH_SINCE else short


def still_subject(words: str, *, lasted: str) -> str:
    """Return the subject of a reminder; ``lasted`` says for how long it has been so."""
    short = words.replace("Dead letters are growing", "Dead letters grow", 1)
    return f"Still firing after {lasted}: {lower_first(short)}"


def recovered_subject(words: str, *, lasted: str) -> str:
    """Return the subject of the mail that says it is over; ``lasted`` says how long it lasted."""
    return f"Recovered after {lasted}: {lower_first(words)}"


def lower_first(words: str) -> str:
    """Let a sentence go on within another."""
    return words[:1].lower() + words[1:]


def clock(moment: datetime, *, now: datetime) -> str:
    """Say the time of day in UTC, after its day when that is not today's: "03:12", "3 Nov 03:12"."""
    moment, today = moment.astimezone(UTC), now.astimezone(UTC)
    if moment.date() == today.date():
        return f"{moment:%H:%M}"
    year = "" if moment.year == today.year else f" {moment.year}"
    return f"{moment.day} {moment:%b}{year} {moment:%H:%M}"
