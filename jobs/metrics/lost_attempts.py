"""Jobs that a worker took with it → one attempt each that died, in the rollups and in the list of jobs.

At the moment of the loss: nobody knows when they ended. What was counted once stays, as a counter must not
fall; when the worker is back, how its jobs end counts besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jobs.agent.batches import Cell
from jobs.collector.rows import moment
from jobs.collector.writing import insert
from jobs.core.words import RunOutcome
from jobs.metrics import rollups
from jobs.metrics.run_names import fit
from jobs.models import Run, WorkerBoot


def count(
    boot: WorkerBoot, jobs: Sequence[tuple[str, Mapping[str, Any]]], *, error_type: str, now: datetime
) -> None:
    """Count the jobs, each with the publication of its death, in the transaction and the turn of who gives up.

    Of each there is a ``Run`` too: what a page counts as died is found in its list of jobs. How long it
    waited and ran is left open, and is in no percentile.
    """
    if not jobs:
        return
    minute = rollups.minute_of(now.timestamp(), now=now)
    cells = [Cell(minute, job["task"], job["queue"], dead=1) for _, job in jobs]
    rollups.write(rollups.add_up(cells, (), now=now, named=rollups.named_today(now=now)))
    insert(Run, [_run(boot, publication, job, error_type, now) for publication, job in jobs])


def _run(
    boot: WorkerBoot, publication: str, job: Mapping[str, Any], error_type: str, now: datetime
) -> dict[str, Any]:
    return {
        "task_id": job["task_id"],
        # That of the death, so that a job's life shows the two as one.
        "publication_id": publication,
        "root_id": job["root_id"],
        "task": fit(job["task"]),
        "queue": fit(job["queue"]),
        "outcome": RunOutcome.DEAD.value,
        "attempt": job["attempt"],
        "worker": fit(boot.hostname),
        "error_type": error_type,
        "published_at": moment(job["published_at"], now=now),
        "started_at": moment(job["started_at"], now=now),
        "finished_at": now.astimezone(UTC),
    }
