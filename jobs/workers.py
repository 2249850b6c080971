"""The table of workers, kept from what they answer."""

from __future__ import annotations

from datetime import datetime, timedelta

from kombu import Connection

from jobs.broker.workers import WorkerDescription, describe_workers
from jobs.models import Worker

# A worker that has not answered for so long is not listed any more.
FORGET_AFTER = timedelta(days=7)
# Those of one application tell the same, and lists of tasks are long.
WORKERS_READ = 20


def refresh_workers(connection: Connection, *, now: datetime, timeout_seconds: float = 1.0) -> int:
    """Ask the workers and write their rows; return how many answered.

    Raises:
        BrokerUnavailable: when they cannot be asked.
    """
    known = set(Worker.objects.exclude(digest="").values_list("digest", flat=True))
    answers = describe_workers(connection, timeout_seconds=timeout_seconds, known=known)
    for answer in answers:
        _write(answer, now)
    Worker.objects.filter(seen_at__lt=now - FORGET_AFTER).delete()
    return len(answers)


def known_parameters() -> dict[str, list[str]]:
    """Return the names of each task's positional parameters, as the newest worker that told them did."""
    known: dict[str, list[str]] = {}
    for tasks in Worker.objects.order_by("-seen_at").values_list("tasks", flat=True)[:WORKERS_READ]:
        for task, parameters in tasks.items():
            if parameters is not None:
                known.setdefault(task, parameters["names"])
    return known


def _write(answer: WorkerDescription, now: datetime) -> None:
    values = {
        "boot_id": answer.boot_id,
        "pool": answer.pool,
        "has_agent": answer.has_agent,
        "queues": answer.queues,
        "digest": answer.digest,
        "seen_at": now,
    }
    tasks = answer.tasks
    if tasks is None:
        # It has the tasks of a digest that some row holds: its own, or that of another with the same code.
        tasks = Worker.objects.filter(digest=answer.digest).values_list("tasks", flat=True).first()
    if tasks is not None:
        values["tasks"] = tasks
    Worker.objects.update_or_create(hostname=answer.hostname, defaults=values)
