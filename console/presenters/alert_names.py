"""Which tasks and queues are known, for the choice of a rule and for a warning of a name nobody has used."""

from __future__ import annotations

from datetime import datetime

from jobs import search
from jobs.core import windows
from jobs.metrics import reading
from jobs.models import AlertRule

_MOST = 200


def known(*, now: datetime) -> tuple[list[str], list[str]]:
    """Return the tasks and the queues of the last day and of the dead letters, by name."""
    window = windows.named("24h", now=now)
    tasks = {*reading.by_task(window, now=now), *(search.names("task") or ())}
    queues = {*reading.by_queue(window, now=now), *(search.names("queue") or ())}
    return sorted(tasks - {""})[:_MOST], sorted(queues - {""})[:_MOST]


def unknown_words(rule: AlertRule, *, now: datetime) -> list[str]:
    """Say of a rule's task and queue that nothing of that name was seen; it may come yet."""
    if not (rule.task or rule.queue):
        return []
    tasks, queues = known(now=now)
    words = []
    for noun, name, names in (("task", rule.task, tasks), ("queue", rule.queue, queues)):
        if name and name not in names and len(names) < _MOST:
            words.append(
                f"No {noun} named “{name[:80]}” was seen in the last day: until one is, it cannot fire."
            )
    return words
