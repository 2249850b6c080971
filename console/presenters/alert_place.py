"""Where to look because of an alert that is not about dead letters: the page its mail points at as well."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse

from console import addresses
from jobs.alerts.state_stories import QUEUE_KINDS, retried_query
from jobs.core.words import AlertKind
from jobs.models import Alert


@dataclass(frozen=True, slots=True)
class Place:
    """A page, what the link to it says, and its icon."""

    words: str
    href: str
    icon: str


def place_of(alert: Alert) -> Place | None:
    """Return the page of what an alert is about, None where it is no queue, task, worker or list."""
    kind, rule = AlertKind(alert.rule.kind), alert.rule
    if kind is AlertKind.WORKER_LOST:
        return Place("Open the worker", addresses.worker_page(alert.subject), "workers")
    if kind is AlertKind.RETRY_RATE:
        return Place("Open the attempts", addresses.jobs_of(retried_query(rule)), "job")
    if kind is AlertKind.OUTBOX_LAG:
        return Place("Open the outbox", reverse("console:outbox"), "upload")
    if kind is AlertKind.LATENCY and rule.task and not rule.queue:
        return Place("Open the task", addresses.task_page(rule.task), "job")
    if kind in QUEUE_KINDS or kind is AlertKind.LATENCY:
        queue = alert.subject or rule.queue
        if queue:
            return Place("Open the queue", addresses.queue_page(queue), "queue")
        return Place("Open the queues", reverse("console:queues"), "queue")
    return None
