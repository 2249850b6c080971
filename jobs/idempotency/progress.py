"""How far a job is: written at most once a second, by the heartbeat thread, outside the body's transaction."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from datetime import datetime

from django.db import InterfaceError, OperationalError, router
from django.utils import timezone

from jobs.core.cleaning import clean_line, clean_name
from jobs.idempotency.heartbeat import Errand, heart
from jobs.models import JobProgress

logger = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
# So long a job that ends waits for a line of its own that is being written.
WAIT_SECONDS = 2.0
_LARGEST = 2**63 - 1


@dataclass(slots=True)
class _Reporter:
    started_at: datetime
    # By time.monotonic().
    next_at: float = 0.0


# The jobs of this process that have said how far they are and have not ended.
_reporters: dict[str, _Reporter] = {}


def record_progress(
    *, task: str, task_id: str, worker: str, done: int, total: int | None, note: str = ""
) -> None:
    """Remember how far a job is; the newest is written within EVERY_SECONDS. No query here."""
    reporter = _reporters.get(task_id)
    if reporter is None:
        reporter = _reporters[task_id] = _Reporter(timezone.now())
    due_at = max(time.monotonic(), reporter.next_at)
    alias = router.db_for_write(JobProgress)
    row = JobProgress(
        task_id=clean_name(task_id),
        task=clean_name(task),
        worker=clean_name(worker),
        done=_bounded(done),
        total=None if total is None else _bounded(total),
        note=clean_line(note, limit=255),
        started_at=reporter.started_at,
        updated_at=timezone.now(),
    )

    def write() -> None:
        reporter.next_at = time.monotonic() + EVERY_SECONDS
        _write(row, alias)

    heart().send(_name(task_id), Errand(alias, write, f"The progress of job {task_id}", due_at))


def end_progress(*, task_id: str, is_done: bool) -> None:
    """Delete a job's progress when it is done; otherwise see that the last of it is written.

    Costs nothing for a job that never recorded any. Call it outside the body's transaction.
    """
    if _reporters.pop(task_id, None) is None:
        return
    alias = router.db_for_write(JobProgress)
    unwritten = heart().take_back(_name(task_id), wait_seconds=WAIT_SECONDS)
    try:
        if is_done:
            JobProgress.objects.using(alias).filter(task_id=clean_name(task_id)).delete()
        elif unwritten is not None:
            unwritten.write()
    except (OperationalError, InterfaceError) as error:
        # Retention deletes what is left; the job's own ending matters more.
        logger.warning(
            "Job %s has ended, and its progress could not be brought up to date: %s", task_id, error
        )


def _write(row: JobProgress, alias: str) -> None:
    JobProgress.objects.using(alias).bulk_create(
        [row],
        update_conflicts=True,
        unique_fields=["task_id"],
        update_fields=["task", "worker", "done", "total", "note", "started_at", "updated_at"],
    )


def _bounded(number: int) -> int:
    return max(-_LARGEST, min(int(number), _LARGEST))


def _name(task_id: str) -> str:
    return f"progress {task_id}"
