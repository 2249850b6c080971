"""Whether a name is that of a queue, a worker or a task that was heard of. Each function is a fixed number of queries."""

from __future__ import annotations

from datetime import datetime, timedelta

from jobs import conf, search
from jobs.core.words import RollupLevel, RollupScope, SampleLevel
from jobs.metrics import runs
from jobs.models import JobProgress, OutboxMessage, QueueSample, Rollup, Run, WorkerBoot

# What was not heard of for so long is looked for among the dead letters alone.
_HEARD_OF = timedelta(days=30)
_JOBS_SHOWN = 2


def is_queue(name: str, *, now: datetime) -> bool:
    """Say whether a queue of this name was measured, took a job lately, or has a dead letter."""
    # The levels by name: the index begins with them.
    samples = QueueSample.objects.filter(level__in=[level.value for level in SampleLevel], queue=name)
    if samples.filter(at__gte=now - _HEARD_OF).exists():
        return True
    days = Rollup.objects.filter(level=RollupLevel.DAY, scope=RollupScope.QUEUE, queue=name)
    return days.filter(starts_at__gte=now - _HEARD_OF).exists() or name in (search.names("queue") or [])


def is_worker(name: str) -> bool:
    """Say whether a worker of this name has reported."""
    return WorkerBoot.objects.filter(hostname=name).exists()


def tasks_named(name: str, *, now: datetime) -> list[str]:
    """Return the tasks of this name, or whose last part it is: those that ran lately or have a dead letter."""
    days = Rollup.objects.filter(
        level=RollupLevel.DAY, scope=RollupScope.TASK, starts_at__gte=now - _HEARD_OF
    )
    known = {*days.values_list("task", flat=True).distinct().order_by(), *(search.names("task") or [])}
    if name in known:
        return [name]
    return sorted(each for each in known if each.endswith(f".{name}"))


def jobs_of(text: str) -> list[str]:
    """Return the id of the job that has this id, or of those whose begins so, two at most."""
    if len(text) < 4 or len(text) > 255 or "\x00" in text:
        return []
    if Run.objects.filter(task_id=text).exists() or JobProgress.objects.filter(task_id=text).exists():
        return [text]
    for using in conf.current().outbox_databases:
        if OutboxMessage.objects.using(using).filter(task_id=text).exists():
            return [text]
    begins = Run.objects.filter(runs.of_id("task_id", text)).order_by("task_id")
    return list(begins.values_list("task_id", flat=True).distinct()[:_JOBS_SHOWN])
