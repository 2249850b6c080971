"""What needs attention besides groups and operations: alerts, queues nobody consumes, workers that are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.urls import reverse

from console import addresses, times
from console.presenters import alert_list
from console.presenters.plain import count_of, short_task, visible
from jobs.alerts.reading import OpenAlert
from jobs.core.words import AlertKind
from jobs.metrics.workers import BootNow
from jobs.overview import Overview
from jobs.queues.reading import QueueNow

_NAME_LIMIT = 120
_TEXT_LIMIT = 400


@dataclass(frozen=True, slots=True)
class Action:
    """A button that leads to a page; with a ``permission`` it may be refused."""

    label: str
    href: str
    icon: str = ""
    permission: str = ""


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One thing that needs attention. Texts are shown as they are, so names in them are made visible here.

    ``kind`` and ``state`` choose the badge; ``since`` is when it began, ``time_words`` stands below that.
    """

    row_id: str
    kind: str
    state: str
    headline: str
    second: str
    href: str
    figure: str
    unit: str
    since: datetime | None
    time_words: str
    actions: list[Action]
    bars: list[int] = field(default_factory=list)


def alerts(found: Overview, *, window_query: str, now: datetime) -> list[AttentionRow]:
    """Present the alerts that fire; one of a failure takes the place of its group's own row."""
    shown = found.shown_alerts
    told = alert_list.told_by_alert([each.alert for each in shown], now=now) if shown else {}
    groups = {str(each.row.group.pk): each.row.buckets for each in found.groups}
    return [
        _alert(
            each,
            told[each.alert.pk],
            _bars(each, found.deaths, groups),
            window_query=window_query,
            now=now,
        )
        for each in shown
    ]


def queues(found: Overview, *, window_query: str, now: datetime) -> list[AttentionRow]:
    """Present the queues with messages that nobody takes."""
    return [_queue(each, window_query=window_query, now=now) for each in found.shown_queues]


def workers(found: Overview, *, window_query: str, now: datetime) -> list[AttentionRow]:
    """Present the workers that fell silent."""
    return [_worker(each, window_query=window_query, now=now) for each in found.shown_workers]


def _bars(alert: OpenAlert, deaths: list[int], groups: Mapping[str, list[int]]) -> list[int]:
    """Return the deaths of the last hour of which an alert tells."""
    if alert.rule.kind == AlertKind.GROUP_FAILING:
        return groups.get(alert.alert.subject, [])
    return deaths if alert.rule.kind == AlertKind.LETTERS_GROWING else []


def _alert(alert: OpenAlert, told: str, bars: list[int], *, window_query: str, now: datetime) -> AttentionRow:
    page = reverse("console:alert", args=(alert.alert.pk,))
    silence = alert_list.silence_href(alert.rule)
    parts = [f"Limit {alert.limit}." if alert.limit else ""]
    if alert.silenced_until is not None:
        parts.append(f"Silenced until {times.clock(alert.silenced_until, now=now)}.")
    else:
        parts.append(told)
    since = times.clock(alert.since, now=now)
    return AttentionRow(
        row_id=f"alert-{alert.alert.pk}",
        kind="alert",
        state="firing",
        headline=_visible(alert_list.headline(alert)),
        second=_visible(" ".join(part for part in parts if part), limit=_TEXT_LIMIT),
        href=page,
        figure=alert.figure,
        unit=alert.unit,
        since=alert.since,
        time_words="recovering" if alert.is_recovering else f"since {since}",
        actions=[
            *(
                []
                if alert.silenced_until is not None
                else [Action("Silence…", silence, "bell-off", "jobs.add_silence")]
            ),
            _place(alert, window_query=window_query) or Action("Open alert", page),
        ],
        bars=bars,
    )


def _place(alert: OpenAlert, *, window_query: str) -> Action | None:
    """Return the way to what an alert is about: it takes the place of that one's own row."""
    subject = alert.alert.subject
    if alert.rule.kind == AlertKind.GROUP_FAILING and subject.isdecimal():
        return Action("Group", reverse("console:group", args=(int(subject),)))
    if alert.rule.kind == AlertKind.NO_CONSUMER:
        return Action("Queue", addresses.queue_page(subject, window_query=window_query))
    if alert.rule.kind == AlertKind.WORKER_LOST:
        return Action("Worker", addresses.worker_page(subject, window_query=window_query))
    return None


def _queue(queue: QueueNow, *, window_query: str, now: datetime) -> AttentionRow:
    page = addresses.queue_page(queue.queue, window_query=window_query)
    ready = queue.ready or 0
    age = queue.oldest_age_seconds
    advice = "Start a worker that consumes from this queue: celery worker -Q."
    return AttentionRow(
        row_id="queue-unconsumed",
        kind="queue",
        state="unconsumed",
        headline=f"Nobody takes from {_visible(queue.queue)}",
        # What is wrong with it comes first: it may end the worker that is started.
        second=f"{visible(queue.trouble, keep='')} {advice}".strip(),
        href=page,
        figure=f"{ready:,}",
        unit="message waits" if ready == 1 else "messages wait",
        since=None if age is None else now - timedelta(seconds=age),
        time_words="" if age is None else "the oldest waits",
        actions=[Action("Queue", page)],
    )


def _worker(boot: BootNow, *, window_query: str, now: datetime) -> AttentionRow:
    page = addresses.worker_page(boot.hostname, window_query=window_query)
    return AttentionRow(
        row_id="worker-lost",
        kind="worker",
        state="lost",
        headline=f"{_visible(boot.hostname)} stopped reporting",
        second=_fate(boot),
        href=page,
        figure=f"{boot.jobs_lost:,}" if boot.jobs_lost else "",
        unit="" if not boot.jobs_lost else "job died" if boot.jobs_lost == 1 else "jobs died",
        since=boot.last_seen_at,
        time_words=f"last heartbeat {times.clock(boot.last_seen_at, now=now)}",
        actions=[Action("Worker", page)],
    )


def _fate(boot: BootNow) -> str:
    """Say what became of what it ran."""
    if not boot.running:
        return "It ran no job then."
    tasks = Counter(str(job.get("task", "")) for job in boot.running)
    task, number = tasks.most_common(1)[0]
    of = f" of {_visible(short_task(task))}" if len(tasks) == 1 else f" of {len(tasks)} tasks"
    ran = f"It ran {count_of(len(boot.running), 'job')}{of}"
    if boot.jobs_lost >= len(boot.running):
        whole = {1: "it is a dead letter", 2: "both are dead letters"}.get(boot.jobs_lost)
        return f"{ran}; {whole or f'all {boot.jobs_lost:,} are dead letters'} now."
    if boot.jobs_lost:
        dead = "is a dead letter" if boot.jobs_lost == 1 else "are dead letters"
        return f"{ran}; {boot.jobs_lost:,} {dead} now, the broker gives the others to another worker."
    return f"{ran}; the broker gives {'it' if number == 1 and len(tasks) == 1 else 'them'} to another worker."


def _visible(text: str, *, limit: int = _NAME_LIMIT) -> str:
    shown = visible(text[:limit], keep="")
    return f"{shown}…" if len(text) > limit else shown
